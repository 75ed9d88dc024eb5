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

readonly README="${1:-$root/README.md}"
readonly RUST_CLIENT=2.7.0 PYTHON_CLIENT=2.6.0
[[ -f $README ]] || die "there is no $README"

# The published clients as the README says to install them, kept between runs.
python_client() {
    local venv="$CACHE_DIR/readme/venv"
    [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        "queen-mq==$PYTHON_CLIENT"
    PYTHON="$venv/bin/python"
}

run_rust() {
    local project="$CACHE_DIR/readme/rust"
    mkdir -p "$project/src"
    cp "$1" "$project/src/main.rs"
    cat >"$project/Cargo.toml" <<EOF
[package]
name = "snippet"
version = "0.0.0"
edition = "2024"

[dependencies]
queen-mq = "=$RUST_CLIENT"
serde_json = "1"
tokio = { version = "1", features = ["full"] }

[workspace]
EOF
    # The conformance build has most of these crates built already, in the versions that the
    # client's own lock file names.
    local client="$CACHE_DIR/conformance/queen-mq-$RUST_CLIENT"
    if [[ ! -f $project/Cargo.lock && -f $client/Cargo.lock ]]; then
        cp "$client/Cargo.lock" "$project/Cargo.lock"
    fi
    (cd "$project" && CARGO_TARGET_DIR="$CACHE_DIR/conformance/target" CARGO_PROFILE_DEV_DEBUG=0 \
        RUSTFLAGS='' timeout 900 cargo run --quiet)
}

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
    *.rust) run_rust "$file" ;;
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

PYTHON=
python_client
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
