#!/usr/bin/env bash
# From nothing to an answer on a fresh Debian 12 or Ubuntu machine: installs packages, builds Quire, fetches SmolLM2-135M,
# serves it and asks it a question. Safe to run again; the second time it only serves and asks.
#   examples/quickstart.sh [--keep]     --keep: leave the server running on 127.0.0.1:8080
set -euo pipefail
cd "$(dirname "$0")/.."
keep=${1:-}
say() { printf '== %s\n' "$*"; }

say "1/4 packages"
examples/install-packages.sh
say "2/4 build"
cmake -S . -B build -DCMAKE_BUILD_TYPE=RelWithDebInfo >build.log 2>&1 || { cat build.log; exit 1; }
cmake --build build --target quire -j "$(nproc)" >>build.log 2>&1 || { tail -40 build.log; exit 1; }
rm -f build.log
echo "built: $PWD/build/quire"
say "3/4 model"
model=$(examples/get-model.sh smollm2 | tail -n 1)
echo "model: $model"

say "4/4 serve and ask"
port=${QUIRE_PORT:-8080}
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
  echo "port $port is in use; stop the program that listens there, or choose another one: QUIRE_PORT=8081 examples/quickstart.sh" >&2
  exit 1
fi
log=$(mktemp)
build/quire serve --model "$model" --listen "127.0.0.1:$port" >"$log" 2>&1 &
server=$!
cleanup() { kill "$server" 2>/dev/null && wait "$server" 2>/dev/null || true; rm -f "$log"; }
[ "$keep" = "--keep" ] || trap cleanup EXIT
for _ in $(seq 300); do
  curl -fs -o /dev/null "http://127.0.0.1:$port/readyz" && break
  kill -0 "$server" 2>/dev/null || { cat "$log"; echo "the server stopped; see above" >&2; exit 1; }
  sleep 0.2
done
question='What is the capital of France?'
echo "question: $question"
curl -fsS "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' \
  -d "{\"messages\":[{\"role\":\"user\",\"content\":\"$question\"}],\"max_tokens\":40,\"temperature\":0}" |
  python3 -c 'import json,sys; a=json.load(sys.stdin); print("answer:  ", a["choices"][0]["message"]["content"].strip()); print("usage:   ", json.dumps(a["usage"]))'
[ "$keep" = "--keep" ] && echo "still serving on http://127.0.0.1:$port/v1 (process $server; stop it with: kill $server)"
exit 0
