# shellcheck shell=bash
# Starting and stopping a broker, for the scripts beside this file. Source it; it runs nothing.
#
#   LANEMQ_BIN      the binary to run; without it this checkout is built with --release
#   LANEMQ_SHARDS   shards of the fresh data directory (default 2)

# Everything that is built or kept between runs lies here, outside the source tree.
CACHE_DIR="${XDG_CACHE_HOME:-$HOME/.cache}/lanemq"

BROKER_PID=
BROKER_DIR=
BROKER_URL=

say() { printf '%s: %s\n' "${0##*/}" "$*"; }
die() { printf '%s: error: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# Sets LANEMQ_BIN; builds when the caller named none.
find_binary() {
    local root=$1
    if [[ -n ${LANEMQ_BIN:-} ]]; then
        [[ -x $LANEMQ_BIN ]] || die "LANEMQ_BIN=$LANEMQ_BIN is not an executable file"
        return
    fi
    (cd "$root" && cargo build --release --locked --bin lanemq) || die "the release build failed"
    LANEMQ_BIN="${CARGO_TARGET_DIR:-$root/target}/release/lanemq"
}

# Prints a port of 127.0.0.1 that nothing listens on. It is below the ephemeral range, so that no
# outgoing connection of the tests takes it between this look and the broker's bind.
free_port() {
    local port tries
    for tries in {1..50}; do
        port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            printf '%s\n' "$port"
            return
        fi
    done
    die "no free port found in $tries tries"
}

# A fresh directory on a real disk: an fdatasync on a memory filesystem shows nothing, and
# O_DIRECT may be refused there.
fresh_dir() {
    mkdir -p "$CACHE_DIR/run"
    case $(stat -f -c %T "$CACHE_DIR/run") in
    tmpfs | ramfs) die "$CACHE_DIR is on a memory filesystem: set XDG_CACHE_HOME to a real disk" ;;
    esac
    mktemp -d "$CACHE_DIR/run/XXXXXXXX"
}

# start_broker PORT [ARGUMENT...]: returns when /health answers 200, dies when it does not.
start_broker() {
    local port=$1 waited
    shift
    BROKER_DIR=$(fresh_dir)
    BROKER_URL="http://127.0.0.1:$port"
    # The caller may hold its own lock as descriptor 9; a broker that outlives it must not.
    "$LANEMQ_BIN" --listen "127.0.0.1:$port" --data-dir "$BROKER_DIR/data" \
        --shards "${LANEMQ_SHARDS:-2}" "$@" </dev/null >"$BROKER_DIR/log" 2>&1 9>&- &
    BROKER_PID=$!
    for ((waited = 0; waited < 150; waited++)); do
        if curl -fsS --max-time 2 -o /dev/null "$BROKER_URL/health" 2>/dev/null; then
            return
        fi
        if ! kill -0 "$BROKER_PID" 2>/dev/null; then
            local status=0
            wait "$BROKER_PID" || status=$?
            BROKER_PID=
            tail -n 40 "$BROKER_DIR/log" >&2
            die "the broker ended with status $status before it was healthy"
        fi
        sleep 0.2
    done
    tail -n 40 "$BROKER_DIR/log" >&2
    die "no healthy answer from $BROKER_URL/health in 30 s"
}

# SIGTERM, and the exit status must be 0 within 30 s.
stop_broker() {
    local pid=$BROKER_PID status=0 waited
    [[ -n $pid ]] || die "the broker is not running"
    kill -TERM "$pid" 2>/dev/null || true
    for ((waited = 0; waited < 150; waited++)); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.2
    done
    if kill -0 "$pid" 2>/dev/null; then
        tail -n 40 "$BROKER_DIR/log" >&2
        die "the broker did not end within 30 s of SIGTERM"
    fi
    wait "$pid" || status=$?
    BROKER_PID=
    [[ $status -eq 0 ]] || {
        tail -n 40 "$BROKER_DIR/log" >&2
        die "the broker ended with status $status after SIGTERM"
    }
}

# For an EXIT trap: nothing started here outlives the script.
clean_up_broker() {
    if [[ -n $BROKER_PID ]]; then
        kill -KILL "$BROKER_PID" 2>/dev/null || true
        wait "$BROKER_PID" 2>/dev/null || true
    fi
    [[ -z $BROKER_DIR ]] || rm -rf "$BROKER_DIR"
}
