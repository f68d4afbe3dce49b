"""Durable state, on the real program and real files: what a server wrote to its store is found again after kill -9, gives the answers of a
cold run to the last bit, and nothing that is done to the files ever changes an answer. Most of it runs on a seeded tiny model, so that a
server starts in a blink; QUIRE_FULL=1 (tests/long.sh D3 to D8) takes the full counts."""
import concurrent.futures
import glob
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from quire_program import BUILD, MODEL, PATIENCE_S, Server, run
from test_mesh import TwoProcesses, stream
from test_replay import replay
from test_tenants import make

FULL = os.environ.get("QUIRE_FULL") == "1"
SEED = int(os.environ.get("QUIRE_TEST_SEED", "1"))
CHUNK = 64
# Everything is worth writing: what is tested is that it is right, not that it pays.
WORTH = ["--recompute-row-ns", 1000000000, "--reuse-permille", 10000]
# And what is there is restored, whatever a busy machine has measured; Decisions is about the other case.
EAGER = ["--pages", 900, *WORTH, "--restore-always", 1]
JUDGED = ["--chunk-tokens", CHUNK, "--pages", 900, *WORTH]
SMALL = ["--chunk-tokens", CHUNK, *EAGER]
# Computing takes longer; the bits are the same.
SLOW = [*SMALL, "--isa", "scalar", "--threads", 1, "--prefill-tile", 1]
TINY = None
scratch = None


def setUpModule():
    global scratch, TINY
    scratch = tempfile.TemporaryDirectory()
    TINY = os.path.join(scratch.name, "tiny.gguf")
    subprocess.run([os.path.join(BUILD, "tool_tiny_model"), TINY, "8"], check=True)


def tearDownModule():
    scratch.cleanup()


def ids(count, seed=0):
    """Token ids of the tiny model (bytes) that share nothing with those of another seed."""
    draw = random.Random(1000003 * SEED + seed)
    return [draw.randrange(3, 259) for _ in range(count)]


def greedy(prompt, tokens=6):
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 1, "ignore_eos": True}


def sampled(prompt, tokens=6):
    return {**greedy(prompt, tokens), "temperature": 0.9, "seed": 11, "top_p": 0.95}


def said(answer):
    """What an answer is judged by, and how many tokens of its prompt were not computed."""
    choice = answer["choices"][0]
    return (choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"], choice["finish_reason"]), answer["usage"][
        "prompt_tokens_details"]["cached_tokens"]


def streamed(server, ask):
    text, tokens, logprobs, finish = "", [], [], None
    for choice in stream(server, ask):
        text += choice["text"]
        if choice.get("logprobs"):
            tokens += choice["logprobs"]["tokens"]
            logprobs += choice["logprobs"]["token_logprobs"]
        finish = choice["finish_reason"] or finish
    return text, tokens, logprobs, finish


def cold(asks, *options, model=None):
    """The answers of a server that keeps nothing: every request computes all of its prompt."""
    answers = []
    with Server("--no-store", *options, model=model or TINY) as server:
        for ask in asks:
            answer, cached = said(server.complete(**ask))
            assert cached == 0, cached
            answers.append(answer)
            server.drop_cache()
        server.stop()
    return answers


def wait_for(what, seconds=PATIENCE_S):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"nothing came of it in {seconds} s"
        time.sleep(0.02)


def quiet(server, seconds=PATIENCE_S):
    """Waits until nothing is being captured any more; returns the metrics."""
    last, end = None, time.monotonic() + seconds
    while True:
        m = server.metrics()
        now = [m[name] for name in ("quire_requests_open", "quire_captures_open", "quire_store_writes_waiting", "quire_captures_asked_total", "quire_captures_total")]
        if now == last and now[:3] == [0, 0, 0] and now[3] == now[4]:
            return m
        last = now
        assert time.monotonic() < end, now
        time.sleep(0.06)


def rows_durable(server, rows, seconds=PATIENCE_S):
    """Waits until so many rows are durable and published in this process."""
    end = time.monotonic() + seconds
    while (m := server.metrics())["quire_captured_rows_total"] < rows:
        assert time.monotonic() < end, (rows, {name: value for name, value in m.items() if "captur" in name or "skip" in name or "store_" in name})
        time.sleep(0.02)


class Store:
    """A folder for a store, which servers open one after the other. memory: where a sync costs nothing, if there is such a place."""

    def __init__(self, path=None, model=None, memory=False):
        self.memory = "/dev/shm" if memory and os.access("/dev/shm", os.W_OK) else None
        self.folder = None if path else tempfile.TemporaryDirectory(dir=self.memory)
        self.path = path or os.path.join(self.folder.name, "store")
        self.model = model

    def __enter__(self):
        return self

    def __exit__(self, *why):
        if self.folder:
            self.folder.cleanup()

    def serve(self, *options, **more):
        """Without a RAM tier unless it is asked for: what is tested here are files."""
        ram = [] if "--ram-bytes" in options else ["--ram-bytes", 0]
        return Server("--store", self.path, *ram, *options, model=self.model or TINY, **more)

    def kill(self, server):
        server.process.kill()
        server.process.wait(PATIENCE_S)

    def files(self):
        """Chunk files by content id."""
        return {os.path.basename(p): p for p in glob.glob(os.path.join(self.path, "chunks", "??", "??", "*"))}

    def catalog(self, kind):
        done = run("catalog", "query", "--store", self.path, "--kind", kind, "--json", "--limit", 1000000)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def verify(self):
        return run("catalog", "verify", "--store", self.path, check=False)

    def copy(self):
        other = Store(model=self.model, memory=self.memory is not None)
        shutil.copytree(self.path, other.path)
        return other

    def chain(self):
        """The files of the only chain in the store, the first chunk first."""
        start = {n["chain"]: n["start"] for n in self.catalog("nodes")}
        parts = sorted(self.catalog("parts"), key=lambda p: start[p["chain"]])
        return [os.path.join(self.path, "chunks", p["digest"][:2], p["digest"][2:4], p["digest"]) for p in parts]


