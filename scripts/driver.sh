# shellcheck shell=bash
# Running lanemq-bench, for the scripts beside this file. Source it after broker.sh; it runs
# nothing by itself.
#
#   LANEMQ_BENCH_BIN   the driver to run (default: beside LANEMQ_BIN; without that too, this
#                      checkout is built with --release)

# Sets LANEMQ_BIN and LANEMQ_BENCH_BIN; builds when the caller named neither.
find_binaries() {
    local root=$1
    if [[ -z ${LANEMQ_BIN:-} ]]; then
        (cd "$root" && cargo build --release --locked --bins) || die "the release build failed"
        LANEMQ_BIN="${CARGO_TARGET_DIR:-$root/target}/release/lanemq"
    fi
    find_binary "$root"
    LANEMQ_BENCH_BIN="${LANEMQ_BENCH_BIN:-$(dirname "$LANEMQ_BIN")/lanemq-bench}"
    [[ -x $LANEMQ_BENCH_BIN ]] || die "LANEMQ_BENCH_BIN=$LANEMQ_BENCH_BIN is not an executable file"
}

# Sets CORE, where a server is that may use one core only, and OTHER_CORES, where the driver is
# meanwhile. Both are empty where there is but one core.
find_cores() {
    local allowed=() first last
    while IFS=- read -r first last; do
        mapfile -t -O "${#allowed[@]}" allowed < <(seq "$first" "${last:-$first}")
    done < <(sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status | tr ',' '\n')
    CORE= OTHER_CORES=
    ((${#allowed[@]} > 1)) || return 0
    CORE=${allowed[0]}
    OTHER_CORES=$(IFS=,; printf '%s' "${allowed[*]:1}")
}

# place WHERE: with `core` the next server has one core and the driver the others, with any other word
# both have all. Sets BROKER_ARGUMENTS for our command line, CONFINED for what goes in front of
# another's, and DRIVER_CORES for `drive`.
place() {
    DRIVER_CORES= BROKER_ARGUMENTS=() CONFINED=()
    [[ $1 == core ]] || return 0
    [[ -n $CORE ]] || die "one core for the server needs a second, for the driver"
    DRIVER_CORES=$OTHER_CORES BROKER_ARGUMENTS=(--cpus "$CORE") CONFINED=(taskset -c "$CORE")
}

# drive RESULTS LABEL ARGUMENT...: one run; its line of JSON goes to the file RESULTS with the
# label in it. Fails as the run does. With DRIVER_CORES the driver stays on these.
drive() {
    local results=$1 label=$2 output driver=("$LANEMQ_BENCH_BIN")
    shift 2
    [[ -z ${DRIVER_CORES:-} ]] || driver=(taskset -c "$DRIVER_CORES" "${driver[@]}")
    output=$("${driver[@]}" "$@" --json) || die "failed: lanemq-bench $*"
    head -n 1 <<<"$output"
    # The label is ours: no character in it needs an escape.
    tail -n 1 <<<"$output" | sed "s|^{|{\"label\":\"$label\",|" >>"$results"
}

# start_broker in a fresh directory on a free port, before and after each run: what one run left
# behind, in memory and on the disk, is not to be a part of the next one's cost.
restart_broker() {
    [[ -z $BROKER_PID ]] || discard_broker
    start_broker "$(free_port)" "$@"
    BROKER_ADDRESS=${BROKER_URL#http://}
}

discard_broker() {
    stop_broker
    rm -rf "$BROKER_DIR"
    BROKER_DIR=
}
