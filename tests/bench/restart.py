"""Time to the first token of a prompt: cold, restored by a server that has just started (its files are opened for the first time since it
began), and restored again by the same server (files trusted). Answers must be equal; times are printed and never judged.
usage: restart.py QUIRE MODEL [TOKENS] [ROUNDS]"""
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import urllib.request

os.environ["QUIRE_BUILD"] = os.path.dirname(os.path.realpath(sys.argv[1]))
os.environ["QUIRE_MODEL"] = os.path.realpath(sys.argv[2])
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
from quire_program import Server  # noqa: E402  (reads the environment)

tokens = int(sys.argv[3]) if len(sys.argv) > 3 else 2048
rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
prompt = [(i * 7919) % 250 + 3 for i in range(tokens + 1)]


def first_token(server):
    """Milliseconds to the first event, the tokens and their log probabilities, and the reused rows."""
    ask = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(server.base + "/v1/completions", json.dumps(ask).encode(), {"Content-Type": "application/json"})
    begin, first, said, usage = time.monotonic(), None, [], None
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            line = line.decode().strip()
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if first is None and event["choices"]:
                first = (time.monotonic() - begin) * 1e3
            said += [(c["logprobs"]["tokens"], c["logprobs"]["token_logprobs"]) for c in event["choices"] if c.get("logprobs")]
            usage = event.get("usage") or usage
    return first, said, usage["prompt_tokens_details"]["cached_tokens"]


times = {"cold": [], "first open": [], "trusted": []}
answers = []
with tempfile.TemporaryDirectory() as folder:
    store = os.path.join(folder, "store")
    for _ in range(rounds):
        with Server("--no-store") as server:
            server.complete(prompt=[5, 6, 7], max_tokens=2)
            ms, said, cached = first_token(server)
            assert cached == 0
            times["cold"].append(ms)
            answers.append(said)
            server.stop()
    chunk = 256
    with Server("--store", store) as server:
        first_token(server)
        end = time.monotonic() + 60
        while server.metrics()["quire_captured_rows_total"] < tokens // chunk * chunk:
            assert time.monotonic() < end, "the prompt did not become durable"
            time.sleep(0.05)
        server.process.kill()
        server.process.wait()
    for _ in range(rounds):
        with Server("--store", store) as server:
            server.complete(prompt=[5, 6, 7], max_tokens=2)
            for kind in ("first open", "trusted"):
                ms, said, cached = first_token(server)
                assert cached == tokens // chunk * chunk, (kind, cached)
                times[kind].append(ms)
                answers.append(said)
                server.drop_cache()
            restored = server.metrics()
            server.stop()
assert all(said == answers[0] for said in answers), "answers differ"

with open("/proc/cpuinfo") as f:
    cpu = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())
print(f"{os.path.basename(sys.argv[2])}, prompt of {tokens} + 1 tokens, {rounds} rounds; {cpu}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; files in the page cache")
cold = statistics.median(times["cold"])
for kind, ms in times.items():
    median = statistics.median(ms)
    print(f"time to first token, {kind:10}  median {median:8.1f} ms  (from {min(ms):.1f} to {max(ms):.1f})  {cold / median:5.1f} times faster than cold")
moved, seconds = restored["quire_restored_bytes_total"], restored["quire_restore_seconds_total"]
print(f"moved in the last round {moved / 1e6:.1f} MB in {seconds * 1e3:.1f} ms of uploads: {moved / max(seconds, 1e-9) / 1e6:.0f} MB/s (bench_move prints the limit)")