class Restart(unittest.TestCase):
    """S1: a durable prompt is answered after kill -9 as by a cold run."""

    def test_S1_tiny_greedy_and_sampled_whole_and_streamed(self):
        prompt = ids(2100)
        asks = [make_ask(prompt[:count]) for make_ask in (greedy, sampled) for count in (1500, 2000)]
        wanted = cold(asks, *EAGER)
        with Store() as store:
            with store.serve(*EAGER) as server:
                self.assertEqual(said(server.complete(**asks[0])), (wanted[0], 0))
                rows_durable(server, 1280)
                store.kill(server)
            combos = [(i, flow) for i in range(4) for flow in (False, True)]
            for number, flow in combos if FULL else combos[::3]:
                with store.serve(*EAGER) as server:
                    ask, want = asks[number], wanted[number]
                    if flow:
                        self.assertEqual(streamed(server, ask), want)
                    else:
                        answer, cached = said(server.complete(**ask))
                        self.assertEqual(answer, want)
                        self.assertGreaterEqual(cached, 1280)
                    self.assertGreaterEqual(server.metrics()["quire_restored_tokens_total"], 1280)
                    store.kill(server)

    def test_S1_nothing_but_the_rest_is_computed(self):
        """Eight chunks and one token, by a server that may not compute more than 64 rows."""
        ask = greedy(ids(2049, 1))
        wanted = cold([ask], *EAGER)
        with Store() as store:
            with store.serve(*EAGER) as server:
                server.complete(**ask)
                rows_durable(server, 2048)
                store.kill(server)
            with store.serve(*EAGER, "--fail-over-rows", 64) as server:
                self.assertEqual(said(server.complete(**ask)), (wanted[0], 2048))
                self.assertNotEqual(server.post("/v1/completions", greedy(ids(300, 2)))[0], 200)
                self.assertEqual(server.stop(), 0)

    def test_S1_a_real_model(self):
        count, chunk = (2049, 256) if FULL else (450, 64)
        prompt = [(i * 7919) % 40000 + 20 for i in range(count)]
        asks, options = [greedy(prompt), sampled(prompt)], ["--chunk-tokens", chunk, *WORTH, "--restore-always", 1]
        wanted = cold(asks, model=MODEL)
        with Store(model=MODEL) as store:
            with store.serve(*options) as server:
                self.assertEqual(said(server.complete(**asks[0])), (wanted[0], 0))
                rows_durable(server, count // chunk * chunk)
                store.kill(server)
            with store.serve(*options, "--fail-over-rows", 64) as server:
                self.assertEqual(said(server.complete(**asks[0])), (wanted[0], count // chunk * chunk))
                server.drop_cache()
                self.assertEqual(streamed(server, asks[1]), wanted[1])
                m = server.metrics()
                self.assertEqual(m["quire_restored_tokens_total"], 2 * (count // chunk * chunk))
                for phase in ("read", "verify", "copy"):  # of a restore: these, and the waits for leases and for the duty
                    self.assertGreater(m[f"quire_upload_{phase}_seconds_total"], 0)
                for wait in ("restore_localise", "transfer_wait"):
                    self.assertIn(f"quire_{wait}_seconds_total", m)
                self.assertEqual(server.stop(), 0)


# What is done to the file of one chunk of a chain. Each gets the path, those of the whole chain, and draws.


def bit_flip(path, chain, draw):
    with open(path, "r+b") as f:
        at = draw.randrange(os.path.getsize(path))
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1 << draw.randrange(8)]))


def payload_flip(path, chain, draw):
    """Behind the header and the tokens, which a start looks at."""
    with open(path, "r+b") as f:
        f.seek(-1 - draw.randrange(1000), os.SEEK_END)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 1 << draw.randrange(8)]))


def truncation(path, chain, draw):
    os.truncate(path, draw.randrange(1, os.path.getsize(path)))


def zero_length(path, chain, draw):
    os.truncate(path, 0)


def swapped(path, chain, draw):
    """With another intact file of the chain."""
    other = draw.choice([p for p in chain if p != path])
    os.rename(path, path + "~")
    os.rename(other, path)
    os.rename(path + "~", other)


def missing(path, chain, draw):
    os.unlink(path)


def torn_header(path, chain, draw):
    with open(path, "r+b") as f:
        at = draw.choice([0, 512, 2048, 3584])
        f.seek(at)
        f.write(bytes(4096 - at))


def foreign(path, chain, draw):
    """An intact file of another model, for the same tokens."""
    shutil.copyfile(Damage.foreign_files[os.path.basename(path)], path)


KINDS = [bit_flip, truncation, zero_length, swapped, missing, torn_header, foreign]
AT_THE_START = [bit_flip, truncation, zero_length, missing, torn_header, foreign]  # what a look at names, sizes, headers and tokens may show
COUNTED = ["quire_restores_missing_total", "quire_restores_damaged_total", "quire_restores_io_total"]


class Together(unittest.TestCase):
    """Several prompts come back at once while others are computed."""

    def test_RS_01_restores_side_by_side(self):
        prompts = [ids(2 * CHUNK + 1, 100 + i) for i in range(8)]
        others = [ids(40, 200 + i) for i in range(2)]
        asks = [greedy(prompt) for prompt in prompts] + [greedy(prompt, 30) for prompt in others]
        wanted = cold(asks, *SMALL)
        with Store() as store:
            with store.serve(*SLOW) as server:
                for number, ask in enumerate(asks[:8]):  # one after the other: a queue of captures that is full skips the rest
                    server.complete(**ask)
                    rows_durable(server, (number + 1) * 2 * CHUNK)
                store.kill(server)
            with store.serve(*SLOW, "--staging-slots", 1) as server:
                for turn in range(10 if FULL else 3):
                    order = list(range(len(asks)))
                    random.Random(turn).shuffle(order)
                    with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
                        answers = dict(zip(order, pool.map(lambda i: said(server.complete(**asks[i])), order)))
                    for i, want in enumerate(wanted):
                        self.assertEqual(answers[i][0], want, (turn, i))
                        if i < 8:
                            self.assertEqual(answers[i][1], 2 * CHUNK, (turn, i))
                    # Prompts may share a first token with a running one, whose row is then copied.
                    self.assertGreaterEqual(server.metrics()["quire_restored_tokens_total"], (turn + 1) * 8 * (2 * CHUNK - 1))
                    server.drop_cache()
                self.assertEqual(server.stop(), 0)


