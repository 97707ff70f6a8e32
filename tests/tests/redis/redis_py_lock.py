"""Takes the lock of redis-py again and again, and counts in the server how many are inside.

Usage: redis_py_lock.py PORT KEY ROUNDS. Prints "N rounds, M overlaps".
"""

import random
import sys
import time

import redis


def main():
    port, key, rounds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    server = redis.Redis(host="127.0.0.1", port=port)
    overlaps = 0
    for _ in range(rounds):
        lock = server.lock(key, timeout=10, sleep=0.001, blocking_timeout=30)
        if not lock.acquire():
            sys.exit("not acquired within 30 s")
        if server.incr("test:inside") != 1:
            overlaps += 1
        time.sleep(random.random() * 0.0002)
        server.decr("test:inside")
        lock.release()  # Raises an error if the lock is not its own any more.
        time.sleep(random.random() * 0.002)
    print(f"{rounds} rounds, {overlaps} overlaps")


main()
