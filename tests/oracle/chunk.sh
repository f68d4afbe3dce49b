#!/usr/bin/env bash
# Chunk files against an independent writer and reader in Python: the example of store/FORMAT.md, the vectors of the unit tests, and N
# seeded files each way.   usage: chunk.sh BUILD [N]
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(tests/oracle/venv.sh)
"$venv/bin/python" tests/oracle/chunk.py check store/FORMAT.md
"$venv/bin/python" tests/oracle/chunk.py vectors | cmp - tests/unit/chunk_vectors.h
"$venv/bin/python" tests/oracle/chunk.py both "${1:-build}" "${2:-40}"
