#!/usr/bin/env bash
# Switches on every defect of tests/mutants/*.def in turn and runs the test that must notice: a test that still passes is a
# finding. First every named test must pass with no defect on.
#   tests/mutants/run.sh             all of them
#   tests/mutants/run.sh --quick N   N of them, chosen by the commit id
#   tests/mutants/run.sh --only A-B  those with these numbers
set -uo pipefail
cd "$(dirname "$0")/../.."
quick=0
if [ "${1:-}" = --quick ]; then quick=$2; shift 2; fi
only=
if [ "${1:-}" = --only ]; then only=$2; shift 2; fi
folder=${1:-build-mutants}
cmake -S . -B "$folder" -DQR_MUTANTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null || exit 1
rows=$(cat tests/mutants/*.def | sed -nE 's/^MUTANT\(([0-9]+), *"(.*)", *"([^"]+)"\)$/\1|\3|\2/p' | sort -n)
[ -n "$rows" ] || { echo "mutants: no rows in tests/mutants/*.def"; exit 1; }
repeated=$(cut -d'|' -f1 <<<"$rows" | uniq -d)
[ -z "$repeated" ] || { echo "mutants: numbers used twice: $repeated"; exit 1; }
if ! grep -q avx512_vnni /proc/cpuinfo; then # nobody runs those of its kernels (tests/skips.txt: mutants)
  there=$(grep -oh 'QR_MUTANT([0-9]*)' kernels/cpu/avx512*.c | tr -dc '0-9\n' | sort -u)
  kept=$(awk -F'|' 'NR == FNR { out[$1]; next } !($1 in out)' <(echo "$there") - <<<"$rows")
  echo "mutants: $(($(wc -l <<<"$rows") - $(wc -l <<<"$kept"))) of AVX-512 left out: this processor has none"
  rows=$kept
fi
if [ -n "$only" ]; then
  rows=$(awk -F'|' -v from="${only%-*}" -v to="${only#*-}" '$1 >= from && $1 <= to' <<<"$rows")
  [ -n "$rows" ] || { echo "mutants: no row has a number of $only"; exit 1; }
fi
if [ "$quick" -gt 0 ]; then
  commit=$(git rev-parse HEAD 2>/dev/null || echo none)
  rows=$(while IFS= read -r row; do printf '%s %s\n' "$(printf '%s %s' "$commit" "${row%%|*}" | sha256sum | cut -c1-12)" "$row"; done <<<"$rows" |
    sort | head -n "$quick" | cut -d' ' -f2- | sort -n)
fi
targets=$(cut -d'|' -f2 <<<"$rows" | awk '{print "test_"$1}' | sort -u)
cmake --build "$folder" -j "$(nproc)" --target $targets >"$folder/mutants.log" 2>&1 || { tail -20 "$folder/mutants.log"; exit 1; }
run() { QUIRE_MUTANT=$1 timeout 120 "$folder/test_$2" ${3:-} >/dev/null 2>&1; }
export -f run
export folder
bad=0
for target in $targets; do
  run 0 "${target#test_}" || { echo "mutants: $target fails with no defect on"; bad=1; }
done
# As many at a time as there are cores: each is a process of its own.
try() { if run "$1" $2; then echo "ALIVE  $1 $3 (expected $2 to fail)"; else echo killed; fi; }
export -f try
results=$(while IFS='|' read -r number test what; do printf '%s\0%s\0%s\0' "$number" "$test" "$what"; done <<<"$rows" |
  xargs -0 -n 3 -P "$(nproc)" bash -c 'try "$1" "$2" "$3"' _ 2>/dev/null)
grep '^ALIVE' <<<"$results"
killed=$(grep -c '^killed$' <<<"$results") alive=$(grep -c '^ALIVE' <<<"$results")
[ $((killed + alive)) -eq "$(wc -l <<<"$rows")" ] || { echo "mutants: some rows did not run"; bad=1; }
echo "mutants: $killed killed, $alive alive"
[ "$bad" -eq 0 ] && [ "$alive" -eq 0 ]
