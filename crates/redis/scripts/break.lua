-- Takes a lease away from whoever holds it.
--
-- KEYS[1]  string  the lock key
-- KEYS[2]  zset    the queue of the name
-- KEYS[3]  string  the last fencing token
--
-- ARGV[1]  text    'notice': the name stays taken until the lease would have ended; 'now': it is free at once
-- ARGV[2]  text    the value of a broken lease
-- ARGV[3]  text    prefix of wake channels
-- ARGV[4]  ms      how long a lease without an end stays taken
--
-- Replies:
--   ''                        nobody held it
--   holder, remaining ms      the value of the lock key before, and how long the name stays taken
-- Errors: WRONGTYPE (the key is not a string).

--@include mint
--@include serve

local holder = redis.call('GET', KEYS[1])
if not holder then return '' end

if ARGV[1] == 'now' then
  if serve(ARGV[3], '', false) ~= 'handed' then redis.call('DEL', KEYS[1]) end
  return { holder, 0 }
end

local remaining = redis.call('PTTL', KEYS[1])
if remaining < 0 then
  remaining = tonumber(ARGV[4])
  tell_head(ARGV[3], remaining)
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', math.max(remaining, 1))
return { holder, remaining }
