#!/usr/bin/env bash
# The tokenizer and the chat template against Hugging Face tokenizers and Jinja2, line by line.   usage: tokenizer.sh BUILD [LINES]
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$(tests/oracle/venv.sh)
model=${QUIRE_MODEL:-$(examples/get-model.sh smollm2 | tail -n 1)}
exec "$venv/bin/python" tests/oracle/tokenizer.py "${1:-build}/bench_tokenizer" "$model" --lines "${2:-24000}"
