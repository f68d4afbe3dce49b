#!/usr/bin/env bash
# Makes the references' Python environment once and prints its folder.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$PWD/.venv-oracle
packages="numpy==2.4.6 gguf==0.19.0 tokenizers==0.23.3 jinja2==3.1.6 xxhash==4.1.0"
if [ "$(cat "$venv/ready" 2>/dev/null)" != "$packages" ]; then
  python3 -m venv "$venv" >&2
  "$venv/bin/pip" install --quiet --disable-pip-version-check $packages >&2
  printf '%s\n' "$packages" >"$venv/ready"
fi
echo "$venv"
