"""`quire simulate` as a program: what it says when it is stopped, when its trace has no room, and at the ends of what it takes."""
import json
import os
import signal
import subprocess
import tempfile
import unittest

from quire_program import QUIRE, run


class Simulate(unittest.TestCase):
    def started(self, *words):
        """Also where this test runs in the background, whose processes ignore SIGINT."""
        return subprocess.Popen([QUIRE, "simulate", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def test_S1_a_run_without_an_end_tells_its_sum_when_it_is_stopped(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with tempfile.TemporaryDirectory() as folder:
                trace = os.path.join(folder, "trace")
                running = self.started("--seeds", "70-", "--profile", "calm", "--trace", trace)
                self.assertEqual(running.stdout.readline().split()[:2], ["seeds", "70-18446744073709551614,"])  # before anything runs
                running.send_signal(number)
                out, errors = running.communicate(timeout=120)
                self.assertEqual((running.returncode, errors), (0, ""))
                self.assertRegex(out, r"^\d+ seeds, 0 findings; .* hash [0-9a-f]{16}")
                seeds = int(out.split()[0])
                if seeds:  # the trace is the one of the seed it ended at
                    again = os.path.join(folder, "again")
                    run("simulate", "--seeds", str(69 + seeds), "--profile", "calm", "--trace", again)
                    with open(trace, "rb") as a, open(again, "rb") as b:
                        self.assertEqual(a.read(), b.read())

    def test_S1_a_process_that_ends_in_a_seed_names_it(self):
        running = self.started("--seeds", "0", "--profile", "large")
        running.stdout.readline()
        running.send_signal(signal.SIGABRT)
        _, errors = running.communicate(timeout=120)
        self.assertEqual((running.returncode, errors), (-signal.SIGABRT, "quire: simulate: ended in seed 0\n"))

    def test_a_trace_without_room_is_no_success(self):
        done = run("simulate", "--seeds", "1", "--trace", "/dev/full", check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("was not written to its end", done.stderr)
        done = run("simulate", "--seeds", "1", "--trace", "/nonexistent/trace", check=False)
        self.assertEqual((done.returncode, "/nonexistent/trace" in done.stderr), (2, True))

    def test_the_last_seeds_there_are(self):
        done = json.loads(run("simulate", "--seeds", "18446744073709551613-18446744073709551614", "--json").stdout)
        self.assertEqual((done["seeds"], done["findings"]), (2, 0))
        for words in ("18446744073709551615", "1-18446744073709551615", "2-1", "-1", "1-2-3", "x", ""):
            self.assertEqual(run("simulate", "--seeds", words, check=False).returncode, 2, words)
        for nodes in ("0", "33", "-1", "4294967297"):
            self.assertEqual(run("simulate", "--seeds", "1", "--nodes", nodes, check=False).returncode, 2, nodes)

    def test_a_seed_alone_is_the_same_as_in_a_range(self):
        with tempfile.TemporaryDirectory() as folder:
            texts = []
            for seeds in ("5", "3-5"):
                path = os.path.join(folder, seeds)
                run("simulate", "--seeds", seeds, "--trace", path)
                with open(path, "rb") as f:
                    texts.append(f.read())
            self.assertEqual((texts[0] == texts[1], len(texts[0]) > 1000), (True, True))


if __name__ == "__main__":
    unittest.main()
