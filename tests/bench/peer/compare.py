"""Runs Quire and llama.cpp in turns and prints medians, spreads and ratios. Exit 1: a row where Quire is slower, or eight streams give
less than 2.5 times one stream. A row whose peer is below 75 % of the known figure of a reference machine is void (only said there).
usage: compare.py QUIRE TURNS MODEL..."""
import json
import os
import statistics
import subprocess
import sys

QUIRE, TURNS, MODELS = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
HERE = os.path.dirname(os.path.abspath(__file__))
THREADS = os.cpu_count()
DECODE = 64
# Tokens per second of llama.cpp (zen4 build, Q4_0, 2 threads) on the reference machine: two cores of a family 6 model 207 Xeon.
KNOWN = {"prefill_512": 674, "decode_16": 89, "decode_long": 36}


def quire(model):
    words = [QUIRE, "bench", "--model", model, "--threads", str(THREADS), "--repeats", "1", "--decode", str(DECODE), "--json"]
    out = json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout)
    rows = out["rows"]
    return {name: rate for name, rate in zip(("prefill_512", "decode_16", "decode_long", "streams_8"), (r["tokens_per_s"] for r in rows))}


def peer(model):
    words = [sys.executable, os.path.join(HERE, "llama.py"), model, str(THREADS), str(DECODE)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout)


def compare(model):
    """Prints the rows of one file. True: Quire was slower in one, or eight streams give too little."""
    ours, theirs, info = {}, {}, None
    for turn in range(TURNS):
        for name, rate in quire(model).items():
            ours.setdefault(name, []).append(rate)
        answer = peer(model)
        info = info or f"llama-cpp-python {answer['version']}: {answer['info']}"
        for name, rate in answer["rates"].items():
            theirs.setdefault(name, []).append(rate)
        print(f"{os.path.basename(model)}: turn {turn + 1} of {TURNS}", file=sys.stderr)
    print(f"{os.path.basename(model)}; peer {info}")
    print(f"{THREADS} threads, {TURNS} turns each, load {os.getloadavg()[0]:.1f}; tokens/s, median (least - most)")
    bad = False
    for name in ours:
        a, b = statistics.median(ours[name]), statistics.median(theirs[name])
        ratio = statistics.median(x / y for x, y in zip(ours[name], theirs[name]))
        void = name in KNOWN and max(theirs[name]) < 0.75 * KNOWN[name]
        print(f"{name:12} quire {a:8.1f} ({min(ours[name]):.1f} - {max(ours[name]):.1f})  peer {b:8.1f} ({min(theirs[name]):.1f} - {max(theirs[name]):.1f})"
              f"  ratio {ratio:5.2f}{'  peer below 75 % of ' + str(KNOWN[name]) + ': void' if void else ''}")
        bad |= ratio < 1
    gain = statistics.median(x / y for x, y in zip(ours["streams_8"], ours["decode_16"]))
    print(f"eight streams give {gain:.2f} times one stream")
    return bad or gain < 2.5


sys.exit(1 if any([compare(model) for model in MODELS]) else 0)
