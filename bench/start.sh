#!/usr/bin/env bash
# How long `leasehold run` with the embedded store takes to start, run `true` and give the name back, beside
# `flock` on a file and beside `true` alone. Alternating runs, so that a busy machine slows all three alike.
#
#   bench/start.sh [RUNS] [PATH OF LEASEHOLD]
#
# Target: the median of `leasehold run` is less than 20 ms above that of `flock`.
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:-200}
leasehold=${2:-}
if [ -z "$leasehold" ]; then
    cargo build --release --quiet -p leasehold-cli
    leasehold=${CARGO_TARGET_DIR:-target}/release/leasehold
fi
command -v flock >/dev/null || { echo "flock is not installed: nothing to compare with" >&2; exit 1; }
[ -n "${EPOCHREALTIME:-}" ] || { echo "this script needs bash 5" >&2; exit 1; }

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export LEASEHOLD_STORE="sqlite:$dir/locks.db"

# Writes the microseconds a command took to a file of its own.
measure() {
    local name=$1 from to
    shift
    from=${EPOCHREALTIME/[.,]/}
    "$@"
    to=${EPOCHREALTIME/[.,]/}
    echo $((to - from)) >>"$dir/$name"
}

for ((run = 0; run < runs; run++)); do
    measure true "$(type -P true)"
    measure flock flock "$dir/flock" true
    measure leasehold "$leasehold" run job -- true
    measure no_command "$leasehold" --version >/dev/null
done

# The value at a percentage of the sorted ones.
percentile() {
    sort -n "$dir/$1" | awk -v p="$2" '{ v[NR] = $1 } END { i = int(NR * p / 100 + 0.5); print v[i < 1 ? 1 : i] / 1000 }'
}

printf '%-28s %10s %10s\n' "$runs runs, ms" p50 p90
for row in "true:true" "flock FILE true:flock" "leasehold --version:no_command" "leasehold run job -- true:leasehold"; do
    printf '%-28s %10s %10s\n' "${row%:*}" "$(percentile "${row##*:}" 50)" "$(percentile "${row##*:}" 90)"
done
awk -v ours="$(percentile leasehold 50)" -v flock="$(percentile flock 50)" \
    'BEGIN { printf "leasehold run is %.1f ms above flock (target: below 20)\n", ours - flock }'
