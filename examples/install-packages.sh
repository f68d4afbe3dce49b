#!/usr/bin/env bash
# Installs what Quire is built and tested with (Debian 12 or Ubuntu). Does nothing when everything is there.
set -euo pipefail
packages=(build-essential cmake pkg-config libczmq-dev libzmq3-dev libmsgpack-dev libmicrohttpd-dev libjansson-dev libpcre2-dev
  libutf8proc-dev libleveldb-dev libxxhash-dev libssl-dev libcmocka-dev ocl-icd-opencl-dev opencl-headers pocl-opencl-icd clang libclang-rt-14-dev python3 python3-pip
  python3-venv curl ca-certificates unzip)
apt-cache show libclang-rt-14-dev >/dev/null 2>&1 || packages=("${packages[@]/libclang-rt-14-dev/}")
missing=()
for package in "${packages[@]}"; do
  [ -n "$package" ] || continue
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "packages: all installed"
  exit 0
fi
echo "packages: installing ${missing[*]}"
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "packages: run as root, or install sudo" >&2; exit 1; }
  sudo=(sudo)
fi
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "packages: done"
