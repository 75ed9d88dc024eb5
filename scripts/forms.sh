#!/usr/bin/env bash
# The published clients judge the forms of the wire against a fresh broker.
#
# usage: scripts/forms.sh [rust|python]...      (default: both)
#
# Every form of a push (JSON, binary, compressed groups; at once and through the client's buffer)
# goes through every form of a pop (JSON, framed; the client's consume loop with acks), and what
# comes out must be message by message what JSON alone gives. Repeats of each push must be named
# duplicates; a queue that encrypts must give the same. The programs are in tests/forms.
#
#   LANEMQ_BIN      the broker (default: a release build of this checkout)
#   LANEMQ_SHARDS   its shards (default 2)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/broker.sh
source "$root/scripts/broker.sh"
# shellcheck source=scripts/clients.sh
source "$root/scripts/clients.sh"

# Seconds for one client's program: ten times what it needs.
readonly LIMIT=300

clients=("$@")
[[ ${#clients[@]} -gt 0 ]] || clients=(rust python)
for client in "${clients[@]}"; do
    [[ $client == rust || $client == python ]] || die "unknown client '$client'"
done

find_binary "$root"
trap clean_up_broker EXIT
trap 'exit 130' INT TERM

PROGRAM= PYTHON=
for client in "${clients[@]}"; do
    case $client in
    rust) rust_client forms "$root/tests/forms/rust/main.rs" ;;
    python) python_client forms zstd ;;
    esac
done

port=$(free_port)
export LANEMQ_ENCRYPTION_KEY=000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
start_broker "$port"
say "broker $LANEMQ_BIN on $BROKER_URL with ${LANEMQ_SHARDS:-2} shards"
for client in "${clients[@]}"; do
    case $client in
    rust) program=("$PROGRAM") ;;
    python) program=("$PYTHON" "$root/tests/forms/python/forms.py") ;;
    esac
    status=0
    timeout "$LIMIT" "${program[@]}" "127.0.0.1:$port" || status=$?
    [[ $status -eq 0 ]] || {
        tail -n 20 "$BROKER_DIR/log" >&2
        die "the $client client's program ended with status $status"
    }
done
stop_broker
say "all green: ${clients[*]}"
