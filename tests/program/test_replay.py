"""S5: what actors received in a real, concurrent run is handed to them again, and every byte they say is the same; damage and differences are
named."""
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from quire_program import PATIENCE_S, Server, run
from test_mesh import TwoProcesses

PURE = ["gateway", "router", "worker", "scheduler", "page_manager", "heartbeat"]


def replay(folder, *words):
    """Exit status, lines by segment, the numbers of the sum."""
    done = run("replay", folder, *words, check=False)
    lines = dict(line.split(": ", 1) for line in done.stdout.splitlines() if re.match(r"[\w.-]+-\d{8}: ", line))
    total = re.search(r"^sum: (\d+) equal, (\d+) differ, (\d+) damaged, (\d+) refused", done.stdout, re.M)
    return done.returncode, lines, [int(n) for n in total.groups()] if total else None, done


def leave_early(server, body):
    """A client that reads a little of its stream and goes."""
    text = json.dumps({**body, "stream": True, "max_tokens": 300, "ignore_eos": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        client.recv(200)


def stream(server, body):
    status, text, _ = server.request("POST", "/v1/completions", {**body, "stream": True})
    assert status == 200 and text.rstrip().endswith(b"[DONE]"), text[-200:]


def traffic(server, rounds=1):
    """Clients that ask together: whole, streamed, sampled, stopped, cancelled, refused."""
    for r in range(rounds):
        body = {"prompt": f"Count: one, two, three {r}", "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        jobs = [(server.complete, [], body), (server.complete, [], {**body, "temperature": 0.8, "seed": r}), (stream, [server, body], {}),
                (server.complete, [], {**body, "stop": [" "]}), (leave_early, [server, body], {}),
                (server.complete, [], {**body, "prompt": [(i * 7919) % 40000 + 20 for i in range(300)], "max_tokens": 2}),
                (stream, [server, {**body, "prompt": "A" * 50}], {}), (server.post, ["/v1/completions", {"prompt": "word " * 600}], {})]
        threads = [threading.Thread(target=job, args=words, kwargs=named) for job, words, named in jobs]
        [t.start() for t in threads]
        [t.join() for t in threads]
    server.settle("quire_requests_open", 0)


class Replay(unittest.TestCase):
    def test_S5_a_concurrent_run_replays_byte_for_byte_and_damage_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("--record", folder, "--context", 512) as server:
                traffic(server, 3)
                server.drop_cache()
                self.assertEqual(server.stop(), 0)
            status, lines, total, done = replay(folder)
            self.assertEqual(status, 0, done.stdout + done.stderr)
            self.assertEqual(total[1:], [0, 0, 0])
            for role in PURE:
                mine = [line for name, line in lines.items() if f"-{role}." in name]
                self.assertTrue(mine and all("all equal" in line for line in mine), (role, mine))
                self.assertGreater(sum(int(line.split()[0]) for line in mine), 10, role)
            self.damage(folder)
            self.other_model(folder)

    def damage(self, folder):
        """One bit, in an entry or in the head."""
        name = next(n for n in sorted(os.listdir(folder)) if "-gateway." in n)
        with open(os.path.join(folder, name), "rb") as f:
            bytes_ = f.read()
        for at, says in ((len(bytes_) - 100, "damaged at entry"), (200, "damaged: its head")):
            with tempfile.TemporaryDirectory() as copy:
                shutil.copytree(folder, copy, dirs_exist_ok=True)
                with open(os.path.join(copy, name), "wb") as f:
                    f.write(bytes_[:at] + bytes([bytes_[at] ^ 16]) + bytes_[at + 1 :])
                status, lines, total, done = replay(copy)
                self.assertEqual(status, 1, done.stdout + done.stderr)
                self.assertIn(says, lines[name])
                self.assertEqual(total[1:], [0, 1, 0])

    def other_model(self, folder):
        status, lines, total, done = replay(folder, "--model", os.path.join(folder, "none.gguf"))
        self.assertEqual(status, 2, done.stdout)
        self.assertEqual(total[:3], [0, 0, 0])
        self.assertTrue(any("none.gguf" in line for line in lines.values()), lines)

    def test_S5_a_bounded_recording_replays_from_what_is_left(self):
        bound = 8 << 20
        shared = [(i * 7919) % 40000 + 20 for i in range(1800)]  # computed once; its ids fill segments
        with tempfile.TemporaryDirectory() as folder:
            options = ["--context", 2048, "--pages", 300, "--max-requests", 16, "--max-lanes", 4]
            with Server("--record", folder, "--record-bytes", bound, *options) as server:
                rounds, end = 0, time.monotonic() + 300
                while min(self.numbers(folder, "page_manager"), default=0) < 10 and time.monotonic() < end:
                    traffic(server, rounds % 10 == 0)
                    jobs = [threading.Thread(target=server.complete, kwargs={"prompt": shared + [i], "max_tokens": 2}) for i in range(8)]
                    [j.start() for j in jobs]
                    [j.join() for j in jobs]
                    rounds += 1
                self.assertEqual(server.stop(), 0)
            self.assertGreaterEqual(min(self.numbers(folder, "page_manager")), 10, rounds)  # the first segments are gone
            self.assertLessEqual(sum(os.path.getsize(os.path.join(folder, n)) for n in os.listdir(folder)), bound + (64 << 10))
            status, lines, total, done = replay(folder)
            self.assertEqual(status, 0, done.stdout + done.stderr)
            for role in PURE:
                mine = [line for name, line in lines.items() if f"-{role}." in name]
                self.assertTrue(mine and all("all equal" in line for line in mine), (role, mine))
            self.assertGreater(len([name for name in lines if "-page_manager." in name]), 1)

    def numbers(self, folder, role):
        return [int(name[-8:]) for name in os.listdir(folder) if f"-{role}." in name]

    def test_S5_two_nodes_replay_also_around_a_kill(self):
        with TwoProcesses() as mesh, tempfile.TemporaryDirectory() as folder:
            folders = [os.path.join(folder, name) for name in ("edge", "first", "second")]
            mesh.device.process.kill()
            mesh.device.process.wait(PATIENCE_S)
            mesh.edge.stop()
            start = lambda node, to: Server("--topology", mesh.topology, "--node", node, "--record", to, command=("node",), wait=False)  # noqa: E731
            with start("device0", folders[1]) as device, start("edge", folders[0]) as edge:
                edge.wait_ready()
                body = {"prompt": "word " * 100, "max_tokens": 2000, "ignore_eos": True}
                asks = [threading.Thread(target=edge.post, args=("/v1/completions", body)) for _ in range(4)]
                [t.start() for t in asks]
                edge.settle("quire_lanes_open", 4)
                device.process.kill()
                device.process.wait(PATIENCE_S)
                [t.join(300) for t in asks]
                edge.wait_ready(status=503)
                with start("device0", folders[2]) as second:
                    edge.wait_ready()
                    edge.complete(prompt="hello", max_tokens=8)
                    self.assertEqual(edge.stop(), 0)
                    self.assertEqual(second.stop(), 0)
            for one in folders:
                status, lines, total, done = replay(one)
                self.assertEqual(status, 0, done.stdout + done.stderr)
                self.assertGreaterEqual(total[0], 3, lines)

    def test_S5_nothing_to_replay_says_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            status, _, _, done = replay(folder)
            self.assertEqual((status, "--record" in done.stderr), (2, True), done.stderr)
        for words in ([], ["/nowhere"], ["a", "b"], ["--fast", "a"]):
            done = run("replay", *words, check=False)
            self.assertEqual((done.returncode, done.stderr[:13]), (2, "quire replay:"), (words, done.stderr))
        self.assertIn("usage: quire replay DIR", run("replay", "--help").stdout)

    def test_S5_tap_refuses_what_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("--record", folder, "--context", 512) as server:
                server.complete(prompt="hello", max_tokens=2)
                self.assertEqual(server.stop(), 0)
            for words, says in ((("--actor", "gatway"), "gateway"), (("--actor", "gateway.0"), "gateway"), (("--type", "ofer"), "offer"),
                                (("--request", "-1"), "number"), (("--request", str(1 << 64)), "number"), (("--request", "x"), "number")):
                done = run("tap", folder, *words, check=False)
                self.assertEqual(done.returncode, 2, words)
                self.assertIn(says, done.stderr, words)
            whole, one = run("tap", folder, "--actor", "gateway").stdout, run("tap", folder, "--actor", "gateway.0.0").stdout
            self.assertEqual((whole, bool(whole)), (one, True))
            self.assertEqual(run("tap", folder, "--actor", "gateway.0.1").stdout, "")


MUTANTS = os.environ.get("QUIRE_MUTANTS_BUILD")

# Seeded defect, the actor it is in, and what that actor was told when it first acted otherwise (any of them).
EDITS = [
    (157, "scheduler", ["batch_done"]),
    (112, "page_manager", ["pages_reserve"]),
    (213, "gateway", ["tokens"]),
    (220, "router", ["place_cancel"]),
    (467, "worker", ["offer_cancel"]),
]


@unittest.skipUnless(MUTANTS, "tests/mutants/replay.sh runs it: it needs a build with seeded defects")
class EditedActors(unittest.TestCase):
    """S5: a concurrent run of the real program, replayed by an edited one: its first difference is named, and nothing else differs."""

    def replay_with(self, folder, defect):
        done = subprocess.run([os.path.join(MUTANTS, "quire"), "replay", folder], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "QUIRE_MUTANT": str(defect)})
        total = re.search(r"^sum: (\d+) equal, (\d+) differ, (\d+) damaged, (\d+) refused", done.stdout, re.M)
        return done, [int(n) for n in total.groups()] if total else None

    def test_S5_an_edited_actor_shows_its_first_difference(self):
        with tempfile.TemporaryDirectory() as folder:
            with Server("--record", folder, "--context", 512) as server:
                traffic(server, 3)
                server.drop_cache()
                self.assertEqual(server.stop(), 0)
            done, clean = self.replay_with(folder, 0)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(clean[1:], [0, 0, 0])
            for defect, actor, handled in EDITS:
                with self.subTest(defect=defect, actor=actor):
                    self.edited(folder, defect, actor, handled, clean[0])

    def edited(self, folder, defect, actor, handled, segments):
        done, total = self.replay_with(folder, defect)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(total, [segments - 1, 1, 0, 0], done.stdout)  # one actor was edited, every other one is as it was
        first = re.search(r"^(\S+): DIFFERS at entry (\d+) \((\w+)\), time \S+; the entries before it are equal\n  handled +(\w+) (.*)\n((?:  emits .*\n)+)  alarm ",
                          done.stdout, re.M)
        self.assertIsNotNone(first, done.stdout)
        name, entry, kind, shown, fields, emits = first.groups()
        self.assertIn(f"-{actor}.", name)
        self.assertGreater(int(entry), 1)
        self.assertIn(kind, handled)
        self.assertEqual(shown, kind)
        self.assertRegex(fields, r"\w+(\[\d+\])?=\S")  # with its fields, and what the edited actor says to it
        again, _ = self.replay_with(folder, defect)
        self.assertEqual(again.stdout, done.stdout)


if __name__ == "__main__":
    unittest.main()
