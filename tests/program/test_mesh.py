"""S6: the default (one process), one thread per actor, and two processes over loopback TCP with CURVE give the same answers. A node that
is killed ends the requests of the other with an error in time."""
import json
import os
import re
import subprocess
import tempfile
import threading
import time
import unittest

from quire_program import MODEL, QUIRE, Server, free_port

HERE = os.path.dirname(os.path.abspath(__file__))
DEPLOY = os.path.join(HERE, "..", "..", "examples", "deploy")
ASKS = [
    {"prompt": "The three primary colours are", "max_tokens": 24, "temperature": 0, "logprobs": 1},
    {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0.9, "seed": 5, "logprobs": 1},
    {"prompt": [504, 3575, 282, 4649, 314] * 60, "max_tokens": 8, "temperature": 0, "logprobs": 1},
]


def answers(server):
    out = []
    for ask in ASKS:
        answer = server.complete(**ask)["choices"][0]
        out.append((answer["text"], answer["logprobs"]["tokens"], answer["logprobs"]["token_logprobs"], answer["finish_reason"]))
    return out


class TwoProcesses:
    """edge and device0 of examples/deploy/edge-device.conf with fresh keys and ports."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        with open(os.path.join(DEPLOY, "edge-device.conf")) as f:
            text = f.read()
        keys = os.path.join(self.folder.name, "keys")
        for node in ("edge", "device0"):
            line = subprocess.run([QUIRE, "keys", keys, node], capture_output=True, text=True, check=True).stdout
            key = re.search(r'public = "(.*)"', line)[1]
            text = re.sub(rf'(node = {node}\n    id = \d\n    public = ")[^\n]*"', lambda m: m[1] + key + '"', text)
        text = text.replace("127.0.0.1:7701", f"127.0.0.1:{free_port()}").replace("127.0.0.1:7702", f"127.0.0.1:{free_port()}")
        self.topology = os.path.join(self.folder.name, "mesh.conf")
        with open(self.topology, "w") as f:
            f.write(text)
        self.start_device()
        self.edge = Server("--topology", self.topology, "--node", "edge", command=("node",))
        return self

    def start_device(self):
        self.device = Server("--topology", self.topology, "--node", "device0", command=("node",), wait=False)

    def __exit__(self, *why):
        self.edge.__exit__(*why)
        self.device.__exit__(*why)
        self.folder.cleanup()


class Mesh(unittest.TestCase):
    def test_S6_same_answers_in_every_topology(self):
        with Server() as server:
            wanted = answers(server)
        with Server("--topology", os.path.join(DEPLOY, "one-thread-each.conf")) as server:
            self.assertEqual(answers(server), wanted)
        with TwoProcesses() as mesh:
            self.assertEqual(answers(mesh.edge), wanted)
            self.assertEqual(mesh.edge.stop(), 0)
            self.assertEqual(mesh.device.stop(), 0)

    def test_S6_killed_device_ends_requests_with_an_error_and_comes_back(self):
        with TwoProcesses() as mesh:
            got = {}

            def ask():
                got["answer"] = mesh.edge.post("/v1/completions", {"prompt": "word " * 200, "max_tokens": 2000, "ignore_eos": True})
                got["at"] = time.monotonic()

            thread = threading.Thread(target=ask)
            thread.start()
            mesh.edge.settle("quire_requests_open", 1)
            time.sleep(0.5)
            killed = time.monotonic()
            mesh.device.process.kill()
            thread.join(30)
            self.assertIn("answer", got)
            self.assertLess(got["at"] - killed, 5)
            status, answer = got["answer"]
            self.assertEqual(status, 503, answer)
            self.assertEqual(answer["error"]["type"], "server_error")
            self.assertEqual(mesh.edge.get("/readyz")[0], 503)
            mesh.device.process.wait()
            mesh.start_device()
            mesh.edge.wait_ready(60)
            self.assertEqual(mesh.edge.complete(prompt="hello", max_tokens=2)["usage"]["completion_tokens"], 2)

    def test_S6_killed_edge_gives_its_pages_back(self):
        with TwoProcesses() as mesh:
            body = json.dumps({"prompt": "word " * 200, "max_tokens": 2000, "ignore_eos": True})
            client = subprocess.Popen(["curl", "-s", "-o", "/dev/null", "-d", body, mesh.edge.base + "/v1/completions"])
            mesh.edge.settle("quire_lanes_open", 1)
            mesh.edge.process.kill()
            mesh.edge.process.wait()
            client.wait()
            edge = Server("--topology", mesh.topology, "--node", "edge", command=("node",))
            with edge:
                edge.settle("quire_lanes_open", 0)
                edge.settle("quire_worker_requests_open", 0)
                pages = edge.drop_cache()
                self.assertEqual(pages["pages_free"], pages["pages_pool"])


if __name__ == "__main__":
    unittest.main()
