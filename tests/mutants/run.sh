#!/usr/bin/env bash
# Switches on every defect of tests/mutants/*.def in turn and runs the test that must notice: a test that still passes is a
# finding. First every named test must pass with no defect on.
set -uo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-build-mutants}
cmake -S . -B "$folder" -DQR_MUTANTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null || exit 1
rows=$(cat tests/mutants/*.def | sed -nE 's/^MUTANT\(([0-9]+), *"(.*)", *"([^"]+)"\)$/\1|\3|\2/p' | sort -n)
[ -n "$rows" ] || { echo "mutants: no rows in tests/mutants/*.def"; exit 1; }
repeated=$(cut -d'|' -f1 <<<"$rows" | uniq -d)
[ -z "$repeated" ] || { echo "mutants: numbers used twice: $repeated"; exit 1; }
targets=$(cut -d'|' -f2 <<<"$rows" | awk '{print "test_"$1}' | sort -u)
cmake --build "$folder" -j "$(nproc)" --target $targets >"$folder/mutants.log" 2>&1 || { tail -20 "$folder/mutants.log"; exit 1; }
run() { QUIRE_MUTANT=$1 timeout 120 "$folder/test_$2" ${3:-} >/dev/null 2>&1; }
export -f run
export folder
bad=0
for target in $targets; do
  run 0 "${target#test_}" || { echo "mutants: $target fails with no defect on"; bad=1; }
done
killed=0 alive=0
while IFS='|' read -r number test what; do
  if run "$number" $test; then
    echo "ALIVE  $number $what (expected $test to fail)"
    alive=$((alive + 1))
  else
    killed=$((killed + 1))
  fi
done <<<"$rows"
echo "mutants: $killed killed, $alive alive"
[ "$bad" -eq 0 ] && [ "$alive" -eq 0 ]
