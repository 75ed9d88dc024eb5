#!/usr/bin/env bash
# Runs the integration tests of the published client `queen-mq` against this broker.
#
# usage: scripts/conformance.sh [--build-only] [suite...]      (default: core)
#
# The crate comes from the registry through cargo, its archive is checked against the registry's
# checksum, and its tests are built as they are, outside this source tree. The broker runs on a
# free port with a fresh data directory. Green means: every suite passed exactly the number of
# tests that it has, less those named in scripts/conformance.skip, and ignored none.
#
#   LANEMQ_BIN           the broker to judge (default: a release build of this checkout)
#   LANEMQ_SHARDS        its shards (default 2)
#   CONFORMANCE_THREADS  tests at once (default 4: they mostly wait)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/broker.sh
source "$root/scripts/broker.sh"

readonly VERSION=2.7.0
readonly SKIP_FILE="$root/scripts/conformance.skip"
readonly WORK="$CACHE_DIR/conformance"
readonly SOURCES="$WORK/queen-mq-$VERSION"

# How many tests each suite has. A suite that lists another number is not the one we know.
declare -rA TESTS=(
    [core]=40 [semantics]=22 [coverage]=38 [admin]=36
    [kv_timers]=16 [locks]=5 [reads]=2 [streams]=41
)

build_only=no
if [[ ${1:-} == --build-only ]]; then
    build_only=yes
    shift
fi
suites=("$@")
[[ ${#suites[@]} -gt 0 ]] || suites=(core)
for suite in "${suites[@]}"; do
    [[ -n ${TESTS[$suite]:-} ]] || die "unknown suite '$suite'; known: ${!TESTS[*]}"
done

# The checksum that the lock file $1 records for the crate.
locked_checksum() {
    awk -v version="\"$VERSION\"" '
        /^\[\[package\]\]/ { name = ""; ours = 0 }
        $1 == "name" { name = $3 }
        $1 == "version" { ours = (name == "\"queen-mq\"" && $3 == version) }
        $1 == "checksum" && ours { gsub(/"/, "", $3); print $3 }
    ' "$1"
}

# Unpacks the checked archive afresh, so that nothing an earlier run left is built.
fetch_sources() {
    mkdir -p "$WORK/fetch/src"
    : >"$WORK/fetch/src/lib.rs"
    cat >"$WORK/fetch/Cargo.toml" <<EOF
[package]
name = "fetch"
version = "0.0.0"
edition = "2021"

[dependencies]
queen-mq = "=$VERSION"

[workspace]
EOF
    (cd "$WORK/fetch" && cargo fetch --quiet) || die "cargo could not fetch queen-mq $VERSION"

    local checksum archive found=
    checksum=$(locked_checksum "$WORK/fetch/Cargo.lock")
    [[ $checksum =~ ^[0-9a-f]{64}$ ]] || die "the registry gave no checksum for queen-mq $VERSION"
    for archive in "${CARGO_HOME:-$HOME/.cargo}"/registry/cache/*/"queen-mq-$VERSION.crate"; do
        [[ -f $archive ]] || continue
        if [[ $(sha256sum "$archive" | cut -d' ' -f1) == "$checksum" ]]; then
            found=$archive
        else
            die "$archive does not have the registry's checksum $checksum"
        fi
    done
    [[ -n $found ]] || die "the archive of queen-mq $VERSION is not in cargo's cache"
    rm -rf "$SOURCES"
    # Times of the archive are kept, so that cargo sees unchanged files and builds nothing anew.
    tar -xzf "$found" -C "$WORK"
    say "queen-mq $VERSION, sha256 $checksum"
}

# cargo in the crate's own folder with its own lock file. No debug info: it is not debugged here.
# The limit turns a hung test into a failure.
cargo_there() {
    (cd "$SOURCES" && CARGO_TARGET_DIR="$WORK/target" CARGO_PROFILE_DEV_DEBUG=0 \
        CARGO_PROFILE_TEST_DEBUG=0 RUSTFLAGS='' timeout 1200 cargo "$@")
}

build_suites() {
    local suite names=()
    for suite in "${suites[@]}"; do names+=(--test "$suite"); done
    cargo_there test --locked --no-run "${names[@]}" || die "the client's tests did not build"
}

# The names in the skip file for suite $1, one a line.
skipped_in() {
    awk -v suite="$1" '!/^#/ && $1 == suite { print $2 }' "$SKIP_FILE"
}

# The suite must be the one we know, and each skipped name must be one of its tests.
check_list() {
    local suite=$1 listed name
    listed=$(cargo_there test --locked --quiet --test "$suite" -- --list --format terse |
        sed -n 's/: test$//p')
    [[ $(grep -c . <<<"$listed") -eq ${TESTS[$suite]} ]] ||
        die "suite $suite lists $(grep -c . <<<"$listed") tests, not ${TESTS[$suite]}"
    while read -r name; do
        [[ -z $name ]] || grep -qxF "$name" <<<"$listed" ||
            die "$SKIP_FILE names $suite $name, which is not a test of it"
    done < <(skipped_in "$suite")
}

# Runs one suite; returns 1 unless its closing line is exactly the expected one.
run_suite() {
    local suite=$1 name skips=() output="$BROKER_DIR/$1.out" status=0
    while read -r name; do
        [[ -z $name ]] || skips+=("$name")
    done < <(skipped_in "$suite")
    local passed=$((TESTS[$suite] - ${#skips[@]}))
    local arguments=(--exact --test-threads "${CONFORMANCE_THREADS:-4}")
    for name in "${skips[@]}"; do arguments+=(--skip "$name"); done

    QUEEN_TEST_URL="$BROKER_URL" QUEEN_TEST_STRICT=1 \
        cargo_there test --locked --test "$suite" -- "${arguments[@]}" 2>&1 |
        tee "$output" || status=$?

    local want="test result: ok. $passed passed; 0 failed; 0 ignored; 0 measured; ${#skips[@]} filtered out;"
    if [[ $status -eq 0 ]] && grep -qF "$want" "$output" &&
        [[ $(grep -c '^test result:' "$output") -eq 1 ]]; then
        say "suite $suite: $passed of ${TESTS[$suite]} passed, ${#skips[@]} skipped by name"
        return 0
    fi
    say "suite $suite: FAILED, wanted '$want'"
    grep '^test result:' "$output" || say "suite $suite printed no result"
    return 1
}

mkdir -p "$WORK"
# Two runs at once would unpack and build over each other.
exec 9>"$WORK/lock"
flock 9

fetch_sources
build_suites
for suite in "${suites[@]}"; do check_list "$suite"; done
say "skipped by name:"
grep -v '^#' "$SKIP_FILE" | sed 's/^/    /' || say "    none"
[[ $build_only == no ]] || exit 0

find_binary "$root"
trap clean_up_broker EXIT
trap 'exit 130' INT TERM
start_broker "$(free_port)"
say "broker $LANEMQ_BIN on $BROKER_URL with ${LANEMQ_SHARDS:-2} shards"

failed=()
for suite in "${suites[@]}"; do
    kill -0 "$BROKER_PID" 2>/dev/null || die "the broker is gone; $(tail -n 20 "$BROKER_DIR/log")"
    run_suite "$suite" || failed+=("$suite")
done
if [[ ${#failed[@]} -gt 0 ]]; then
    say "the broker's last lines:"
    tail -n 30 "$BROKER_DIR/log"
fi
stop_broker
[[ ${#failed[@]} -eq 0 ]] || die "failed: ${failed[*]}"
say "all green: ${suites[*]}"
