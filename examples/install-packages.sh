#!/usr/bin/env bash
# Installs what Quire is built and tested with (Debian 12 or Ubuntu). Does nothing when everything is there.
set -euo pipefail
packages=(build-essential cmake pkg-config libczmq-dev libzmq3-dev libmsgpack-dev libmicrohttpd-dev libjansson-dev libpcre2-dev
  libutf8proc-dev libleveldb-dev libxxhash-dev libssl-dev libcmocka-dev ocl-icd-opencl-dev opencl-headers pocl-opencl-icd clang python3 python3-pip
  python3-venv curl ca-certificates unzip)
sudo=()
fetched=

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }
install() { # packages...; only those that are missing
  local missing=() package
  for package in "$@"; do installed "$package" || missing+=("$package"); done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "packages: installing ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "packages: run as root, or install sudo" >&2; exit 1; }
    sudo=(sudo)
  fi
  [ -n "$fetched" ] || "${sudo[@]}" apt-get update -qq
  fetched=yes
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

install "${packages[@]}"
# clang's sanitizer runtimes: a package of their own, of clang's version; where there is none they came with clang.
runtimes=libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev
if installed "$runtimes" || [ -n "$(apt-cache search --names-only "^$runtimes\$")" ]; then install "$runtimes"; fi
if [ -n "$fetched" ]; then echo "packages: done"; else echo "packages: all installed"; fi
