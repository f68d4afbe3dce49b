#!/usr/bin/env bash
# Builds every fuzz target with clang and runs each for the given seconds from a fixed seed, as many at a time as there are cores.
set -uo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-20}
folder=build-fuzz
cmake -S . -B "$folder" -DCMAKE_C_COMPILER=clang -DCMAKE_C_FLAGS="-fsanitize=fuzzer-no-link" -DQR_SANITIZE=address,undefined -DQR_FUZZ=ON >/dev/null || exit 1
names=$(for file in tests/fuzz/*.c; do basename "$file" .c; done)
cmake --build "$folder" -j "$(nproc)" --target $(printf 'fuzz_%s ' $names) >"$folder/fuzz.log" 2>&1 || { tail -20 "$folder/fuzz.log"; exit 1; }
fuzz() { # name
  local corpus=$folder/corpus-$1 seeds=() out=$folder/fuzz-$1.txt
  mkdir -p "$corpus"
  [ -d "tests/fuzz/seeds/$1" ] && seeds=("tests/fuzz/seeds/$1")
  if "$folder/fuzz_$1" -max_total_time="$seconds" -seed=1 -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 "$corpus" ${seeds[@]+"${seeds[@]}"} >"$out" 2>&1; then
    echo "fuzz $1: $(grep -oE 'stat::number_of_executed_units: *[0-9]+' "$out" | grep -oE '[0-9]+$') runs in $seconds s, no finding"
  else
    echo "fuzz $1: FINDING"
    tail -30 "$out"
    return 1
  fi
}
export -f fuzz
export folder seconds
[ -n "$names" ] && printf '%s\n' $names | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
