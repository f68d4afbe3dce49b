#!/usr/bin/env bash
# Proves that the portable kernels compile as CUDA: every source with the cuda dialect, to a cubin, with the flags the bits need.
# Without nvcc: skipped (77).
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v nvcc >/dev/null || { echo "skipped: no nvcc on this machine"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for kernel in kernels/portable/*.k; do
  name=$(basename "$kernel" .k)
  [ "$name" = common ] && continue
  cat kernels/dialect/cuda.h kernels/portable/common.k "$kernel" >"$scratch/$name.cu"
  nvcc -fmad=false -prec-div=true -prec-sqrt=true -diag-suppress 177 -arch=sm_80 -cubin -o "$scratch/$name.cubin" "$scratch/$name.cu"
  for entry in $(grep -oE '^QR_ENTRY\([a-z_]+\)' "$kernel" | sed -E 's/.*\(([a-z_]+)\)/\1/'); do
    grep -q "qr_$entry" "$scratch/$name.cubin" || { echo "nvcc: $entry is missing in $name"; exit 1; }
  done
  echo "nvcc: $name compiled"
done
