#!/usr/bin/env bash
# Measures this build with the standard load and writes the first section of BENCHMARKS.md.
#
# usage: scripts/bench.sh [BENCHMARKS.md]
#
# Each row is run BENCH_REPEATS times, all rows in turn, so that what else happens on the machine
# falls on all of them; every run has a fresh broker. One more run of each row counts system
# calls, which slows them, so nothing else of that run is used.
#
#   BENCH_REPEATS      runs of each row (default 3)
#   BENCH_SECONDS      seconds of pushing in a run (default 4)
#   LANEMQ_BIN, LANEMQ_BENCH_BIN, LANEMQ_SHARDS   as for the other scripts
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/broker.sh
source "$root/scripts/broker.sh"
# shellcheck source=scripts/driver.sh
source "$root/scripts/driver.sh"

readonly TARGET="${1:-$root/BENCHMARKS.md}"
readonly REPEATS="${BENCH_REPEATS:-3}" SECONDS_EACH="${BENCH_SECONDS:-4}"

# Arguments of the driver, one row a line; with `core` in front where the server has one core.
rows=()
for connections in 16 64; do
    for form in 'json' 'binary --counts' 'framed' 'framed --counts'; do
        rows+=("push --connections $connections --batch 100 --form $form --warmup 40000")
    done
done
for connections in 16 64; do
    for form in 'json' 'binary --counts' 'framed --counts'; do
        rows+=("push-pop --connections $connections --batch 100 --form $form --warmup 40000")
    done
done
# Well below what the machine carries: what a message's way through the broker takes.
for form in 'json' 'framed --counts'; do
    rows+=("push-pop --connections 16 --batch 100 --form $form --warmup 40000 --rate 40000")
done
rows+=('jobs --connections 16 --warmup 2000')
find_cores
if [[ -n $CORE ]]; then
    for row in "${rows[@]}"; do
        [[ $row == push\ * || $row == *--rate* ]] || rows+=("core $row")
    done
fi

run_row() {
    local row=$1 results=$2
    shift 2
    place "${row%% *}"
    restart_broker "${BROKER_ARGUMENTS[@]}"
    # shellcheck disable=SC2086 # a row is a list of words
    drive "$results" "$row" ${row#core } --address "$BROKER_ADDRESS" --pid "$BROKER_PID" --size 256 \
        --partitions 200 --seconds "$SECONDS_EACH" "$@"
    discard_broker
}

find_binaries "$root"
command -v python3 >/dev/null || die "python3 is needed to write the table"
results=
trap 'clean_up_broker; [[ -z $results ]] || rm -f "$results" "$results.syscalls"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$CACHE_DIR"
results=$(mktemp "$CACHE_DIR/bench-XXXXXX")
: >"$results.syscalls"

for ((repeat = 1; repeat <= REPEATS; repeat++)); do
    say "run $repeat of $REPEATS"
    for row in "${rows[@]}"; do run_row "$row" "$results"; done
done
if perf stat -e raw_syscalls:sys_enter true >/dev/null 2>&1; then
    say "system calls"
    for row in "${rows[@]}"; do run_row "$row" "$results.syscalls" --syscalls; done
else
    say "perf does not work here: no system calls"
fi
commit=$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)
python3 "$root/scripts/bench_table.py" standard "$TARGET" "$results" "$results.syscalls" \
    --data "$CACHE_DIR" --about "commit $commit, ${LANEMQ_SHARDS:-2} shards"
say "wrote $TARGET"
