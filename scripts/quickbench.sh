#!/usr/bin/env bash
# Every workload in every form for a moment: no figures to keep, but every answer is checked.
#
# usage: scripts/quickbench.sh
#
#   LANEMQ_BIN, LANEMQ_BENCH_BIN, LANEMQ_SHARDS   as for the other scripts
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/broker.sh
source "$root/scripts/broker.sh"
# shellcheck source=scripts/driver.sh
source "$root/scripts/driver.sh"

find_binaries "$root"
trap clean_up_broker EXIT
trap 'exit 130' INT TERM
restart_broker
readonly LOAD=(--address "$BROKER_ADDRESS" --pid "$BROKER_PID" --connections 8 --partitions 50)

check() {
    timeout 60 "$LANEMQ_BENCH_BIN" "$@" "${LOAD[@]}" >"$BROKER_DIR/figures" ||
        die "failed: lanemq-bench $*"
    say "$(head -n 1 "$BROKER_DIR/figures")"
}

for form in 'json' 'json --transaction-ids no' 'binary' 'binary --counts' \
    'binary --transaction-ids no' 'framed' 'framed --counts'; do
    queue="quick-${form//[^a-z]/}"
    # shellcheck disable=SC2086 # a form is a list of words
    {
        check push --form $form --messages 5000 --warmup 1000 --queue "$queue"
        check pop --form $form --messages 5000 --queue "$queue"
        check push-pop --form $form --messages 5000 --spread 4
        check jobs --form $form --messages 400
    }
done
check push-pop --size 5000 --rate 2000 --seconds 1
check push-pop --form framed --size 100000 --messages 200 --batch 10

# A run that finds less than it was told of must say so, or all of the above proves nothing.
if "$LANEMQ_BENCH_BIN" pop --messages 1 --queue quick-json "${LOAD[@]}" >/dev/null 2>&1; then
    die "a pop of a drained queue reported success"
fi
stop_broker
say "all green"
