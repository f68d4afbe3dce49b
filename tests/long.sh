#!/usr/bin/env bash
# Every Show at full size, a part each; writes tests/RESULTS.md with commit, machine and figures. Under 75 minutes in all on 2 quiet cores.
#   tests/long.sh           all parts
#   tests/long.sh S3 S8     these parts alone; their sections of RESULTS.md are replaced, the others stay
#                           with the commit they were run on, and those of another kind of processor beside them
set -uo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)
root=$PWD
folder=build
export QUIRE_MODEL
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

prepare() {
  examples/install-packages.sh || return 1
  QUIRE_MODEL=${QUIRE_MODEL:-$(examples/get-model.sh smollm2 | tail -n 1)}
  cmake -S . -B $folder -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=gcc >"$scratch/cmake.log" 2>&1 || { cat "$scratch/cmake.log"; return 1; }
  cmake --build $folder -j "$jobs" >"$scratch/build.log" 2>&1 || { tail -40 "$scratch/build.log"; return 1; }
}
tests() { (cd $folder && ctest --no-tests=error --output-on-failure --timeout 900 "$@") | grep -E 'Passed|Failed|Timeout|tests passed|\*\*\*'; return "${PIPESTATUS[0]}"; }
program() { tests/program/run.sh $folder "$@" 2>&1 | grep -vE '^[a-z_]+ = |^ready: '; return "${PIPESTATUS[0]}"; }
sanitized() { # folder, cmake options
  cmake -S . -B "$1" "${@:2}" >"$scratch/cmake.log" 2>&1 && cmake --build "$1" -j "$jobs" >"$scratch/build.log" 2>&1 || { tail -30 "$scratch/build.log"; return 1; }
}

