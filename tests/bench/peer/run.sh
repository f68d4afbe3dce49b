#!/usr/bin/env bash
# Quire beside llama.cpp, in turns, the same GGUF, the same threads: medians and ratios, for the
# model file and for a Q4_0 copy of it (the peer's fastest format). The peer is built once from its PyPI source
# package for this machine's AVX-512 VNNI (no AMX).   usage: run.sh BUILD [TURNS]
set -euo pipefail
cd "$(dirname "$0")/../../.."
build=${1:-build}
turns=${2:-5}
model=${QUIRE_MODEL:-$(examples/get-model.sh smollm2 | tail -n 1)}
venv=${XDG_CACHE_HOME:-$HOME/.cache}/quire/peer-0.3.36
if ! [ -f "$venv/ready" ]; then
  echo "peer: building llama.cpp once (10 to 15 minutes)"
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check numpy
  flags="-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DMTMD_BUILD=OFF"
  grep -q avx512_vnni /proc/cpuinfo && flags="$flags -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON"
  CMAKE_ARGS="$flags" "$venv/bin/pip" install --quiet --disable-pip-version-check --no-binary llama-cpp-python llama-cpp-python==0.3.36
  touch "$venv/ready"
fi
fast=$venv/$(basename "$model" .gguf).as-Q4_0.gguf
[ -f "$fast" ] || "$venv/bin/python" tests/bench/peer/requantise.py "$model" "$fast"
exec "$venv/bin/python" tests/bench/peer/compare.py "$build/quire" "$turns" "$fast" "$model"