class Ram(unittest.TestCase):
    """The RAM tier: what was captured or read comes back out of memory, with the bits of a cold run, whatever happened to its file."""

    @classmethod
    def setUpClass(cls):
        cls.asks = [greedy(ids(5 * CHUNK + 9, 70 + i)) for i in range(3)]
        cls.wanted = cold(cls.asks, *SMALL)

    def again(self, server, i):
        """Asks again when every page is free; returns by how much the counts grew."""
        server.drop_cache()
        before = quiet(server)
        self.assertEqual(said(server.complete(**self.asks[i])), (self.wanted[i], 5 * CHUNK))
        after = quiet(server)
        return {name: after[name] - before[name] for name in after if name in before}

    def first(self, server, i):
        rows = server.metrics()["quire_captured_rows_total"]
        self.assertEqual(said(server.complete(**self.asks[i])), (self.wanted[i], 0))
        rows_durable(server, rows + 5 * CHUNK)

    def test_what_was_captured_needs_no_file(self):
        with Store() as store, store.serve(*SLOW, "--ram-bytes", 64 << 20) as server:
            self.first(server, 0)
            for path in store.files().values():
                os.unlink(path)
            grown = self.again(server, 0)
            self.assertEqual(grown["quire_ram_hits_total"], 5)
            self.assertEqual(grown["quire_restored_ram_rows_total"], 5 * CHUNK)
            self.assertEqual(grown["quire_store_hits_total"] + grown["quire_ram_misses_total"], 0)
            self.assertEqual(grown["quire_decisions_ram_total"] + grown["quire_decisions_ssd_total"], 1)
            self.assertEqual(server.stop(), 0)
            d = catalog(store, "query", "decisions")[-1]
            replays(self, d, {p["version"]: p for p in catalog(store, "query", "policies")})
            self.assertEqual((d["outcome"]["rows"], d["outcome"]["reason"]), (5 * CHUNK, ""))
            if d["ram"]:  # null: storage was too busy to say so in time (scheduler I11), and what is durable is taken to be on disk
                self.assertEqual((d["choice"], d["ram"]["rows"]), ("ram", 5 * CHUNK))

    def test_what_was_read_from_files_is_kept(self):
        with Store() as store:
            with store.serve(*SLOW) as server:
                self.first(server, 0)
                self.assertEqual(self.again(server, 0)["quire_store_hits_total"], 5)
                m = server.metrics()
                self.assertEqual([v for k, v in m.items() if k.startswith("quire_ram_")], [0] * sum(k.startswith("quire_ram_") for k in m))
                store.kill(server)
            with store.serve(*SLOW, "--ram-bytes", 64 << 20) as server:
                grown = self.again(server, 0)
                self.assertEqual((grown["quire_store_hits_total"], grown["quire_ram_misses_total"], grown["quire_ram_entered_total"]), (5, 5, 5))
                for path in store.files().values():
                    bit_flip(path, None, random.Random(1))
                grown = self.again(server, 0)
                self.assertEqual((grown["quire_store_hits_total"], grown["quire_ram_hits_total"]), (0, 5))
                self.assertEqual(server.stop(), 0)

    def test_the_bound_holds_and_files_do_the_rest(self):
        with Store() as store:
            with store.serve(*SLOW, "--ram-bytes", 64 << 20) as server:
                self.first(server, 0)
                m = quiet(server)
                one = m["quire_ram_bytes"] / m["quire_ram_chunks"]
                store.kill(server)
            with store.serve(*SLOW, "--ram-bytes", int(2.5 * one)) as server:
                for turn in range(2):
                    for i in range(3):
                        if turn or i == 0:
                            self.again(server, i)
                        else:
                            self.first(server, i)
                        m = server.metrics()
                        self.assertEqual(m["quire_ram_bytes_bound"], 2 * one)
                        self.assertLessEqual(m["quire_ram_bytes"], 2 * one)
                self.assertGreater(m["quire_ram_refused_total"] + m["quire_ram_evictions_total"], 0)
                self.assertGreater(m["quire_store_hits_total"], 0)
                self.assertEqual(server.stop(), 0)
            with store.serve(*SLOW, "--ram-bytes", 1) as server:
                self.assertIn("holds not one chunk", server.text())
                self.assertEqual(self.again(server, 0)["quire_store_hits_total"], 5)


class Damage(unittest.TestCase):
    """S2: whatever is done to chunk files, every answer is the one of a cold run; it is counted, said in the log, and mends itself. As many
    prompts as kinds of damage, a chain of five chunks each; every round does each kind to another chain. 20 of each kind in all (full: 100)."""

    foreign_files = {}  # another model's file for the same tokens, by the name of this one's

    @classmethod
    def setUpClass(cls):
        cls.asks = [greedy([100 + i] + ids(5 * CHUNK + 8, 300 + i)) for i in range(len(KINDS))]  # no two begin alike
        cls.wanted = cold(cls.asks, *SMALL)
        cls.whole, other = Store(memory=True), Store(model=os.path.join(scratch.name, "other.gguf"))
        subprocess.run([os.path.join(BUILD, "tool_tiny_model"), other.model, "8", "2"], check=True)
        cls.chains, foreign = cls.fill(cls.whole), cls.fill(other)
        for mine, theirs in zip(cls.chains, foreign):
            for name, path in zip(mine, theirs):
                cls.foreign_files[name] = os.path.join(scratch.name, os.path.basename(path))
                shutil.copyfile(other.files()[path], cls.foreign_files[name])
        other.__exit__()

    @classmethod
    def tearDownClass(cls):
        cls.whole.__exit__()

    @classmethod
    def fill(cls, store):
        """The names of each prompt's files, the first chunk first."""
        sets, have = [], set()
        with store.serve(*SMALL) as server:
            for number, ask in enumerate(cls.asks):
                server.complete(**ask)
                rows_durable(server, 5 * CHUNK * (number + 1))
                quiet(server)
                sets.append(set(store.files()) - have)
                have |= sets[-1]
            server.stop()
        start = {n["chain"]: n["start"] for n in store.catalog("nodes")}
        first = {p["digest"]: start[p["chain"]] for p in store.catalog("parts")}
        return [sorted(names, key=first.get) for names in sets]

    def damage(self, store, turn, draw):
        """Does every kind to a chain; returns which, and to which of its chunks."""
        done = []
        for number, names in enumerate(self.chains):
            kind, hit = KINDS[(number + turn) % len(KINDS)], draw.randrange(5)
            chain = [os.path.join(store.path, "chunks", name[:2], name[2:4], name) for name in names]
            kind(chain[hit], chain, draw)
            done.append((kind, hit))
        return done

    def failed(self, server):
        m = server.metrics()
        self.assertEqual(sum(m[name] for name in COUNTED), m["quire_restores_failed_total"])
        return m["quire_restores_failed_total"]

    def ask(self, server, number, kind):
        """The answer is right; returns how much of it was restored."""
        answer, cached = said(server.complete(**self.asks[number]))
        self.assertEqual(answer, self.wanted[number], kind)
        self.assertEqual(cached % CHUNK, 0, kind)
        return cached

    def ask_all(self, server, done, started):
        """Every damage is noticed: its restore stops there, or (started: at the start) it is withdrawn before anybody asks. A loaded machine
        may find for a while that computing is cheaper: then it is read again when it would be written again."""
        for number, (kind, hit) in enumerate(done):
            set_aside = quiet(server)["quire_store_damaged_total"]
            before = self.failed(server)

            def noticed():
                if server.metrics()["quire_store_damaged_total"] > set_aside:
                    return True
                cached = self.ask(server, number, kind)
                self.assertLessEqual(cached, hit * CHUNK, kind.__name__)
                failed = self.failed(server)
                self.assertIn(failed - before, (0, 1), kind.__name__)
                if failed > before and started and kind is not swapped:
                    self.assertEqual(cached, hit * CHUNK, kind.__name__)
                if failed > before or (started and kind in AT_THE_START and cached == hit * CHUNK):
                    return True
                server.drop_cache()
                return False

            wait_for(noticed, 120)
        m = quiet(server)
        self.assertGreaterEqual(m["quire_restores_failed_total"] + m["quire_store_damaged_total"] + m["quire_store_missing_total"], len(done))

    def ask_whole(self, server, done):
        """What was computed again was written again, and comes back."""
        for number, (kind, _) in enumerate(done):

            def whole():
                server.drop_cache()
                return self.ask(server, number, kind) == 5 * CHUNK

            wait_for(whole, 120)

    def test_S2_damaged_between_two_runs(self):
        draw = random.Random(SEED)
        for turn in range(50 if FULL else 4):
            with self.subTest(turn=turn), self.whole.copy() as store:
                done = self.damage(store, turn, draw)
                with store.serve(*SLOW) as server:
                    self.ask_all(server, done, True)
                    quiet(server)
                    store.kill(server)
                if turn % 10 == 0:
                    self.assertEqual(store.verify().returncode, 0)
                    with store.serve(*SLOW) as server:
                        self.ask_whole(server, done)
                        self.assertEqual(server.stop(), 0)

    def test_S2_damaged_under_a_running_server(self):
        """Its files were verified already; then they change."""
        draw = random.Random(SEED + 1)
        with self.whole.copy() as store, store.serve(*SLOW) as server:
            self.ask_whole(server, [(None, 0)] * len(self.asks))
            for turn in range(50 if FULL else 16):
                server.drop_cache()
                before = quiet(server)
                done = self.damage(store, turn, draw)
                self.ask_all(server, done, False)
                m = quiet(server)
                found = sum(m[name] - before[name] for name in ("quire_store_damaged_total", "quire_store_missing_total"))
                self.assertIn(found, [len(KINDS), len(KINDS) + 1], turn)  # of two files that changed places both may be found
                self.ask_whole(server, done)
            self.assertRegex(server.text(), "a chunk file was (not what it should be|removed by somebody else)")
            self.assertEqual(server.stop(), 0)


