"""A program in another language, made from messages/README.md alone, speaks to a real host over TCP (with and without CURVE): its answers are
the server's own."""
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "examples")
sys.path.insert(0, EXAMPLES)

import msgpack  # noqa: E402
import peer  # noqa: E402
from quire_program import PATIENCE_S, QUIRE, Server, free_port  # noqa: E402

PROMPTS = [[504, 3575, 282, 4649, 314], [(i * 7919) % 40000 + 20 for i in range(300)]]
LENGTH = 2  # QR_FINISH_LENGTH


class Device:
    """device0 of examples/deploy/python-peer.conf on a free port."""

    def __init__(self, curve):
        self.curve = curve

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        with open(os.path.join(EXAMPLES, "deploy", "python-peer.conf")) as f:
            text = f.read()
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        text, self.keys = text.replace("tcp://127.0.0.1:7711", self.endpoint), {}
        if self.curve:
            folder = os.path.join(self.folder.name, "keys")
            for node in ("python", "device0"):
                line = subprocess.run([QUIRE, "keys", folder, node], capture_output=True, text=True, check=True).stdout
                self.keys[node] = re.search(r'public = "(.*)"', line)[1]
                text = re.sub(rf"(node = {node}\n    id = \d\n)    insecure = 1", lambda m: m[1] + f'    public = "{self.keys[node]}"', text)
            self.secret = os.path.join(folder, "python.secret")
        topology = os.path.join(self.folder.name, "mesh.conf")
        with open(topology, "w") as f:
            f.write(text)
        self.server = Server("--topology", topology, "--node", "device0", "--context", 512, "--peer-down-ms", 20000, command=("node",), wait=False)
        return self

    def link(self):
        keys = {}
        if self.curve:
            with open(self.secret, "rb") as f:
                keys = {"secret": f.read().strip(), "server_key": self.keys["device0"].encode()}
        link = peer.Link(peer.Document(), self.endpoint, 1, 2, **keys)
        link.open(PATIENCE_S)
        return link

    def __exit__(self, *why):
        self.server.__exit__(*why)
        self.folder.cleanup()


def received(link, wanted):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        message = link.receive(0.2)
        if message and message[0] == wanted:
            return message[2]
    raise AssertionError(f"no {wanted}")


class PythonPeer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server("--context", 512) as server:
            cls.wanted = [server.complete(prompt=p, max_tokens=20, temperature=0, ignore_eos=True, return_token_ids=True)["choices"][0]["token_ids"]
                          for p in PROMPTS]
            cls.sampled = server.complete(prompt=PROMPTS[0], max_tokens=20, temperature=0.8, seed=5, return_token_ids=True)["choices"][0]["token_ids"]

    def conversation(self, curve):
        with Device(curve) as device:
            link = device.link()
            worker, router = link.document.address(2, 0, "worker"), link.document.address(1, 0, "router")
            link.say("probe", router, worker, probe_id=7)
            self.assertEqual(received(link, "probe_done"), {"probe_id": 7, "reason": 0})
            for prompt, wanted in zip(PROMPTS, self.wanted):
                pieces = []
                answer, finish = peer.generate(link, worker, prompt, 20, pieces.append)
                self.assertEqual((answer, finish), (wanted, LENGTH))
                self.assertEqual(sum(pieces, []), answer)
            answer, _ = peer.generate(link, worker, PROMPTS[0], 20, lambda tokens: None, temperature=0.8, seed=5)
            self.assertEqual(answer[: len(self.sampled)], self.sampled)
            self.cancel(link, router, worker)
            link.socket.close()
            words = ["--secret", device.secret, f"--server-key={device.keys['device0']}"] if curve else []
            words += ["--endpoint", device.endpoint, "--tokens", ",".join(map(str, PROMPTS[0])), "--max-tokens", "20"]
            shown = subprocess.run([sys.executable, os.path.join(EXAMPLES, "peer.py"), *words], capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertEqual(shown.stdout, "".join(f"{token}\n" for token in self.wanted[0]) + "finish 2\n")
            self.assertNotIn(" warn ", device.server.text())  # nothing it said broke a rule
            self.assertEqual(device.server.stop(), 0)

    def cancel(self, link, router, worker):
        """Offered, repeated, cancelled: each is answered, and the end comes in `tokens`."""
        offer = dict(request_id=99 << 16, attempt=1, generated_from=1, tokens=[504], max_tokens=400, top_p_bits=0x3F800000, ignore_eos=1)
        taken, finish, cancelled = 0, 0, False

        def hear(wanted):
            """The next message, tokens answered on the way: they may come before the repeated offer is."""
            nonlocal taken, finish
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end:
                message = link.receive(0.2)
                if message and message[0] == "tokens":
                    self.assertEqual(message[2]["request_ids"], [99 << 16])
                    taken, finish = max(taken, message[2]["indexes"][0] + message[2]["counts"][0]), finish or message[2]["finishes"][0]
                    link.say("tokens_taken", router, worker, request_ids=[99 << 16], attempts=[1], indexes=[taken])
                if message and message[0] in wanted:
                    return message
            raise AssertionError(f"none of {wanted}")

        for _ in range(2):
            link.say("offer", router, worker, **offer)
            self.assertEqual(hear(("offer_accepted",))[2], {"request_id": 99 << 16, "attempt": 1})
        link.say("offer_cancel", router, worker, request_id=99 << 16, attempt=1, finish=3)
        while not (finish and cancelled):
            cancelled = hear(("tokens", "offer_cancelled"))[0] == "offer_cancelled" or cancelled
        self.assertEqual((finish, cancelled), (3, True))
        link.say("offer", router, worker, **offer)
        self.assertEqual(received(link, "offer_refused")["reason"], 15)  # STALE

    def test_S5_answers_over_plain_tcp_are_the_servers_own(self):
        self.conversation(False)

    def test_S5_answers_over_curve_are_the_servers_own(self):
        self.conversation(True)

    def test_what_is_no_number_or_key_is_said_and_not_sent(self):
        for words, says in ((["--tokens", ""], "no number"), (["--tokens", "1,x"], "no number"), (["--tokens=-1"], "no number"),
                            (["--tokens", str(1 << 32)], "no number"), (["--tokens", "1", "--max-tokens", str(1 << 32)], "no number"),
                            (["--tokens", "1", "--secret", "/nonexistent"], "quire keys"), (["--tokens", "1", "--secret", __file__], "quire keys")):
            done = subprocess.run([sys.executable, os.path.join(EXAMPLES, "peer.py"), *words], capture_output=True, text=True, timeout=PATIENCE_S)
            self.assertEqual((done.returncode, says in done.stderr, "Traceback" in done.stderr), (2, True, False), (words, done.stderr))

    def test_document_yields_a_codec(self):
        document = peer.Document()
        frame = document.encode("tokens_taken", 1, 2, 3, 4, request_ids=[7, 1 << 63], attempts=[1, 2], indexes=[0, 5])
        number, version, *_ = msgpack.unpackb(frame)
        self.assertEqual((number, version), (document.by_name["tokens_taken"]["number"], 1))
        self.assertEqual(document.decode(frame), ("tokens_taken", 1, 2, 3, {"request_ids": [7, 1 << 63], "attempts": [1, 2], "indexes": [0, 5]}))
        with self.assertRaises(ValueError):
            document.encode("tokens_taken", 1, 2, 3, 4, no_such_field=1)


if __name__ == "__main__":
    unittest.main()
