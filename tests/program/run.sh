#!/usr/bin/env bash
# Runs the program tests: the real program, its sockets and the official OpenAI client. usage: run.sh BUILD [unittest names]
set -euo pipefail
cd "$(dirname "$0")/../.."
export QUIRE_BUILD=${1:-build}
shift || true
export QUIRE_MODEL=${QUIRE_MODEL:-$(examples/get-model.sh smollm2 | tail -n 1)}
venv=$PWD/.venv-tests
if ! cmp -s tests/program/requirements.txt "$venv/ready"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r tests/program/requirements.txt
  cp tests/program/requirements.txt "$venv/ready"
fi
cd tests/program
export QUIRE_BUILD=$(cd ../.. && realpath "$QUIRE_BUILD")
if [ $# -eq 0 ]; then set -- discover -v -p 'test_*.py'; else set -- -v "$@"; fi
exec "$venv/bin/python" -m unittest "$@"
