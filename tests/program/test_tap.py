"""S10: a recorded, scripted run shows every conversation that exists, and a decode step is five messages at any number of lanes."""
import json
import os
import re
import socket
import tempfile
import threading
import unittest

from quire_program import MODEL, Server, run

CONVERSATIONS = """
request_submit request_deltas request_finished request_cancel text_encode text_encoded place place_ended place_cancel offer offer_accepted
offer_cancel offer_cancelled tokens tokens_taken submit step_tokens ended submit_cancel pages_reserve pages_granted rows_committed route_release
route_released cache_drop cache_dropped lane_open lane_opened lane_close lane_closed batch_run batch_done observation probe probe_done metrics_read
metrics start stop drain pages_wait request_refused
""".split()


class Tap(unittest.TestCase):
    def test_S10_every_conversation_and_five_messages_a_step(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("--record", folder, "--context", 512) as server:
                self.script(server)
                self.assertEqual(server.stop(), 0)
            summary = run("tap", folder, "--summary").stdout
            counts = {}
            for messages, _, _, sender, receiver, name in re.findall(r"^ *(\d+) +(\d+) +([0-9.]+) +(\w+) +(\w+) +(\w+)", summary, re.M):
                counts[name] = counts.get(name, 0) + int(messages)
            self.assertEqual([name for name in CONVERSATIONS if name not in counts], [])
            batches = counts["batch_run"]
            self.assertEqual(counts["batch_done"], batches)
            self.assertLessEqual(counts["rows_committed"], batches)
            self.assertLessEqual(counts["step_tokens"], batches)
            # tokens goes worker to router and router to gateway; ends of requests may need one more
            tokens = int(re.search(r"^ *(\d+) .* worker +router +tokens$", summary, re.M)[1])
            self.assertLessEqual(tokens, counts["step_tokens"] + counts["ended"])
            one = run("tap", folder, "--actor", "scheduler", "--type", "submit").stdout
            self.assertGreater(len(one.splitlines()), 8)
            self.assertTrue(all(" submit " in line for line in one.splitlines()))

    def script(self, server):
        body = {"prompt": "Count: one, two, three", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        threads = [threading.Thread(target=server.complete, kwargs={**body, "prompt": body["prompt"] + f" {i}"}) for i in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        server.complete(**{**body, "stop": [" "]})
        # Two requests with one long prompt: the second waits for the first to compute the shared rows.
        for turn in range(3):  # the first may be done before the second is there, but not every time
            shared = {"prompt": [(i * 7919 + turn) % 40000 + 20 for i in range(500)], "max_tokens": 2, "temperature": 0}
            threads = [threading.Thread(target=server.complete, kwargs=shared) for _ in range(3)]
            server.settle("quire_lanes_open", 0)
            [t.start() for t in threads]
            [t.join() for t in threads]
        self.assertEqual(server.post("/v1/completions", {"prompt": "word " * 600, "max_tokens": 2})[0], 400)
        server.settle("quire_requests_open", 0)
        text = json.dumps({**body, "max_tokens": 400}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as client:  # it goes while its answer is computed
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
            server.settle("quire_lanes_open", 1)
        server.settle("quire_requests_open", 0)
        server.settle("quire_lanes_open", 0)
        server.drop_cache()


if __name__ == "__main__":
    unittest.main()
