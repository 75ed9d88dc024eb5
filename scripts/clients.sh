# shellcheck shell=bash
# The published clients, kept between runs. Source it after broker.sh; it runs nothing.

# The versions that the README names.
readonly RUST_CLIENT=2.7.0 PYTHON_CLIENT=2.6.0

# python_client NAME [EXTRA]: leaves in $PYTHON an interpreter that has the client, with that extra.
python_client() {
    local venv="$CACHE_DIR/$1/venv" extra=${2:+[$2]}
    [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        "queen-mq$extra==$PYTHON_CLIENT"
    PYTHON="$venv/bin/python"
}

# rust_client NAME MAIN.RS: builds the program against the client; leaves its path in $PROGRAM.
rust_client() {
    local name=$1 project="$CACHE_DIR/$1/rust" target="$CACHE_DIR/conformance/target"
    mkdir -p "$project/src"
    cmp -s "$2" "$project/src/main.rs" || cp "$2" "$project/src/main.rs"
    cat >"$project/Cargo.toml" <<EOF
[package]
name = "$name"
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
    (cd "$project" && CARGO_TARGET_DIR="$target" CARGO_PROFILE_DEV_DEBUG=0 RUSTFLAGS='' \
        timeout 900 cargo build --quiet) || die "$2 did not build against queen-mq $RUST_CLIENT"
    PROGRAM="$target/debug/$name"
}
