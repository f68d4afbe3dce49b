#!/usr/bin/env bash
# Teacher-forced values against the numpy reference over 2,048 tokens (mean KL, perplexity, argmax).   usage: run.sh BUILD
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(tests/oracle/venv.sh)
model=${QUIRE_MODEL:-$(examples/get-model.sh smollm2 | tail -n 1)}
exec "$venv/bin/python" tests/oracle/reference.py check "$model" "${1:-build}/bench_teacher"