class Withdrawn(unittest.TestCase):
    """What is damaged or gone is withdrawn from the catalog, so that it costs one failed restore at most; written again, it is offered again.
    Most of it runs where nothing is worth writing, so that only the withdrawal can have helped."""

    IDLE = [*SLOW[:2], "--pages", 900, "--recompute-row-ns", 1000000000, "--reuse-permille", 0, "--restore-always", 1, *SLOW[-6:]]

    def setUp(self):
        self.ask = greedy(ids(5 * CHUNK + 9, 4))
        self.wanted = cold([self.ask], *SMALL)[0]
        self.store = Store()
        self.addCleanup(self.store.__exit__)
        with self.store.serve(*SMALL) as server:
            server.complete(**self.ask)
            rows_durable(server, 5 * CHUNK)
            self.assertEqual(server.stop(), 0)

    def same(self, server, cached, failed):
        """It answers as ever, with so much restored and so many restores that stopped early until now."""
        server.drop_cache()
        self.assertEqual(said(server.complete(**self.ask)), (self.wanted, cached))
        self.assertEqual(server.metrics()["quire_restores_failed_total"], failed)

    def agrees(self, files):
        self.assertEqual(self.store.verify().returncode, 0)
        self.assertEqual((len(self.store.files()), len(self.store.catalog("replicas"))), (files, files))

    def test_damage_fails_one_restore(self):
        for kind, hit in ((payload_flip, 2), (missing, 1)):
            with self.subTest(kind=kind.__name__), self.store.copy() as store:
                chain = store.chain()
                kind(chain[hit], chain, random.Random(SEED))
                with store.serve(*self.IDLE) as server:
                    if kind is missing:  # seen at the start: no restore tries it
                        server.settle("quire_chunks_lost_total", 1, 30)
                        self.assertIn("compared with the catalog", server.text())
                        self.same(server, hit * CHUNK, 0)
                    else:
                        self.same(server, hit * CHUNK, 1)
                        server.settle("quire_chunks_lost_total", 1, 30)
                    for _ in range(2):
                        self.same(server, hit * CHUNK, kind is not missing)
                    os.unlink(chain[4])  # behind what was lost: nobody asks for it
                    self.same(server, hit * CHUNK, kind is not missing)
                    self.assertEqual(server.stop(), 0)
                self.assertEqual(len(store.catalog("replicas")), 4)
                with store.serve(*SLOW) as server:  # all of it again
                    server.settle("quire_chunks_lost_total", 1, 30)
                    self.assertEqual(said(server.complete(**self.ask)), (self.wanted, hit * CHUNK))
                    quiet(server)
                    self.same(server, 5 * CHUNK, 0)
                    self.assertEqual(server.stop(), 0)
                self.assertEqual(store.verify().returncode, 0)
                self.assertEqual((len(store.files()), len(store.catalog("replicas"))), (5, 5))

    def test_every_file_is_gone(self):
        shutil.rmtree(os.path.join(self.store.path, "chunks"))
        with self.store.serve(*self.IDLE) as server:
            server.settle("quire_chunks_lost_total", 5, 30)
            self.same(server, 0, 0)
            self.assertEqual(server.stop(), 0)
        self.agrees(0)

    def test_a_file_that_is_rewritten_between_two_requests(self):
        """Another row under a quick digest that was made right again is seen by its SHA-256 (message level: moves_test)."""
        chain = self.store.chain()
        with self.store.serve(*SLOW) as server:
            self.same(server, 5 * CHUNK, 0)
            times = os.stat(chain[3])
            os.utime(chain[3], ns=(times.st_atime_ns, times.st_mtime_ns + 1))
            self.same(server, 5 * CHUNK, 0)  # intact after all
            self.assertEqual(server.stop(), 0)
        self.agrees(5)


def fill_slowly(server, prompts, errors):
    """Asks them in two threads."""

    def some(mine):
        for prompt in mine:
            try:
                server.complete(**greedy(prompt, 2))
            except Exception as error:  # it was killed
                errors.append(error)
                return

    threads = [threading.Thread(target=some, args=(prompts[i::2],)) for i in range(2)]
    [t.start() for t in threads]
    return threads


