#!/usr/bin/env bash
# The short gate: installs, builds and runs every test once. Safe to run again; the second time only what changed is built.
#   tests/run.sh            everything
#   tests/run.sh --quick    one compiler, no sanitizers, no fuzzing
set -euo pipefail
cd "$(dirname "$0")/.."
quick=${1:-}
jobs=$(nproc)
commit=$(git rev-parse HEAD 2>/dev/null || echo none)
seed=$((16#$(printf '%s' "$commit" | sha256sum | cut -c1-7)))
passed=0
failed=()
skipped=0
say() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }

configure() { # folder, options...
  local folder=$1
  shift
  cmake -S . -B "$folder" "$@" >"$folder.log" 2>&1 || { cat "$folder.log"; return 1; }
}
build() { # folder, targets... (everything)
  cmake --build "$1" -j "$jobs" ${2:+--target "${@:2}"} >"$1.log" 2>&1 || { grep -E '(error|warning|Error)[: ]' -A6 "$1.log" | head -60; return 1; }
}
suite() { # folder, ctest options...
  local folder=$1 out
  shift
  out=$folder/ctest.txt
  (cd "$folder" && QUIRE_TEST_SEED=$seed ctest --no-tests=error --output-on-failure --timeout 300 "$@") >"$out" 2>&1 || true
  grep -E 'tests passed|Total Test time' "$out" || tail -30 "$out"
  grep -qE '^ *[0-9]+/[0-9]+ Test .* Passed' "$out" || failed+=("$folder: no test ran")
  passed=$((passed + $(grep -cE '^ *[0-9]+/[0-9]+ Test .* Passed' "$out" || true)))
  skipped=$((skipped + $(grep -cE '\*\*\*Skipped' "$out" || true)))
  while read -r name; do failed+=("$folder:$name"); done < <(grep -E '\*\*\*(Failed|Timeout|Exception|Not Run)' "$out" | sed -E 's/.*Test +#[0-9]+: ([^ ]+) .*/\1/')
  while read -r name; do
    grep -qE "^$name( |$)" tests/skips.txt || failed+=("$folder:$name skipped but not in tests/skips.txt")
  done < <(grep -E '\*\*\*Skipped' "$out" | sed -E 's/.*Test +#[0-9]+: ([^ ]+) .*/\1/')
  if grep -qE '\*\*\*(Failed|Timeout|Exception)' "$out"; then grep -E 'FAILED|ERROR|Assert|error:|\*\*\*' "$out" | head -60; fi
}
step() { # name, command...; status 77 is a skip that tests/skips.txt must name
  local name=$1 status=0
  shift
  "$@" || status=$?
  if [ $status -eq 77 ] && grep -qE "^$name( |$)" tests/skips.txt; then skipped=$((skipped + 1));
  elif [ $status -eq 0 ]; then passed=$((passed + 1));
  else failed+=("$name"); fi
}

say "packages"
examples/install-packages.sh
mkdir -p build
export QUIRE_MODEL=${QUIRE_MODEL:-$(examples/get-model.sh smollm2 | tail -n 1)}
echo "model $QUIRE_MODEL; seed $seed from commit $commit"

say "build and test, gcc"
configure build -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=gcc
build build
suite build -j "$jobs"

say "house: cases by name, CUDA compile, benchmarks in tiny mode"
step cases tests/house/cases.sh
step nvcc tests/house/nvcc.sh
for bench in build/bench_*; do
  case "$bench" in *_teacher | *_tokenizer | *.txt) continue ;; esac # these answer the references below
  step "$(basename "$bench")" sh -c "$bench --tiny >$bench.txt || { cat $bench.txt; exit 1; }"
done

say "references and bit equality, a part of each (tests/long.sh runs them in full)"
step tokenizer tests/oracle/tokenizer.sh build 2000
step chunk tests/oracle/chunk.sh build 40
step matrix tests/program/matrix.sh build 6 "$seed"

say "the program through its real edges"
step program tests/program/run.sh build

if [ "$quick" != "--quick" ]; then
  say "bits, clang (which builds all the rest below, for TSan)"
  configure build-clang -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang
  build build-clang $(cd build-clang && ctest -N -L bits | sed -nE 's/^ +Test +#[0-9]+: (.*)$/test_\1/p')
  suite build-clang -j "$jobs" -L bits
  say "purity of the actors"
  step purity tests/house/purity.sh
  say "ASan and UBSan"
  configure build-asan -DCMAKE_C_COMPILER=gcc -DQR_SANITIZE=address,undefined
  build build-asan
  ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 suite build-asan -j "$jobs" -LE slow
  say "TSan"
  configure build-tsan -DCMAKE_C_COMPILER=clang -DQR_SANITIZE=thread
  build build-tsan
  TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp halt_on_error=1" suite build-tsan -j "$jobs" -LE 'slow|one_thread'
  say "fuzz, 20 s each"
  step fuzz tests/fuzz/run.sh 20
  say "mutants"
  step mutants tests/mutants/run.sh --quick 60
  step replayed-mutants tests/mutants/replay.sh build
  step simulated-mutants tests/mutants/sim.sh --quick 5
fi

say "result"
for name in "${failed[@]+"${failed[@]}"}"; do echo "FAILED $name"; done
echo "$passed passed, ${#failed[@]} failed, $skipped skipped"
[ ${#failed[@]} -eq 0 ]
