#!/usr/bin/env bash
# Gives LaneMQ and its peers the same load in turn and writes the second section of BENCHMARKS.md.
#
# usage: scripts/compare.sh [BENCHMARKS.md]
#
# Peers are the redis-server, nats-server and PostgreSQL that are installed, each started here with
# its data in a fresh directory of the same disk, on a free port, and stopped by its process id.
# PostgreSQL, which is for the transactions, is installed from Debian's packages where it is missing
# and this runs as root, without a cluster of its own. A subject named `-core` has one core, and the
# driver the others. What is not alike between them stands with the tables.
#
#   COMPARE_REPEATS    runs of each (default 3)
#   COMPARE_SECONDS    seconds of pushing in a run (default 3), of transactions (default 10)
#   COMPARE_SUBJECTS   what to run (default: all that can be)
#   COMPARE_LOADS      the loads: `100` and `1`, the batch of pushes and pops; `txn` (default: all)
#   LANEMQ_BIN, LANEMQ_BENCH_BIN, LANEMQ_SHARDS   as for the other scripts
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/broker.sh
source "$root/scripts/broker.sh"
# shellcheck source=scripts/driver.sh
source "$root/scripts/driver.sh"

readonly TARGET="${1:-$root/BENCHMARKS.md}"
readonly REPEATS="${COMPARE_REPEATS:-3}" SECONDS_EACH="${COMPARE_SECONDS:-3}"
# Longer, as PostgreSQL's transactions get dearer in their first seconds.
readonly TRANSACT_SECONDS="${COMPARE_SECONDS:-10}"

PEER_PID=
PEER_DIR=

clean_up() {
    clean_up_broker
    if [[ -n $PEER_PID ]]; then
        kill -KILL "$PEER_PID" 2>/dev/null || true
        wait "$PEER_PID" 2>/dev/null || true
    fi
    [[ -z $PEER_DIR ]] || rm -rf "$PEER_DIR"
    [[ -z ${results:-} ]] || rm -f "$results"
}

# start_peer PORT COMMAND...: returns when something listens on the port.
start_peer() {
    local port=$1 waited
    shift
    "$@" </dev/null >"$PEER_DIR/log" 2>&1 &
    PEER_PID=$!
    for ((waited = 0; waited < 100; waited++)); do
        if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            return
        fi
        kill -0 "$PEER_PID" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$PEER_DIR/log" >&2
    die "$1 did not start"
}

stop_peer() {
    kill -TERM "$PEER_PID" 2>/dev/null || true
    wait "$PEER_PID" 2>/dev/null || true
    PEER_PID=
    rm -rf "$PEER_DIR"
    PEER_DIR=
}

# The configuration of nats-server; $2 is its sync interval, none for its default.
nats_config() {
    printf 'listen: "127.0.0.1:%s"\njetstream {\n  store_dir: "%s"\n' "$1" "$PEER_DIR"
    [[ -z $2 ]] || printf '  sync_interval: %s\n' "$2"
    printf '}\n'
}

# Prints the directory of PostgreSQL's programs, the newest there are; nothing without.
postgres_programs() {
    local found
    found=$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -V | tail -n 1)
    [[ ! -x $found ]] || dirname "$found"
}

# Without a cluster: Debian's package would make and start one.
install_postgres() {
    ((EUID == 0)) && command -v apt-get >/dev/null || return 0
    say "installing postgresql" >&2
    {
        apt-get install -y --no-install-recommends postgresql-common &&
            printf 'create_main_cluster = false\n' >>/etc/postgresql-common/createcluster.conf &&
            apt-get install -y --no-install-recommends postgresql
    } >&2 || say "postgresql could not be installed" >&2
}

# postgres_as COMMAND...: root may not run PostgreSQL.
postgres_as() {
    if ((EUID == 0)); then
        exec setpriv --reuid postgres --regid postgres --clear-groups "$@"
    fi
    exec "$@"
}

# A fresh cluster in PEER_DIR, which the user postgres must be able to reach.
make_cluster() {
    if ((EUID == 0)); then
        PEER_DIR=$(mktemp -d /var/tmp/lanemq-compare-XXXXXX)
        chown postgres "$PEER_DIR"
        [[ $(stat -c %d "$PEER_DIR") == $(stat -c %d "$CACHE_DIR") ]] ||
            die "/var/tmp is on another disk than $CACHE_DIR: not the same for both"
    else
        PEER_DIR=$(fresh_dir)
    fi
    (cd "$PEER_DIR" && postgres_as "$POSTGRES/initdb" -D "$PEER_DIR/data" -A trust -U postgres) \
        >/dev/null || die "initdb failed"
}

# Prints the subjects that can run here.
subjects() {
    local here=(lanemq lanemq-framed)
    [[ -z $CORE ]] || here+=(lanemq-core lanemq-framed-core)
    [[ -z $POSTGRES ]] || here+=(postgres)
    [[ -z $POSTGRES || -z $CORE ]] || here+=(postgres-core)
    printf '%s\n' "${here[@]}"
    ! command -v redis-server >/dev/null || printf '%s\n' redis-always redis-everysec
    command -v nats-server >/dev/null || return 0
    # `always` came with nats-server 2.10.
    PEER_DIR=$(fresh_dir)
    nats_config 4222 always >"$PEER_DIR/conf"
    if nats-server -c "$PEER_DIR/conf" -t >/dev/null 2>&1; then
        printf '%s\n' nats-always
    else
        say "$(nats-server --version) cannot sync before it answers: nats-always is left out" >&2
    fi
    rm -rf "$PEER_DIR"
    printf '%s\n' nats
}

