#!/usr/bin/env bash
# Records a concurrent run of the program of BUILD and replays it with a build that has seeded defects, each switched on in turn: the
# first difference of the edited actor must be named (tests/program/test_replay.py). usage: replay.sh [BUILD] [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build} folder=${2:-build-mutants}
cmake -S . -B "$folder" -DQR_MUTANTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
cmake --build "$folder" -j "$(nproc)" --target quire >"$folder/replay.log" 2>&1 || { tail -20 "$folder/replay.log"; exit 1; }
QUIRE_MUTANTS_BUILD=$(realpath "$folder") exec tests/program/run.sh "$build" test_replay.EditedActors
