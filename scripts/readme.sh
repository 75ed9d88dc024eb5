#!/usr/bin/env bash
# Runs the README's snippets against a fresh broker, in the order in which they stand there.
#
# usage: scripts/readme.sh [README.md]
#
# Run are all fenced blocks marked `python` and `rust` (whole programs), and those marked `sh` that
# call curl. There must be one of each. The port in them, localhost:6632, is replaced by that of
# the broker started here. An HTTP status of 400 or more fails a curl snippet.
#
#   LANEMQ_BIN      the broker (default: a release build of this checkout)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/broker.sh
source "$root/scripts/broker.sh"
# shellcheck source=scripts/clients.sh
source "$root/scripts/clients.sh"

readonly README="${1:-$root/README.md}"
[[ -f $README ]] || die "there is no $README"

run_snippet() {
    local file=$1
    case $file in
    *.sh) (
        cd "$blocks"
        # shellcheck disable=SC2329 # the snippet calls it
        curl() { command curl -sS --fail-with-body --max-time 60 "$@"; }
        export -f curl
        timeout 120 bash -euo pipefail "$file"
    ) ;;
    *.python) (cd "$blocks" && timeout 120 "$PYTHON" "$file") ;;
    *.rust)
        rust_client readme "$file"
        timeout 120 "$PROGRAM"
        ;;
    esac
}

find_binary "$root"
trap 'clean_up_broker; rm -rf "${blocks:-}"' EXIT
trap 'exit 130' INT TERM
port=$(free_port)
blocks=$(mktemp -d)

# One file for each block, named by its line, so that a failure can be found.
awk -v folder="$blocks" '
    /^```/ && !inside { inside = 1; kind = substr($0, 4); sub(/[ ,{].*/, "", kind)
        file = sprintf("%s/%05d.%s", folder, NR, kind); text = ""; next }
    /^```/ { inside = 0
        if (kind == "python" || kind == "rust" || (kind == "sh" && text ~ /(^|\n| )curl /))
            printf "%s", text > file
        next }
    inside { text = text $0 "\n" }
' "$README"
for kind in sh python rust; do
    compgen -G "$blocks/*.$kind" >/dev/null || die "$README has no runnable block marked $kind"
done
sed -i "s/localhost:6632/127.0.0.1:$port/g; s/127\.0\.0\.1:6632/127.0.0.1:$port/g" "$blocks"/*

PYTHON= PROGRAM=
python_client readme
start_broker "$port"
count=0
for file in "$blocks"/*; do
    name=${file##*/}
    say "$README line $((10#${name%%.*})), ${name##*.}"
    status=0
    run_snippet "$file" || status=$?
    [[ $status -eq 0 ]] || {
        tail -n 20 "$BROKER_DIR/log" >&2
        die "the snippet at line $((10#${name%%.*})) failed with status $status"
    }
    count=$((count + 1))
done
stop_broker
say "$count snippets ran"
