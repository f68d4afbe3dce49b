#!/usr/bin/env bash
# Switches on every defect of tests/mutants/sim/rows.def in turn in a simulated world and shows the seed that finds it: one that no
# seed of 1-500 finds is alive, and a fault of the world's checkers. With no defect on, the same seeds must find nothing.
#   sim.sh [--quick K] [--table FILE] [FOLDER]   --quick: K rows only, drawn from the commit; --table: also writes them as a table
set -uo pipefail
cd "$(dirname "$0")/../.."
quick=0 table="" folder=build-mutants
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=$2; shift 2 ;;
    --table) table=$2; shift 2 ;;
    *) folder=$1; shift ;;
  esac
done
seeds=1-500
fail() { echo "sim mutants: $*"; exit 1; }

# Every number once here; a number that ../*.def has too is the same defect and has the same text.
def=tests/mutants/sim/rows.def
rows=$(sed -nE 's/^MUTANT\(([0-9]+), *"(.*)", *"sim"\)$/\1|caught|\2/p; s/^ALIVE\(([0-9]+), *"(.*)", *"(.*)"\)$/\1|alive|\2/p' "$def")
[ "$(grep -cE '^(MUTANT|ALIVE)\(' "$def")" -eq "$(wc -l <<<"$rows")" ] || fail "a row of $def is not understood"
repeated=$(cut -d'|' -f1 <<<"$rows" | sort | uniq -d)
[ -z "$repeated" ] || fail "numbers used twice: $repeated"
other=$(sed -nE 's/^MUTANT\(([0-9]+), *"(.*)", *"[^"]+"\)$/\1|\2/p' tests/mutants/*.def)
while IFS='|' read -r number _ what; do
  same=$(grep "^$number|" <<<"$other" | cut -d'|' -f2)
  [ -z "$same" ] || [ "$same" = "$what" ] || fail "$number is another defect elsewhere: $same"
  grep -rqF "QR_MUTANT($number)" actors transport || fail "$number stands nowhere in the code"
done <<<"$rows"
if [ "$quick" -gt 0 ]; then
  rows=$(grep '|caught|' <<<"$rows" | shuf -n "$quick" --random-source=<(yes "$(git rev-parse HEAD)"))
fi

cmake -S . -B "$folder" -DQR_MUTANTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null || exit 1
cmake --build "$folder" -j "$(nproc)" --target tool_simulate >"$folder/sim.log" 2>&1 || { tail -20 "$folder/sim.log"; exit 1; }

# number|verdict|seed|finding. A hang or a crash is a verdict of its own and counts as alive: the world has to say what is wrong.
try() {
  local text code
  text=$(QUIRE_MUTANT=$1 timeout 150 "$folder/tool_simulate" --seeds "$seeds" --first 2>&1)
  code=$?
  case $code in
    0) echo "$1|alive||" ;;
    1) sed -nE "s/^seed ([0-9]+) (\([^)]*\)): (.*)$/$1|caught|\1|\2 \3/p" <<<"$text" | sed -E 's# \(/[^ )]*/([a-z_]+\.c:[0-9]+)\)$# (\1)#' | head -1 ;;
    124) echo "$1|hangs||" ;;
    *) echo "$1|crashes||exit $code" ;;
  esac
}
export -f try
export folder seeds
clean=$(try 0)
[ "$clean" = "0|alive||" ] || fail "with no defect on: $clean"
results=$(cut -d'|' -f1 <<<"$rows" | xargs -P 2 -n 1 bash -c 'try "$1"' _)

caught=0 alive=0 known=0 lines=""
while IFS='|' read -r number wanted what; do
  IFS='|' read -r _ verdict seed finding <<<"$(grep "^$number|" <<<"$results")"
  if [ "$verdict" = caught ]; then
    caught=$((caught + 1))
    printf '%s %s: seed %s %s\n' "$number" "$what" "$seed" "$finding"
    [ "$wanted" = caught ] || echo "       was alive until now: make it a MUTANT row"
  elif [ "$wanted" = alive ]; then
    known=$((known + 1))
    finding="would need: $(sed -nE "s/^ALIVE\\($number, *\".*\", *\"(.*)\"\\)$/\\1/p" "$def")"
    printf '%s %s: alive, as known\n' "$number" "$what"
  else
    alive=$((alive + 1))
    printf 'ALIVE  %s %s (%s)\n' "$number" "$what" "$verdict"
  fi
  lines+="| $number | $what | ${seed:-$verdict} | ${finding//|/\\|} |"$'\n'
done <<<"$rows"
echo "sim mutants: $caught caught, $alive alive, $known known to be alive; seeds $seeds"
if [ -n "$table" ]; then
  {
    echo "# Defects found in the simulated world"
    echo
    echo "Made by \`tests/mutants/sim.sh --table FILE\` at commit $(git rev-parse --short HEAD), $(date -u +%Y-%m-%d), seeds $seeds, profile mixed:"
    echo "$caught caught, $alive alive, $known known to be alive. With no defect on, the same seeds have no finding. The seed is the first that finds it."
    echo
    echo "| number | what | seed | finding |"
    echo "|---|---|---|---|"
    printf '%s' "$lines"
  } >"$table"
fi
[ "$alive" -eq 0 ]
