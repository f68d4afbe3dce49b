#!/usr/bin/env bash
# Bit equality over every setting, on a seeded tiny model.   usage: matrix.sh BUILD [HOW_MANY] [SEED]; a clang build beside it takes part
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath "${1:-build}")
builds=$build
[ -x build-clang/quire ] && builds=$build,$(realpath build-clang)
model=$(mktemp --suffix=.gguf)
trap 'rm -f "$model"' EXIT
"$build/tool_tiny_model" "$model" 3
cd tests/program
PYTHONDONTWRITEBYTECODE=1 python3 matrix.py "$model" "$builds" "${2:-all}" "${3:-1}"