# transact SUBJECT: all take turns at one ack and one push in a transaction.
transact() {
    local subject=$1 port pid load=()
    port=$(free_port)
    place "${subject##*-}"
    case $subject in
    lanemq | lanemq-core)
        start_broker "$port" "${BROKER_ARGUMENTS[@]}"
        pid=$BROKER_PID
        ;;
    postgres | postgres-core)
        make_cluster
        start_peer "$port" postgres_in_cluster "$port"
        # It listens before it can serve.
        await_cluster "$port"
        pid=$PEER_PID
        ;;
    *) return 0 ;;
    esac
    load=(--peer "${subject%-core}" --address "127.0.0.1:$port" --pid "$pid"
        --connections 64 --size 256)
    drive "$results" "1 txn $subject" txn "${load[@]}" --seconds "$TRANSACT_SECONDS" --warmup 1000
    if [[ $subject == lanemq* ]]; then discard_broker; else stop_peer; fi
}

await_cluster() {
    local waited
    for ((waited = 0; waited < 200; waited++)); do
        ! "$POSTGRES/pg_isready" -q -h 127.0.0.1 -p "$1" || return 0
        sleep 0.1
    done
    die "PostgreSQL does not get ready"
}

postgres_in_cluster() {
    cd "$PEER_DIR"
    postgres_as "${CONFINED[@]}" "$POSTGRES/postgres" -D "$PEER_DIR/data" -p "$1" -c listen_addresses=127.0.0.1 \
        -c unix_socket_directories=
}

# run SUBJECT BATCH: pushes for a while, then pops and acks all of it.
run() {
    local subject=$1 batch=$2 port pid load=()
    port=$(free_port)
    place "${subject##*-}"
    case $subject in
    lanemq*)
        start_broker "$port" "${BROKER_ARGUMENTS[@]}"
        pid=$BROKER_PID
        load=(--peer lanemq)
        [[ $subject != *framed* ]] || load+=(--form framed --counts)
        ;;
    redis-*)
        PEER_DIR=$(fresh_dir)
        start_peer "$port" redis-server --port "$port" --bind 127.0.0.1 --dir "$PEER_DIR" \
            --save '' --appendonly yes --appendfsync "${subject#redis-}" \
            --auto-aof-rewrite-percentage 0
        pid=$PEER_PID
        load=(--peer redis)
        ;;
    nats*)
        PEER_DIR=$(fresh_dir)
        local interval=
        [[ $subject != nats-always ]] || interval=always
        nats_config "$port" "$interval" >"$PEER_DIR/conf"
        start_peer "$port" nats-server -c "$PEER_DIR/conf"
        pid=$PEER_PID
        load=(--peer nats --transaction-ids no)
        ;;
    # For the transactions.
    postgres*) return 0 ;;
    *) die "unknown subject '$subject'" ;;
    esac
    load+=(--address "127.0.0.1:$port" --pid "$pid" --connections 64 --batch "$batch"
        --size 256 --partitions 200 --queue compare)
    local push=("$batch push $subject" push "${load[@]}" --seconds "$SECONDS_EACH"
        --warmup $((50 * batch)))
    if [[ $subject == lanemq* ]]; then
        drive "$results" "${push[@]}"
        drive "$results" "$batch pop $subject" pop "${load[@]}"
        discard_broker
        return
    fi
    # A peer that loses its thread costs this run of it, not all that was measured.
    (drive "$results" "${push[@]}" && drive "$results" "$batch pop $subject" pop "${load[@]}") ||
        say "no figures of $subject from this run"
    stop_peer
}

find_binaries "$root"
find_cores
command -v python3 >/dev/null || die "python3 is needed to write the table"
results=
trap clean_up EXIT
trap 'exit 130' INT TERM
mkdir -p "$CACHE_DIR"
results=$(mktemp "$CACHE_DIR/compare-XXXXXX")
POSTGRES=$(postgres_programs)
if [[ -z $POSTGRES && -z ${COMPARE_SUBJECTS:-} ]]; then
    install_postgres
    POSTGRES=$(postgres_programs)
fi
readonly POSTGRES
if [[ -n ${COMPARE_SUBJECTS:-} ]]; then
    read -ra all <<<"$COMPARE_SUBJECTS"
else
    mapfile -t all < <(subjects)
fi

read -ra loads <<<"${COMPARE_LOADS:-100 1 txn}"
for load in "${loads[@]}"; do
    for ((repeat = 1; repeat <= REPEATS; repeat++)); do
        say "load $load, run $repeat of $REPEATS"
        for subject in "${all[@]}"; do
            if [[ $load == txn ]]; then transact "$subject"; else run "$subject" "$load"; fi
        done
    done
done
versions=$(
    ! command -v redis-server >/dev/null ||
        redis-server --version | sed 's/.* v=\([0-9.]*\).*/redis-server \1/'
    ! command -v nats-server >/dev/null || nats-server --version | sed 's/: */ /'
    [[ -z $POSTGRES ]] || "$POSTGRES/postgres" --version | sed 's/.*) \([0-9.]*\).*/PostgreSQL \1/'
)
commit=$(git -C "$root" describe --always --dirty 2>/dev/null || echo unknown)
python3 "$root/scripts/bench_table.py" compare "$TARGET" "$results" --data "$CACHE_DIR" \
    --seconds "$SECONDS_EACH" --transact-seconds "$TRANSACT_SECONDS" \
    --about "commit $commit, ${LANEMQ_SHARDS:-2} shards, ${versions//$'\n'/, }"
say "wrote $TARGET"
