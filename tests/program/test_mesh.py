"""S6: the default (one process), one thread per actor, and two processes over loopback TCP with CURVE give the same answers. A node that
is killed ends the requests of the other with an error in time."""
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

from quire_program import MODEL, PATIENCE_S, QUIRE, Server, free_port, run

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


def stream(server, ask):
    """The choices of a streamed completion, as they come."""
    request = urllib.request.Request(server.base + "/v1/completions", json.dumps({**ask, "stream": True}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            line = line.decode().strip()
            if line == "data: [DONE]":
                return
            if not line.startswith("data: "):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            yield from event.get("choices", [])
    raise AssertionError("the stream ended without [DONE]")


class TwoProcesses:
    """edge and device0 of examples/deploy/edge-device.conf with fresh keys and ports."""

    names = ["device0"]
    model = MODEL
    options = []  # of every node
    device_options = []

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        with open(os.path.join(DEPLOY, "edge-device.conf")) as f:
            text = self.more(f.read())
        keys = os.path.join(self.folder.name, "keys")
        for node in ("edge", *self.names):
            line = subprocess.run([QUIRE, "keys", keys, node], capture_output=True, text=True, check=True).stdout
            key = re.search(r'public = "(.*)"', line)[1]
            text = re.sub(rf'(node = {node}\n    id = \d\n    public = ")[^\n]*"', lambda m: m[1] + key + '"', text)
        text = re.sub(r"127\.0\.0\.1:77\d\d", lambda m: f"127.0.0.1:{free_port()}", text)
        self.topology = os.path.join(self.folder.name, "mesh.conf")
        with open(self.topology, "w") as f:
            f.write(text)
        self.devices = {}
        for name in self.names:
            self.start_device(name)
        self.edge = Server("--topology", self.topology, "--node", "edge", *self.options, command=("node",), model=self.model)
        return self

    def more(self, text):
        return text

    @property
    def device(self):
        return self.devices["device0"]

    def start_device(self, name="device0"):
        options = [*self.options, *self.device_options]
        if name in self.devices:
            self.devices[name].__exit__(None, None, None)
        self.devices[name] = Server("--topology", self.topology, "--node", name, *options, command=("node",), wait=False, model=self.model)

    def __exit__(self, *why):
        for server in (self.edge, *self.devices.values()):
            server.__exit__(*why)
        self.folder.cleanup()


class ThreeProcesses(TwoProcesses):
    """The same edge with two devices."""

    names = ["device0", "device1"]

    def more(self, text):
        device = text[text.index("node = device0") : text.index("link\n")]
        second = device.replace("device0", "device1").replace("id = 2", "id = 3").replace(":7701", ":7703").replace(":7702", ":7704")
        return text.replace("link\n", second + "link\n") + "link\n    connect = edge\n    listen = device1\n"

    def busiest(self, ticks=8):
        """The device that computes: whose process uses so much more time of the CPU than the other."""

        def used(name):
            with open(f"/proc/{self.devices[name].process.pid}/stat") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])

        before = {name: used(name) for name in self.names}
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            least, most = sorted(self.names, key=lambda name: used(name) - before[name])
            if used(most) - before[most] >= used(least) - before[least] + ticks:
                return most
            time.sleep(0.02)
        raise AssertionError("neither device computes")


