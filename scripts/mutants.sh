#!/usr/bin/env bash
# Plants one fault at a time in the code and asks the simulation to notice each.
#
# usage: scripts/mutants.sh [name...]      (default: every name of Mutant::ALL)
#
# The simulation is built once with the feature `mutants`. It must be green with no fault chosen,
# and red with each one, naming the seed that shows it. A fault that stays green means that the
# simulation is blind to it, and fails this script.
#
#   SIM_SEEDS      seeds each world tries for each fault at most (default 400); the first red one
#                  ends that world
#   MUTANT_LIMIT   seconds for one run (default 300)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
export SIM_SEEDS="${SIM_SEEDS:-400}" SIM_FAILURES=1
readonly LIMIT="${MUTANT_LIMIT:-300}"
# The seeded worlds; the tests beside them look at one damage each and need no fault planted.
readonly WORLDS=(log_surv broker_survives broker_is_exact)
unset SEED LANEMQ_MUTANT

die() { printf 'mutants.sh: error: %s\n' "$*" >&2; exit 1; }

# The names as the code lists them, so that a new one cannot be forgotten here.
known=$(sed -n '/pub const ALL/,/\];/s/^ *Self::\([A-Za-z0-9]*\),$/\1/p' src/base/mutant.rs)
[[ $(grep -c . <<<"$known") -ge 8 ]] || die "fewer than eight faults found in src/base/mutant.rs"
for name in "$@"; do
    grep -qxF -- "$name" <<<"$known" || die "no fault is named '$name'; known: ${known//$'\n'/ }"
done
names=("$@")
[[ ${#names[@]} -gt 0 ]] || mapfile -t names <<<"$known"

simulate=(cargo test --locked --features mutants --test sim)
"${simulate[@]}" --no-run || die "the simulation did not build"

output=$(mktemp)
trap 'rm -f "$output"' EXIT

# Runs the simulation with the environment given as arguments; leaves its status in $status.
run() {
    status=0
    env "$@" timeout "$LIMIT" "${simulate[@]}" -- --nocapture "${WORLDS[@]}" >"$output" 2>&1 </dev/null || status=$?
    [[ $status -ne 124 ]] || die "$* did not end in $LIMIT s"
}

run LANEMQ_MUTANT=
if [[ $status -ne 0 ]]; then
    tail -n 40 "$output" >&2
    die "the simulation is red with no fault planted"
fi
printf 'mutants.sh: no fault: green over %s seeds\n' "$SIM_SEEDS"

blind=()
for name in "${names[@]}"; do
    start=$SECONDS
    run LANEMQ_MUTANT="$name"
    seed=$(grep -o -m1 'SEED=[0-9]\+' "$output" | head -n1 || true)
    # 101 is a failed test. Anything else is not the simulation speaking.
    if [[ $status -eq 101 && -n $seed ]]; then
        printf 'mutants.sh: %-24s red, %s (%s s)\n' "$name" "$seed" $((SECONDS - start))
    else
        printf 'mutants.sh: %-24s NOT NOTICED (status %s)\n' "$name" "$status"
        tail -n 5 "$output"
        blind+=("$name")
    fi
done
printf '%s passed, %s failed\n' $((${#names[@]} - ${#blind[@]})) ${#blind[@]}
[[ ${#blind[@]} -eq 0 ]] || die "the simulation is blind to: ${blind[*]}"
