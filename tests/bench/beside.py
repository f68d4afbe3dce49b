"""Decoding beside saturated restore and checkpoint. A stream decodes alone and, in turns with that, while two clients restore chunk chains
from files without a pause and the stream's own rows are captured; with 1 compute thread, and with 2 over several shares of transfer_duty.
The clients' requests fail by the switch fail_over_rows when their rows are there, so that they compute nothing beside the stream.
A stream alone is always the same one, whose rows are durable. Times are printed with the bars, met or missed, and never judged.
usage: beside.py QUIRE MODEL [ROUNDS] [TOKENS]"""
import json
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import tempfile
import time

os.environ["QUIRE_BUILD"] = os.path.dirname(os.path.realpath(sys.argv[1]))
os.environ["QUIRE_MODEL"] = os.path.realpath(sys.argv[2])
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program"))
from quire_program import Server  # noqa: E402  (reads the environment)

ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 3
TOKENS = int(sys.argv[4]) if len(sys.argv) > 4 else 320  # of the stream, more than a chunk: each phase captures
DUTY = 25  # the default
ROWS, CHAINS, CHUNK, OVER, WARM = 1024, 4, 256, 64, 16
POOL = ["--pages", 184]  # of 16 rows: two chains and the stream fit, all chains do not, so that every turn restores


def chain(number):
    return [(i * 7919 + number * 101) % 250 + 3 for i in range(ROWS + OVER + 16)]


def stream(port, salt, tokens):
    """Milliseconds between the tokens of a stream, the first ones left out."""
    body = {"prompt": [(i * 31 + salt * 7) % 250 + 3 for i in range(8)] + [salt % 199 + 40, salt // 199 % 199 + 40], "max_tokens": tokens,
            "temperature": 0, "ignore_eos": True, "stream": True}
    text = json.dumps(body).encode()
    times, rest = [], b""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        while piece := s.recv(1 << 16):
            now = time.monotonic()
            count = (rest + piece).count(b"data: {") - rest.count(b"data: {")
            rest = (rest + piece)[-2000:]
            times += [now] * count
    assert len(times) >= tokens * 0.9, (len(times), rest[-400:])
    return [(b - a) * 1e3 for a, b in zip(times[WARM:], times[WARM + 1:])]


def restoring(port, first, step, stop):
    """One client: restores chain after chain until told to stop. Its requests are made before: it shares the cores with the stream."""
    asks = []
    for number in range(CHAINS):
        body = json.dumps({"prompt": chain(number), "max_tokens": 1}).encode()
        asks.append(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    number = first
    while not stop.is_set():
        with socket.create_connection(("127.0.0.1", port), timeout=120) as s:
            s.sendall(asks[number % CHAINS])
            answer = b""
            while piece := s.recv(1 << 16):
                answer += piece
        assert b'"error"' in answer, answer[-400:]
        number += step


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def beside(server, salt):
    """The stream's gaps, and what was restored and captured meanwhile: rows and MB a second, chunks."""
    stop = multiprocessing.Event()
    clients = [multiprocessing.Process(target=restoring, args=(server.port, i, 2, stop)) for i in range(2)]
    for c in clients:
        c.start()
    time.sleep(0.3)
    before, begin = server.metrics(), time.monotonic()
    gaps = stream(server.port, salt, TOKENS)
    after, seconds = server.metrics(), time.monotonic() - begin
    stop.set()
    for c in clients:
        c.join()
    moved = {k: after[k] - before[k] for k in after}
    return gaps, moved, seconds


def measure(store, threads, duty):
    """Over the rounds: p50 and p99 alone and beside, medians of their ratios, and what moved."""
    rows = []
    with Server("--store", store, "--threads", threads, "--transfer-duty", duty, "--fail-over-rows", OVER, *POOL) as server:
        stream(server.port, 1, TOKENS)  # everything once: the alone stream's rows are durable from then on, and the files trusted
        beside(server, 1)
        for i in range(ROUNDS):
            alone = stream(server.port, 1, TOKENS)
            gaps, moved, seconds = beside(server, 1000 * threads + 100 * duty + i)
            rows.append({"a50": percentile(alone, 0.5), "a99": percentile(alone, 0.99), "b50": percentile(gaps, 0.5), "b99": percentile(gaps, 0.99),
                         "mb": moved["quire_restored_bytes_total"] / 1e6 / seconds, "rows": moved["quire_restored_rows_total"] / seconds,
                         "captured": moved["quire_captured_bytes_total"] / 1e6 / seconds})
        server.stop()
    median = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
    median["i50"] = statistics.median(r["b50"] / r["a50"] - 1 for r in rows)
    median["i99"] = statistics.median(r["b99"] / r["a99"] - 1 for r in rows)
    return median


def prepare(store):
    """Makes the chains durable; seconds that computing one took, by threads."""
    took = {}
    with tempfile.TemporaryDirectory() as folder:
        for threads, where in ((1, folder), (2, store)):
            with Server("--store", where, "--threads", threads, *POOL) as server:
                server.complete(prompt=[5, 6, 7], max_tokens=2)
                seconds = []
                for number in range(CHAINS if where == store else 1):
                    begin = time.monotonic()
                    server.complete(prompt=chain(number)[:ROWS], max_tokens=1)
                    seconds.append(time.monotonic() - begin)
                    server.settle("quire_captures_open", 0, 60)
                assert server.metrics()["quire_captured_rows_total"] >= len(seconds) * (ROWS - CHUNK)
                took[threads] = statistics.median(seconds)
                server.stop()
    return took


def bar(text, value, fine):
    print(f"bar: {text}: {value}  {'met' if fine else 'missed'}")


def main():
    with open("/proc/cpuinfo") as f:
        cpu = next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), platform.machine())
    print(f"{os.path.basename(sys.argv[2])}, {ROUNDS} rounds of {TOKENS} tokens alone and beside in turns, medians; {cpu}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; files in the page cache")
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        took = prepare(store)
        print(f"{ROWS} rows computed by nothing else: 1 thread {took[1] * 1e3:.0f} ms, 2 threads {took[2] * 1e3:.0f} ms")
        print("threads duty |  alone p50    p99 | beside p50    p99 ms |  more p50    p99 | restored MB/s  rows/s  ms a chain | captured MB/s | faster than computing")
        seen = {}
        for threads, duty in ((1, DUTY), (2, 5), (2, 10), (2, DUTY), (2, 50)):
            m = seen[threads, duty] = measure(store, threads, duty)
            m["ms"] = ROWS / max(m["rows"], 1e-9) * 1e3
            m["faster"] = took[threads] * 1e3 / m["ms"]
            print(f"{threads:7} {duty:3}% | {m['a50']:10.2f} {m['a99']:6.2f} | {m['b50']:10.2f} {m['b99']:6.2f}    | {m['i50']:8.0%} {m['i99']:6.0%} |"
                  f" {m['mb']:13.0f} {m['rows']:7.0f} {m['ms']:11.0f} | {m['captured']:13.1f} | {m['faster']:.1f} times", flush=True)
        one, two = seen[1, DUTY], seen[2, DUTY]
        bar("1 thread, p99 between tokens grows by at most 15 %", f"{one['i99']:.0%}", one["i99"] <= 0.15)
        bar(f"2 threads, duty {DUTY} %, p50 grows by at most 25 %", f"{two['i50']:.0%}", two["i50"] <= 0.25)
        bar(f"2 threads, duty {DUTY} %, restoring is at least 5 times faster than computing", f"{two['faster']:.1f}", two["faster"] >= 5)


if __name__ == "__main__":
    main()