class Mesh(unittest.TestCase):
    def test_S6_same_answers_in_every_topology(self):
        with Server() as server:
            wanted = answers(server)
        with Server("--topology", os.path.join(DEPLOY, "one-thread-each.conf")) as server:
            self.assertEqual(answers(server), wanted)
        with TwoProcesses() as mesh:
            self.assertEqual(answers(mesh.edge), wanted)
            words = ["node", "--topology", mesh.topology, "--node", "device0", "--model", mesh.model, "--store", os.path.join(mesh.folder.name, "second")]
            second = run(*words, check=False)  # of the same node: the error says which endpoints are taken
            self.assertNotEqual(second.returncode, 0)
            self.assertRegex(second.stderr, r"cannot listen on tcp://127\.0\.0\.1:\d+")
            self.assertEqual(mesh.edge.stop(), 0)
            self.assertEqual(mesh.device.stop(), 0)

    def test_S6_killed_device_ends_requests_with_an_error_and_comes_back(self):
        with TwoProcesses() as mesh:
            got = {}

            def ask():
                got["answer"] = mesh.edge.post("/v1/completions", {"prompt": "word " * 200, "max_tokens": 2000, "ignore_eos": True})

            thread = threading.Thread(target=ask)
            thread.start()
            mesh.edge.settle("quire_lanes_open", 1)
            mesh.device.process.kill()
            thread.join(PATIENCE_S)
            self.assertIn("answer", got)
            status, answer = got["answer"]
            self.assertEqual(status, 503, answer)
            self.assertEqual(answer["error"]["type"], "server_error")
            mesh.edge.wait_ready(status=503)
            mesh.device.process.wait(PATIENCE_S)
            mesh.start_device()
            mesh.edge.wait_ready()
            self.assertEqual(mesh.edge.complete(prompt="hello", max_tokens=2)["usage"]["completion_tokens"], 2)

    def test_I3_S6_stream_continues_after_its_worker_is_lost(self):
        """Greedy and seeded sampling: the device that runs the stream is killed mid-answer, the other one goes on, the client sees one
        stream with the tokens, texts and log probabilities of an undisturbed run."""
        asks = [
            {"prompt": "Once upon a time there was a", "max_tokens": 400, "ignore_eos": True, "temperature": 0, "logprobs": 1},
            {"prompt": "Once upon a time there was a", "max_tokens": 400, "ignore_eos": True, "temperature": 0.9, "seed": 7, "logprobs": 1},
        ]
        with Server() as server:
            wanted = [server.complete(**ask)["choices"][0] for ask in asks]
        with ThreeProcesses() as mesh:
            for number, (ask, want) in enumerate(zip(asks, wanted)):
                mesh.edge.settle("quire_peers_up", 4)  # the edge hears both devices, each of them the edge
                text, tokens, logprobs, finish, killed = "", [], [], None, None
                for choice in stream(mesh.edge, ask):
                    text += choice["text"]
                    if choice.get("logprobs"):
                        tokens += choice["logprobs"]["tokens"]
                        logprobs += choice["logprobs"]["token_logprobs"]
                    finish = choice["finish_reason"] or finish
                    if killed is None and len(tokens) >= 30:
                        killed = mesh.busiest()
                        self.assertLess(len(tokens), 300, "the answer was nearly over before anything was killed")
                        mesh.devices[killed].process.kill()
                self.assertIsNotNone(killed)
                self.assertEqual(tokens, want["logprobs"]["tokens"])
                self.assertEqual(logprobs, want["logprobs"]["token_logprobs"])
                self.assertEqual(text, want["text"])
                self.assertEqual(finish, "length")
                self.assertGreater(mesh.edge.metrics()["quire_retries_total"], number)
                mesh.devices[killed].process.wait(PATIENCE_S)
                mesh.start_device(killed)

    def test_I3_S6_stream_continues_while_its_worker_is_frozen(self):
        """A device that is frozen and wakes up later: its late tokens change nothing, and it gives its pages back."""
        ask = {"prompt": "Once upon a time there was a", "max_tokens": 200, "ignore_eos": True, "temperature": 0.9, "seed": 9, "logprobs": 1}
        with Server() as server:
            want = server.complete(**ask)["choices"][0]
        with ThreeProcesses() as mesh:
            mesh.edge.settle("quire_peers_up", 4)
            tokens, frozen = [], None
            for choice in stream(mesh.edge, ask):
                tokens += choice["logprobs"]["tokens"] if choice.get("logprobs") else []
                if frozen is None and len(tokens) >= 20:
                    frozen = mesh.devices[mesh.busiest()].process
                    frozen.send_signal(signal.SIGSTOP)
            frozen.send_signal(signal.SIGCONT)
            self.assertEqual(tokens, want["logprobs"]["tokens"])
            mesh.edge.settle("quire_peers_up", 4)
            self.assertGreater(mesh.edge.metrics()["quire_retries_total"], 0)
            mesh.edge.settle("quire_worker_requests_open", 0)
            mesh.edge.settle("quire_lanes_open", 0)
            pages = mesh.edge.drop_cache()
            self.assertEqual(pages["pages_free"], pages["pages_pool"])

    def test_S6_killed_edge_gives_its_pages_back(self):
        with TwoProcesses() as mesh:
            body = json.dumps({"prompt": "word " * 200, "max_tokens": 2000, "ignore_eos": True})
            client = subprocess.Popen(["curl", "-s", "-o", "/dev/null", "-d", body, mesh.edge.base + "/v1/completions"])
            mesh.edge.settle("quire_lanes_open", 1)
            mesh.edge.process.kill()
            mesh.edge.process.wait(PATIENCE_S)
            client.wait(PATIENCE_S)
            edge = Server("--topology", mesh.topology, "--node", "edge", command=("node",))
            with edge:
                edge.settle("quire_lanes_open", 0)
                edge.settle("quire_worker_requests_open", 0)
                pages = edge.drop_cache()
                self.assertEqual(pages["pages_free"], pages["pages_pool"])


if __name__ == "__main__":
    unittest.main()
