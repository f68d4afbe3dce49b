"""S8, second half: while a 4,096-token prompt is computed, /readyz, an offer and a cancel are still answered. Prints medians; the goal of
20 ms is judged by the reader of tests/RESULTS.md, a test only demands that nothing waits for the prefill to end."""
import json
import os
import re
import socket
import statistics
import tempfile
import time
import unittest

from quire_program import PATIENCE_S, Server, run


def post(server, body):
    s = socket.create_connection(("127.0.0.1", server.port))
    data = json.dumps(body).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return s


class Latency(unittest.TestCase):
    def test_S8_answers_during_a_long_prefill(self):
        ready, took = [], []
        with tempfile.TemporaryDirectory() as folder:
            with Server("--record", folder) as server:
                for round_ in range(4 if os.environ.get("QUIRE_FULL") else 1):
                    long_one = post(server, {"prompt": [(i * 7919 + round_) % 40000 + 20 for i in range(4096)], "max_tokens": 1, "temperature": 0})
                    before = server.settle("quire_lanes_open", 1)["quire_prefill_rows_total"]
                    start = time.monotonic()
                    while time.monotonic() < start + PATIENCE_S:
                        begin = time.monotonic()
                        self.assertEqual(server.get("/readyz")[0], 200)
                        ready.append(time.monotonic() - begin)
                        short = post(server, {"prompt": [5, 6, 7], "max_tokens": 500, "ignore_eos": True})
                        time.sleep(0.03)
                        short.close()
                        time.sleep(0.02)
                        if server.metrics()["quire_prefill_rows_total"] - before >= 3500:
                            break
                    took.append(time.monotonic() - start)
                    long_one.settimeout(PATIENCE_S)
                    self.assertIn(b"200", long_one.recv(100))
                    long_one.close()
                    server.settle("quire_lanes_open", 0)
                self.assertEqual(server.stop(), 0)
            times = {}
            for at, name, request in re.findall(r"^\[([0-9.]+)\] (\w+) .*?request_id=(\d+)", run("tap", folder, "--actor", "router").stdout, re.M):
                times.setdefault((name, request), float(at))
            offers = [t - times["place", r] for (n, r), t in times.items() if n == "offer_accepted"]
            cancels = [t - times["place_cancel", r] for (n, r), t in times.items() if n == "offer_cancelled"]
        self.assertGreater(len(ready), 8)
        self.assertGreater(len(offers), 8)
        self.assertGreater(len(cancels), 8)
        for name, values in (("/readyz", ready), ("offer", offers), ("cancel", cancels)):
            print(f"{name}: median {1000 * statistics.median(values):.1f} ms, most {1000 * max(values):.1f} ms of {len(values)}, during {len(took)} prefills of 4,096 tokens")
        self.assertLess(statistics.median(ready), min(took) / 2)


if __name__ == "__main__":
    unittest.main()