def digest_of(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Kill(unittest.TestCase):
    """S3: kill -9 while chunks are captured. What was acknowledged is there, nothing half-written is offered, and what was not finished is
    made good by the next request."""

    def agrees(self, store, acknowledged):
        """The catalog is clean and names no file that is not there and whole; returns how many chunks it has."""
        done = store.verify()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        files = store.files()
        parts = {p["chain"]: p["digest"] for p in store.catalog("parts")}
        replicas = store.catalog("replicas")
        self.assertGreaterEqual(len(replicas), acknowledged)
        for replica in replicas:
            path = files[parts[replica["chain"]]]
            self.assertEqual(digest_of(path), os.path.basename(path))
        return len(replicas)

    def test_S3_killed_while_capturing(self):
        draw = random.Random(SEED + 2)
        kills, known = 50 if FULL else 3, 0
        with Store() as store:
            asked = []
            for turn in range(kills):
                fresh = [ids(CHUNK * 6 + 5, 100 + turn * 8 + i) for i in range(6)]
                asked += fresh
                with store.serve(*SMALL) as server:
                    threads, seen = fill_slowly(server, fresh, []), 0
                    # After so many rows of the 36 chunks; in the end well within, so that there is something to be found again.
                    enough = draw.randrange(18 if turn == kills - 1 else 0, 30) * CHUNK

                    def captured():
                        nonlocal seen
                        m = server.metrics()
                        seen = m["quire_captured_rows_total"]
                        over = not m["quire_captures_open"] and not any(t.is_alive() for t in threads)  # a full queue skipped the rest
                        return seen >= enough or over

                    wait_for(captured)
                    store.kill(server)
                    [t.join() for t in threads]
                known = self.agrees(store, known + int(seen) // CHUNK)
            # Every prompt has its cold answer, from whatever is there; afterwards all of it is durable, be it lost in whatever step.
            asked = draw.sample(asked[:-6], 6) + asked[-6:]
            wanted = cold([greedy(prompt, 2) for prompt in asked], *SMALL)
            reused = 0
            with store.serve(*SMALL) as server:
                for prompt, want in zip(asked, wanted):
                    answer, cached = said(server.complete(**greedy(prompt, 2)))
                    self.assertEqual(answer, want)
                    reused += cached
                    quiet(server)
                self.assertGreater(reused, 0)
                self.assertEqual(server.stop(), 0)
            self.agrees(store, known)
            with store.serve(*SLOW, "--fail-over-rows", 10) as server:
                for prompt, want in zip(asked, wanted):
                    self.assertEqual(said(server.complete(**greedy(prompt, 2))), (want, CHUNK * 6))
                    server.drop_cache()
                self.assertEqual(server.stop(), 0)

    def test_a_graceful_stop_loses_nothing(self):
        draw = random.Random(SEED + 3)
        with Store() as store:
            known = 0
            for turn in range(20 if FULL else 2):
                with store.serve(*SMALL, "--stop-budget-ms", 1000 * PATIENCE_S) as server:
                    fresh = [ids(CHUNK * 6 + 5, 1000 + turn * 8 + i) for i in range(6)]
                    threads = fill_slowly(server, fresh, [])
                    time.sleep(draw.uniform(0.05, 0.8))
                    seen = server.metrics()["quire_captured_rows_total"]
                    self.assertEqual(server.stop(seconds=2 * PATIENCE_S), 0)
                    [t.join() for t in threads]
                known = self.agrees(store, known + int(seen) // CHUNK)

    def test_a_second_signal_ends_at_once(self):
        with Store() as store, store.serve(*SMALL, "--stop-budget-ms", 600000) as server:
            threads = fill_slowly(server, [ids(CHUNK * 6 + 5, 2000 + i) for i in range(6)], [])
            ask = threading.Thread(target=lambda: self.assertRaises(Exception, server.complete, **greedy(ids(100, 2010), 3000)))
            ask.start()
            wait_for(lambda: server.metrics()["quire_lanes_open"])
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.05)
            if server.process.poll() is None:
                server.process.send_signal(signal.SIGINT)
            server.process.wait(PATIENCE_S)
            [t.join() for t in (*threads, ask)]
            self.assertEqual(store.verify().returncode, 0)


class Lost(unittest.TestCase):
    """Files without facts, facts without files."""

    def test_CK_01_files_outlive_their_catalog(self):
        """As after a kill between the rename of a file and the publish of its node, for every file at once: nothing is written twice, and
        what was computed again is known again."""
        ask = greedy(ids(CHUNK * 5 + 5, 3000))
        with Store() as store:
            with store.serve(*SMALL) as server:
                wanted = said(server.complete(**ask))[0]
                rows_durable(server, CHUNK * 5)
                store.kill(server)
            before = {name: (os.stat(path).st_ino, os.stat(path).st_mtime_ns) for name, path in store.files().items()}
            with store.serve(*SLOW) as server:  # found by a restart, and not written again
                self.assertEqual(said(server.complete(**ask)), (wanted, CHUNK * 5))
                self.assertEqual(quiet(server)["quire_store_writes_total"], 0)
                store.kill(server)
            for folder in ("log", "facts"):
                shutil.rmtree(os.path.join(store.path, folder))
            with store.serve(*SMALL) as server:
                self.assertEqual(server.metrics()["quire_store_files"], 5)
                self.assertEqual(said(server.complete(**ask)), (wanted, 0))
                rows_durable(server, CHUNK * 5)
                self.assertEqual(quiet(server)["quire_store_writes_total"], 0)
                store.kill(server)
            with store.serve(*SLOW, "--fail-over-rows", 10) as server:
                self.assertEqual(said(server.complete(**ask)), (wanted, CHUNK * 5))
                self.assertEqual(server.stop(), 0)
            self.assertEqual(before, {name: (os.stat(path).st_ino, os.stat(path).st_mtime_ns) for name, path in store.files().items()})

    def test_files_that_nobody_asks_for_make_room(self):
        with Store() as store:
            with store.serve(*SMALL, "--store-files", 16) as server:
                for i in range(4):
                    server.complete(**greedy(ids(CHUNK * 4 + 5, 3100 + i)))
                    quiet(server)
                self.assertEqual(len(store.files()), 16)
                store.kill(server)
            for folder in ("log", "facts"):
                shutil.rmtree(os.path.join(store.path, folder))
            ask = greedy(ids(CHUNK * 6 + 5, 3200))
            with store.serve(*SMALL, "--store-files", 16) as server:
                wanted = said(server.complete(**ask))[0]
                m = quiet(server)
                self.assertEqual(m["quire_captured_rows_total"], CHUNK * 6)
                self.assertEqual(m["quire_store_files"], 16)
                store.kill(server)
            with store.serve(*SLOW, "--store-files", 16) as server:
                self.assertEqual(said(server.complete(**ask)), (wanted, CHUNK * 6))
                self.assertEqual(server.stop(), 0)


class Bound(unittest.TestCase):
    """S7: a store at its bound stays within it, and its files, the catalog and the accounting agree, also after a restart."""

    def test_S7_churn_at_the_bound(self):
        bound, seconds = 1 << 20, 600 if FULL else 8
        with Store() as store:
            for life in range(2):
                with store.serve(*SMALL, "--store-bytes", bound) as server:
                    end, turn, evicted = time.monotonic() + seconds / 2, 0, 0
                    while time.monotonic() < end or not evicted:
                        threads = fill_slowly(server, [ids(CHUNK * 5 + 5, 5000 + life * 100000 + turn * 4 + i) for i in range(4)], [])
                        [t.join() for t in threads]
                        turn += 1
                        m = server.metrics()
                        evicted = m["quire_store_evictions_total"]
                        self.assertLessEqual(m["quire_store_bytes"], bound)
                        self.assertLessEqual(self.on_disk(store), bound)
                    m = quiet(server)
                    size, files = self.on_disk(store), len(store.files())
                    self.assertEqual((m["quire_store_bytes"], m["quire_store_files"]), (size, files))
                    self.assertGreater(size, bound // 2)
                    self.assertEqual(server.stop(), 0)
                parts = {p["chain"]: p["digest"] for p in store.catalog("parts")}
                self.assertEqual(sorted(parts[r["chain"]] for r in store.catalog("replicas")), sorted(store.files()))
                with store.serve(*SMALL, "--store-bytes", bound) as server:
                    m = server.metrics()
                    self.assertEqual((m["quire_store_bytes"], m["quire_store_files"]), (size, files))
                    server.stop()
            with store.serve(*SMALL, "--store-bytes", bound) as server:
                ask = greedy(ids(CHUNK * 3 + 5, 4999), 3)
                answer = said(server.complete(**ask))[0]
                rows_durable(server, CHUNK * 3)
                server.stop()
            with store.serve(*SLOW, "--store-bytes", bound) as server:
                # Ready is who has read all of a long log.
                self.assertEqual(said(server.complete(**ask)), (answer, CHUNK * 3))
                self.assertEqual(server.stop(), 0)

    def on_disk(self, store):
        size = 0
        for path in glob.glob(os.path.join(store.path, "chunks", "??", "??", "*")):
            try:
                size += os.path.getsize(path)
            except OSError:  # it left just now
                pass
        return size


class Apart(unittest.TestCase):
    """S8: who shares durable state."""

    def test_S8_tenants_and_salts(self):
        keys, text = {}, "version = 1\n"
        for name in ("alice", "bob"):
            keys[name], lines = make(name, admin=name == "alice")
            text += lines
        path = os.path.join(scratch.name, "keys.conf")
        with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(text)
        prompt = ids(CHUNK * 3 + 5, 7)

        def asks(server, name, **more):
            status, body, _ = server.request("POST", "/v1/completions", {**greedy(prompt), **more}, {"Authorization": "Bearer " + keys[name]})
            self.assertEqual(status, 200, body)
            return said(json.loads(body))

        def durable(server, chunks):
            def captured():
                _, body, _ = server.request("GET", "/metrics", headers={"Authorization": "Bearer " + keys["alice"]})
                return float(re.search(r"^quire_captured_rows_total ([0-9.e+]+)", body.decode(), re.M)[1]) >= chunks * CHUNK

            wait_for(captured)

        wanted = cold([greedy(prompt)], *SMALL)[0]
        with Store() as store:
            with store.serve(*SMALL, "--keys", path) as server:
                self.assertEqual(asks(server, "alice"), (wanted, 0))
                durable(server, 3)
                self.assertEqual(asks(server, "bob", cache_salt="x"), (wanted, 0))
                durable(server, 6)
                store.kill(server)
            with store.serve(*SLOW, "--keys", path) as server:
                self.assertEqual(asks(server, "bob"), (wanted, 0))
                self.assertEqual(asks(server, "bob", cache_salt="y"), (wanted, 0))
                self.assertEqual(asks(server, "alice", cache_salt="x"), (wanted, 0))
                self.assertEqual(asks(server, "bob", cache_salt="x"), (wanted, CHUNK * 3))
                self.assertEqual(asks(server, "alice"), (wanted, CHUNK * 3))
                self.assertEqual(server.stop(), 0)

    def test_two_servers_on_one_store(self):
        with Store() as store, store.serve(*SMALL) as first:
            done = run("serve", "--model", TINY, "--listen", "127.0.0.1:0", "--store", store.path, check=False, timeout=PATIENCE_S)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(str(first.process.pid), done.stderr)
            self.assertIn(store.path, done.stderr)
            done = store.verify()
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("in use", done.stderr)
            first.complete(**greedy(ids(70, 8)))
            self.assertEqual(first.stop(), 0)


    def test_generate_and_bench_leave_no_store(self):
        with tempfile.TemporaryDirectory() as state:
            there = dict(os.environ, XDG_STATE_HOME=state)
            quire = os.path.join(BUILD, "quire")
            for words in (["generate", "--prompt", "x" * 200, "--max-tokens", "4"], ["bench", "--repeats", "1", "--decode", "4", "--long", "16", "--streams", "1"]):
                done = subprocess.run([quire, words[0], "--model", TINY, *words[1:]], capture_output=True, text=True, timeout=PATIENCE_S, env=there)
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(os.listdir(state), [])


class Settings(unittest.TestCase):
    """S9: what a store holds does not depend on how it was computed or where its rows lay."""

    def test_PI_05_S9_other_pages_tiles_and_threads(self):
        ask, longer = sampled(ids(CHUNK * 7 + 21, 9)), greedy(ids(CHUNK * 7 + 21, 9) + ids(40, 10))
        wanted, wanted_longer = cold([ask, longer], *SMALL)
        ways = [(16, 512, 2, "auto"), (8, 64, 1, "scalar"), (32, 7, 2, "avx2"), (64, 128, 1, "auto")]
        ways += [(128, 512, 2, "auto"), (8, 512, 2, "auto"), (16, 1, 1, "auto"), (64, 33, 2, "scalar")] if FULL else []
        with Store() as store:
            for number, (page, tile, threads, isa) in enumerate(ways):
                options = ["--page-tokens", page, "--prefill-tile", tile, "--threads", threads, "--isa", isa]
                with self.subTest(page=page, tile=tile), store.serve(*SMALL, *options) as server:
                    have = CHUNK * 7 if number else 0
                    self.assertEqual(said(server.complete(**ask)), (wanted, have))
                    self.assertEqual(said(server.complete(**longer))[0], wanted_longer)
                    if number == 0:
                        rows_durable(server, CHUNK * 7)
                    store.kill(server)
            with Store() as other:  # written with large pages, read with small ones
                with other.serve(*SMALL, "--page-tokens", 128 if FULL else 64) as server:
                    server.complete(**ask)
                    rows_durable(server, CHUNK * 7)
                with other.serve(*SMALL, "--page-tokens", 8) as server:
                    self.assertEqual(said(server.complete(**ask)), (wanted, CHUNK * 7))


class TwoNodes(unittest.TestCase):
    """The device's process has the store; the edge's one shows its numbers."""

    def test_a_device_that_was_killed_restores(self):
        ask = greedy(ids(CHUNK * 5 + 5, 6000))
        wanted = cold([ask], *SMALL)[0]
        with Store() as store:
            mesh = TwoProcesses()
            mesh.model, mesh.options, mesh.device_options = TINY, SMALL, ["--store", store.path]
            with mesh:
                self.assertEqual(said(mesh.edge.complete(**ask)), (wanted, 0))
                rows_durable(mesh.edge, CHUNK * 5)
                for _ in range(3 if FULL else 1):
                    mesh.device.process.kill()
                    mesh.device.process.wait(PATIENCE_S)
                    mesh.edge.wait_ready(status=503)
                    mesh.start_device()
                    mesh.edge.wait_ready()
                    self.assertEqual(said(mesh.edge.complete(**ask)), (wanted, CHUNK * 5))
                self.assertEqual(mesh.edge.metrics()["quire_store_files"], 5)
                self.assertEqual(mesh.edge.stop(), 0)
                self.assertEqual(mesh.device.stop(), 0)
            self.assertEqual(store.verify().returncode, 0)


PURE = ["gateway", "router", "worker", "scheduler", "page_manager", "heartbeat", "restore_streamer", "checkpoint_writer", "catalog_writer", "catalog_replica"]


def mount(folder, words):
    """Whether a file system of these words could be mounted there; only root may."""
    return os.geteuid() == 0 and subprocess.run(["mount", *words, folder], capture_output=True).returncode == 0


class Disk(unittest.TestCase):
    """S2: a disk that takes nothing."""

    def test_RS_03_S2_a_full_disk(self):
        asks = [greedy(ids(CHUNK * 6 + 5, 4000 + i), 2) for i in range(12)]
        wanted = cold(asks, *SMALL)
        with Store() as store:
            os.mkdir(store.path)
            if not mount(store.path, ["-t", "tmpfs", "-o", "size=768k,mode=700", "none"]):
                self.skipTest("no file system can be mounted here")
            try:
                with store.serve(*SMALL) as server:
                    for ask, want in zip(asks, wanted):
                        self.assertEqual(said(server.complete(**ask))[0], want)
                        quiet(server)
                    m = server.metrics()
                    self.assertGreater(m["quire_captured_rows_total"], 0)
                    self.assertGreater(m["quire_captures_full_total"], 0)
                    server.says("could not be written")
                    store.kill(server)
                kept = m["quire_captured_rows_total"]
                subprocess.run(["mount", "-o", "remount,size=4m", store.path], check=True)
                self.assertEqual(store.verify().returncode, 0)
                self.assertGreaterEqual(len(store.catalog("replicas")) * CHUNK, kept)
                for again in range(2):
                    with store.serve(*SLOW) as server:
                        for ask, want in zip(asks, wanted):
                            answer, cached = said(server.complete(**ask))
                            self.assertEqual(answer, want)
                            self.assertTrue(cached == CHUNK * 6 or not again, cached)
                            quiet(server)
                        self.assertEqual(server.stop(), 0)
            finally:
                subprocess.run(["umount", store.path], check=True)

    def test_a_full_disk_is_not_called_damage(self):
        with Store() as store:
            os.mkdir(store.path)
            if not mount(store.path, ["-t", "tmpfs", "-o", "size=2m,mode=700", "none"]):
                self.skipTest("no file system can be mounted here")
            try:
                with store.serve(*SMALL) as server:
                    server.complete(**greedy(ids(CHUNK * 2 + 5, 73)))
                    rows_durable(server, CHUNK * 2)
                    self.assertEqual(server.stop(), 0)
                before = store.catalog("nodes")
                with open(os.path.join(store.path, "ballast"), "wb", buffering=0) as ballast:
                    try:
                        while True:
                            ballast.write(bytes(4096))
                    except OSError:
                        pass
                done = run("catalog", "show", "--store", store.path, check=False)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn("disk is full", done.stderr)
                self.assertEqual(glob.glob(os.path.join(store.path, "facts", "damaged-*")), [])
                os.unlink(os.path.join(store.path, "ballast"))
                self.assertEqual(store.catalog("nodes"), before)
                self.assertEqual(store.verify().returncode, 0)
            finally:
                subprocess.run(["umount", store.path], check=True)

    def test_S2_a_store_that_takes_no_files(self):
        asks = [greedy(ids(CHUNK * 3 + 5, 4100 + i), 2) for i in range(2)]
        wanted = cold(asks, *SMALL)
        with Store() as store:
            with store.serve(*SMALL) as server:
                self.assertEqual(said(server.complete(**asks[0])), (wanted[0], 0))
                rows_durable(server, CHUNK * 3)
                self.assertEqual(server.stop(), 0)
            temporaries = os.path.join(store.path, "tmp")
            if not mount(temporaries, ["--bind", temporaries]):
                self.skipTest("no file system can be mounted here")
            try:
                subprocess.run(["mount", "-o", "remount,ro,bind", temporaries], check=True)
                with store.serve(*SLOW) as server:
                    self.assertEqual(said(server.complete(**asks[0])), (wanted[0], CHUNK * 3))
                    self.assertEqual(said(server.complete(**asks[1])), (wanted[1], 0))
                    m = quiet(server)
                    self.assertEqual(m["quire_captured_rows_total"], 0)
                    self.assertEqual(m["quire_captures_io_total"], m["quire_store_write_failures_total"])
                    server.says("could not be written")
                    self.assertEqual(server.stop(), 0)
            finally:
                subprocess.run(["umount", temporaries], check=True)

    def test_S2_a_read_only_store_is_refused_by_name(self):
        with Store() as store:
            os.mkdir(store.path, 0o700)
            if not mount(store.path, ["-t", "tmpfs", "-o", "ro,size=1m,mode=700", "none"]):
                self.skipTest("no file system can be mounted here")
            try:
                done = run("serve", "--model", TINY, "--listen", "127.0.0.1:0", "--store", store.path, check=False, timeout=PATIENCE_S)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(store.path, done.stderr)
                self.assertIn("ead-only", done.stderr)
            finally:
                subprocess.run(["umount", store.path], check=True)


def catalog(store, *words, status=0):
    done = run("catalog", *words, "--store", store.path, "--json", check=False)
    assert done.returncode == status, (done.returncode, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def replays(test, d, policies):
    """The decision again, from its own numbers and those of its policy (actors/cost.h); of rows that no request had for itself."""
    p, rest, resident, ways = policies[d["policy"]], d["recompute"]["row_ns"], d["resident_rows"], {"recompute": d["recompute"]["ns"]}
    test.assertEqual(d["recompute"]["ns"], (d["rows"] - resident) * rest)
    for way, once in (("ssd", p["restore_ns"]), ("ram", p["ram_ns"])):
        if d[way]:
            rows, in_ram = d[way]["rows"], min(max(d["ram"]["rows"], resident), d[way]["rows"]) if d["ram"] else resident
            took = (in_ram - resident) * d["ram"]["row_ns"] if d["ram"] else 0
            took += (rows - in_ram) * d["ssd"]["row_ns"] if rows > in_ram else 0
            test.assertEqual(d[way]["ns"], once + took + (d["rows"] - rows) * rest)
            ways[way] = d[way]["ns"]
    again = "resident" if resident == d["rows"] else min(ways, key=lambda way: (ways[way], ["recompute", "ram", "ssd"].index(way)))
    test.assertEqual(d["choice"], again)
    test.assertEqual(d["predicted_ns"], 0 if again == "resident" else d[again]["ns"])


class Decisions(unittest.TestCase):
    """P6: what was chosen, by which numbers, and what came of it."""

    def test_a_warm_restart_says_why_it_restored_and_what_came_of_it(self):
        ask = greedy(ids(CHUNK * 6 + 5, 70))
        with Store() as store:
            with store.serve(*JUDGED) as server:
                server.complete(**ask)
                rows_durable(server, CHUNK * 6)
                m = server.metrics()
                self.assertEqual(m["quire_decisions_kept_total"], 0)  # nothing was durable: nothing to decide
                self.assertGreater(m["quire_facts_transactions"], 1)
                self.assertEqual((m["quire_facts_nodes"], m["quire_policy_version"]), (6, 1))
                self.assertEqual(server.stop(), 0)
            stated = catalog(store, "policy", "--recompute-row-ns", 5000000, "--restore-ns", 900000)
            self.assertEqual([p["version"] for p in stated], [2])
            with store.serve(*JUDGED) as server:
                for again in range(2):
                    server.complete(**ask)
                server.settle("quire_decisions_kept_total", 2)
                m = server.metrics()
                self.assertEqual((m["quire_decisions_ssd_total"], m["quire_decisions_resident_total"], m["quire_policy_version"]), (1, 1, 2))
                self.assertEqual((m["quire_chunks_reused_total"], m["quire_decisions_dropped_total"]), (6, 0))
                self.assertEqual(server.stop(), 0)
            policies = {p["version"]: p for p in catalog(store, "query", "policies")}
            self.assertEqual(sorted(policies), [1, 2])
            self.assertEqual((policies[2]["restore_ns"], policies[2]["ram_ns"]), (900000, policies[1]["ram_ns"]))
            restored, resident = catalog(store, "query", "decisions")
            for d in (restored, resident):
                self.assertEqual(d["policy"], 2)
                replays(self, d, policies)
            self.assertEqual((restored["choice"], resident["choice"]), ("ssd", "resident"))
            self.assertEqual((restored["ssd"]["rows"], restored["ssd"]["samples"], restored["recompute"]["row_ns"]), (CHUNK * 6, 0, 5000000))
            out = restored["outcome"]
            self.assertEqual((out["rows"], out["reason"]), (CHUNK * 6, ""))
            self.assertGreater(out["device_ns"], 0)
            self.assertGreaterEqual(out["elapsed_ns"], out["device_ns"] // 2)
            self.assertIn(restored["chain"], [n["chain"] for n in store.catalog("nodes") if n["start"] == CHUNK * 5])
            self.assertEqual([n["reuse"] for n in store.catalog("nodes")], [1] * 6)
            self.assertEqual(catalog(store, "query", "decisions", "--from", 2), [resident])
            self.assertEqual(catalog(store, "query", "decisions", "--as-of", 1), [])
            self.assertEqual(catalog(store, "query", "decisions", "--since", resident["time_us"] + 1), [])

    def test_the_ring_of_decisions_has_a_bound(self):
        ask = greedy(ids(CHUNK + 5, 71), 1)
        with Store() as store:
            with store.serve(*JUDGED, "--decisions-max", 16) as server:
                server.complete(**ask)
                rows_durable(server, CHUNK)
                for again in range(20):
                    server.complete(**ask)
                self.assertEqual(server.stop(), 0)
            self.assertEqual([d["number"] for d in catalog(store, "query", "decisions")], list(range(5, 21)))

    def test_demands_are_stated_listed_and_taken_back(self):
        with Store() as store:
            with store.serve(*JUDGED) as server:
                server.complete(**greedy(ids(CHUNK * 2 + 5, 72)))
                rows_durable(server, CHUNK * 2)
                self.assertEqual(server.stop(), 0)
            first, second = sorted(n["chain"] for n in store.catalog("nodes"))
            catalog(store, "demand", "--chain", first, "--tier", "ram", "--owner", 1)
            catalog(store, "demand", "--chain", second, "--tier", "ssd", "--owner", 2, "--priority", 3)
            catalog(store, "demand", "--chain", second, "--tier", "ram", "--owner", 2, "--ttl-s", 0)
            listed = catalog(store, "query", "demands")
            self.assertEqual([(d["chain"], d["tier"], d["owner"], d["priority"]) for d in listed], [(second, "ssd", 2, 3), (first, "ram", 1, 0)])
            with store.serve(*JUDGED) as server:  # they outlive a server
                self.assertEqual(server.metrics()["quire_facts_demands"], 2)
                self.assertEqual(server.stop(), 0)
            catalog(store, "demand", "--chain", second, "--tier", "ssd", "--owner", 2, "--cancel")
            catalog(store, "demand", "--chain", second, "--tier", "ssd", "--owner", 2, "--cancel", status=1)
            self.assertEqual([d["chain"] for d in catalog(store, "query", "demands")], [first])
            catalog(store, "demand", "--chain", first, "--tier", "ram", status=2)


class Recorded(unittest.TestCase):
    def test_a_run_with_a_store_replays_byte_for_byte(self):
        with Store() as store, tempfile.TemporaryDirectory() as folder:
            for number in range(2):
                record = os.path.join(folder, str(number))
                with store.serve(*SMALL, "--record", record, "--store-files", 16) as server:
                    server.complete(**greedy(ids(CHUNK * 6 + 5, 20)))
                    quiet(server)
                    for turn in range(3):
                        threads = fill_slowly(server, [ids(CHUNK * 3 + 5, 30 + turn * 2 + number * 40 + i) for i in range(2)], [])
                        [t.join() for t in threads]
                        quiet(server)
                        server.drop_cache()
                    server.complete(**greedy(ids(CHUNK * 3 + 5, 30 + 4 + number * 40)))
                    m = server.metrics()
                    self.assertEqual(server.stop(), 0)
                status, lines, total, done = replay(record)
                self.assertEqual(status, 0, done.stdout + done.stderr)
                self.assertEqual(total[1:], [0, 0, 0])
                for role in PURE:
                    mine = [line for name, line in lines.items() if f"-{role}." in name]
                    self.assertTrue(mine and all("all equal" in line for line in mine), (role, mine))
            self.assertGreater(m["quire_restored_tokens_total"], 0)
            self.assertGreater(m["quire_store_evictions_total"], 0)


if __name__ == "__main__":
    unittest.main()
