#!/usr/bin/env bash
# Builds every fuzz target with clang and runs each for the given seconds from a fixed seed.
set -uo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-20}
folder=build-fuzz
cmake -S . -B "$folder" -DCMAKE_C_COMPILER=clang -DCMAKE_C_FLAGS="-fsanitize=fuzzer-no-link" -DQR_SANITIZE=address,undefined -DQR_FUZZ=ON >/dev/null || exit 1
bad=0 ran=0
for file in tests/fuzz/*.c; do
  name=$(basename "$file" .c)
  cmake --build "$folder" -j "$(nproc)" --target "fuzz_$name" >"$folder/fuzz.log" 2>&1 || { tail -20 "$folder/fuzz.log"; bad=1; continue; }
  corpus=$folder/corpus-$name
  mkdir -p "$corpus"
  seeds=()
  [ -d "tests/fuzz/seeds/$name" ] && seeds=("tests/fuzz/seeds/$name")
  if "$folder/fuzz_$name" -max_total_time="$seconds" -seed=1 -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 "$corpus" ${seeds[@]+"${seeds[@]}"} >"$folder/fuzz-$name.txt" 2>&1; then
    echo "fuzz $name: $(grep -oE 'stat::number_of_executed_units: *[0-9]+' "$folder/fuzz-$name.txt" | grep -oE '[0-9]+$') runs in $seconds s, no finding"
    ran=$((ran + 1))
  else
    echo "fuzz $name: FINDING"
    tail -30 "$folder/fuzz-$name.txt"
    bad=1
  fi
done
[ "$ran" -gt 0 ] && [ "$bad" -eq 0 ]