S1() { # the newcomer's two commands, twice
  local begin
  for turn in first second; do
    begin=$SECONDS
    examples/quickstart.sh | tail -3 || return 1
    echo "quickstart, $turn time: $((SECONDS - begin)) s"
  done
  for turn in first second; do
    begin=$SECONDS
    tests/run.sh --quick >"$scratch/run.txt" 2>&1 || { tail -30 "$scratch/run.txt"; return 1; }
    tail -1 "$scratch/run.txt"
    echo "tests/run.sh --quick, $turn time: $((SECONDS - begin)) s"
  done
}
S2() { tests/oracle/run.sh $folder; } # values against independent references
S3() { tests/oracle/tokenizer.sh $folder; } # tokenizer against Hugging Face
S4() { tests -R '^(decoder|cpu|opencl_model)_test$' && tests/program/matrix.sh $folder; }
S5() { $folder/test_page_model_test --full && program test_clients; }
S6() { program test_mesh; }
S7() { tests/house/cases.sh; }
S8() { tests/bench/peer/run.sh $folder 5 && $folder/bench_step && $folder/bench_host && $folder/bench_codec && QUIRE_FULL=1 program test_latency; }
S9() {
  sanitized build-asan -DCMAKE_C_COMPILER=gcc -DQR_SANITIZE=address,undefined || return 1
  (cd build-asan && UBSAN_OPTIONS=halt_on_error=1 ctest --no-tests=error -j "$jobs" --timeout 900) | tail -4 || return 1
  sanitized build-tsan -DCMAKE_C_COMPILER=clang -DQR_SANITIZE=thread || return 1
  (cd build-tsan && TSAN_OPTIONS="suppressions=$root/tests/tsan.supp halt_on_error=1" ctest --no-tests=error -j "$jobs" --timeout 900 -LE one_thread) | tail -4 || return 1
  tests/fuzz/run.sh 60
}
S10() { tests/house/purity.sh && program test_tap && program test_edges.Generate; }
S11() { program test_reuse && python3 tests/bench/tiles.py $folder/quire "$QUIRE_MODEL"; }
S12() { tests/mutants/run.sh; }
# The simulated world (a letter of its own: W).
halves() { # profile, seeds: two processes, half of the seeds each
  $folder/quire simulate --profile "$1" --seeds "1-$(($2 / 2))" >"$scratch/half.txt" &
  local other=$! status=0
  $folder/quire simulate --profile "$1" --seeds "$(($2 / 2 + 1))-$2" || status=1
  wait "$other" || status=1
  cat "$scratch/half.txt"
  return $status
}
W1() { halves mixed 10000; }                                   # seeds
W2() { tests/mutants/sim.sh; }                                 # seeded defects, all caught within 500 seeds
W3() { $folder/quire simulate --profile large --seeds 1; }     # 1,023 workers, ten minutes at 200 requests a second
W4() { # nodes and single units that end and begin anew, 20,000 times and more
  local one status=0 ends
  for one in "process 4000" "catalog 2000" "failover 1800" "store 600"; do
    halves ${one% *} ${one#* } >>"$scratch/ends.txt" || status=1
  done
  cat "$scratch/ends.txt"
  ends=$(($(sed -nE 's/.* ([0-9]+) nodes and ([0-9]+) units ended.*/\1+\2/p' "$scratch/ends.txt" | paste -sd+)))
  echo "nodes and units that ended and began anew: $ends"
  [ $status -eq 0 ] && [ "$ends" -ge 20000 ]
}
W5() { tests -R '^record_test$' && program test_replay && tests/mutants/replay.sh $folder; } # a recorded run replays byte for byte; an edited actor shows
W6() { program test_mesh; }                                    # a stream continues after its worker is lost

# Durable state (D).
D1() { # damaged files, failing calls, kills, on the disk; both directions against the independent reader; rates
  TMPDIR=$scratch $folder/test_chunk_faults_test 100 && TMPDIR=$scratch $folder/test_chunk_kill_test 100 &&
    tests/oracle/chunk.sh $folder 300 && (cd "$scratch" && "$root/$folder/bench_chunk")
}

D2() { # the catalog: its facts over a real log against replicas, damage of every file, kills at every point of log, snapshot, cut and facts
  tests -R '^(log|facts|facts_damage|catalog)_test$' && TMPDIR=$scratch $folder/test_facts_kill_test 20
}

full() { # durable state of the real program, with the full counts
  local names=()
  for name in "$@"; do names+=("test_durable.$name"); done
  QUIRE_FULL=1 program "${names[@]}"
}
D3() { full Restart Settings TwoNodes && python3 tests/bench/restart.py $folder/quire "$QUIRE_MODEL" && $folder/bench_move 5 2048; } # answers after kill -9, and by other pages, tiles, threads
D4() { $folder/test_fault_table_test --full && full Damage Lost Disk; } # whatever is done to the files: no wrong token
D5() { full Kill; }                         # kill -9 and graceful stops while chunks are captured
D6() { full Bound; }                        # ten minutes at the store's bound
D7() { full Apart; }                        # tenants, salts, two servers
D8() { full Recorded; }                     # a run with a store replays byte for byte
D9() { QUIRE_FULL=1 program test_pressure; } # a quarter of the pages: later requests make room, their rows come back
D10() { python3 tests/bench/beside.py $folder/quire "$QUIRE_MODEL"; } # decoding beside saturated restore and checkpoint

commit=$(git rev-parse --short HEAD)
git diff --quiet || commit="$commit with changes"
vectors=scalar # which kernels ran: figures of one kind of processor say little of another
grep -qw avx2 /proc/cpuinfo && vectors=avx2
grep -qw avx512_vnni /proc/cpuinfo && vectors=avx512
section() { # part, state, seconds
  printf '## %s %s, %d s, commit %s, %s\n\n```\n%s\n```\n' "$1" "$2" "$3" "$commit" "$vectors" "$(sed -E 's/\x1b\[[0-9;]*m//g' "$scratch/$1.txt" | tail -60)" |
    sed -E "s#$PWD/?##g; s#/tmp/[A-Za-z0-9._/-]+#(scratch)#g; s#(^|[^A-Za-z0-9.:/_-])/(root|home|usr|opt|var|work)/[A-Za-z0-9._/-]*/#\\1#g"
}
older() { # part, pattern: its sections in tests/RESULTS.md whose heading fits
  awk -v name="$1" -v fits="$2" '/^## /{on = ($2 == name && $0 ~ fits)} on' tests/RESULTS.md | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}'
}
results() { # the sections just made, those of other parts, and those that another kind of processor made
  local part other
  echo "# Results of tests/long.sh"
  echo
  echo "Last run $(date -u +%Y-%m-%d) at commit $commit: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-), $jobs cores, $(awk '/MemTotal/{printf "%.0f GiB", $2/1048576}' /proc/meminfo). Each section names its own commit and kernels."
  for part in "${parts[@]}"; do
    echo
    if [ -f "$scratch/sections/$part.md" ]; then
      cat "$scratch/sections/$part.md"
      for other in scalar avx2 avx512; do
        [ $other = $vectors ] || older "$part" ", $other\$" | sed '1s/^/\n/'
      done
    elif [ -f tests/RESULTS.md ]; then
      older "$part" .
    fi
  done
}

parts=(S8 S1 S2 S3 S4 S5 S6 S7 S9 S10 S11 S12 W1 W2 W3 W4 W5 W6 D1 D2 D3 D4 D5 D6 D7 D8 D9 D10) # S8 first: it measures, and the machine is still cool and quiet
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=("${parts[@]}")
prepare || exit 1
bad=0
mkdir "$scratch/sections"
for part in "${wanted[@]}"; do
  begin=$SECONDS
  echo "== $part"
  if "$part" >"$scratch/$part.txt" 2>&1; then state=passed; else state=FAILED bad=$((bad + 1)); fi
  cat "$scratch/$part.txt"
  echo "== $part $state in $((SECONDS - begin)) s"
  section "$part" "$state" $((SECONDS - begin)) >"$scratch/sections/$part.md"
done
results >"$scratch/RESULTS.md" && cp "$scratch/RESULTS.md" tests/RESULTS.md
echo "$((${#wanted[@]} - bad)) passed, $bad failed"
[ $bad -eq 0 ]
