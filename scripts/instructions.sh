#!/usr/bin/env bash
# Counts the instructions of the inner loops in benches/forms.rs and compares them with the figures
# kept in benches/instructions.txt. More than 5 % above a kept figure fails.
#
# usage: scripts/instructions.sh [--update] [name...]     (default: all loops)
#
#   --update   keeps what was counted instead of comparing
#
# Run by hand, before and after a change of such a loop. It is no stage of the CI: the figures are
# those of one compiler and one C library (the file names them), another's differ by more than any
# change that should be noticed; and the build with optimisation alone takes longer than all its
# counting. Callgrind knows no AVX-512 and tells the program so, hence the figures are those of a
# machine with AVX2 at the most; nothing here is built for the machine's own processor.
#
#   CARGO_TARGET_DIR   where to build (default: target)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly KEPT=benches/instructions.txt TIMES=8 PERCENT=5
say() { printf 'instructions.sh: %s\n' "$*"; }
die() { printf 'instructions.sh: error: %s\n' "$*" >&2; exit 1; }

update=no
if [[ ${1:-} == --update ]]; then
    update=yes
    shift
fi
command -v valgrind >/dev/null || die "valgrind is not installed"

# A build for this processor could hold instructions that valgrind does not know.
unset RUSTFLAGS
binary=$(cargo bench --locked --no-run --bench forms --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\/forms-[^"]*\)".*/\1/p')
[[ -x $binary ]] || die "benches/forms.rs did not build"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
"$binary" --kernels >"$work/kernels"
for name in "$@"; do
    cut -f1 "$work/kernels" | grep -qxF -- "$name" || die "no loop is named '$name'"
done

# Instructions of one unit of the loop named $1, of which a run has $2.
count() {
    local out="$work/callgrind" collected
    valgrind --tool=callgrind --toggle-collect='forms::counted' --callgrind-out-file=/dev/null \
        "$binary" --count "$1" "$TIMES" >"$out" 2>&1 || { cat "$out" >&2; die "'$1' failed"; }
    collected=$(sed -n 's/^==[0-9]*== Collected : \([0-9]*\)$/\1/p' "$out")
    [[ -n $collected && $collected -gt 0 ]] || { cat "$out" >&2; die "'$1': nothing was counted"; }
    awk -v n="$collected" -v per="$(($2 * TIMES))" 'BEGIN { printf "%.1f", n / per }'
}

printf '%-34s %12s %12s %8s\n' loop instructions kept change
while IFS=$'\t' read -r name unit units; do
    if [[ $# -gt 0 ]]; then
        printf '%s\n' "$@" | grep -qxF -- "$name" || continue
    fi
    now=$(count "$name" "$units")
    printf '%s\t%s\t%s\n' "$name" "$now" "$unit" >>"$work/counted"
    awk -F'\t' -v name="$name" -v now="$now" -v unit="$unit" -v percent="$PERCENT" '
        $1 == name { kept = $2 }
        END {
            change = kept == "" ? "new" : sprintf("%+.1f %%", (now / kept - 1) * 100)
            worse = kept == "" || now > kept * (1 + percent / 100)
            printf "%-34s %12s %12s %8s  each %s%s\n", name, now, kept, change, unit,
                worse ? "  <--" : ""
            exit worse
        }
    ' <(cat "$KEPT" 2>/dev/null) || printf '%s\n' "$name" >>"$work/worse"
done <"$work/kernels"

if [[ $update == yes ]]; then
    # What was not counted this time stays, unless there is no such loop any more.
    {
        printf '# Instructions of each unit, counted by scripts/instructions.sh with\n'
        printf '# %s, %s, %s.\n' "$(rustc --version)" "$(valgrind --version)" \
            "$(ldd --version | head -n 1)"
        while IFS=$'\t' read -r name _; do
            for file in "$work/counted" "$KEPT"; do
                [[ -f $file ]] || continue
                awk -F'\t' -v name="$name" '$1 == name { print; found = 1 } END { exit !found }' \
                    "$file" && break
            done || true
        done <"$work/kernels"
    } >"$work/kept"
    cp "$work/kept" "$KEPT"
    say "kept in $KEPT"
    exit 0
fi
grep -qF "$(rustc --version), $(valgrind --version)" "$KEPT" ||
    say "note: the figures are of other tools: $(sed -n '2s/^# //p' "$KEPT")"
gone=$(grep -v '^#' "$KEPT" | cut -f1 | grep -vxF -f <(cut -f1 "$work/kernels") || true)
[[ -z $gone ]] || die "figures of loops that are not there: $gone"
[[ ! -s $work/worse ]] || die "more than $PERCENT % worse, or new: $(paste -sd';' "$work/worse")"
say "no loop is more than $PERCENT % worse"
