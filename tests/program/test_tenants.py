"""Tenants of the HTTP edge, through the official OpenAI client: who is let in, what is shared and what is not, quotas under load."""
import glob
import hashlib
import os
import re
import stat
import subprocess
import tempfile
import threading
import time
import unittest

import openai
from openai import OpenAI

from quire_program import MODEL, PATIENCE_S, QUIRE, Server, free_port, run

PROMPT = [504, 3575, 282, 4649, 314] * 16


def make(name, limits="", admin=False):
    """A new key of a new tenant: (key, the lines that know it)."""
    done = run("keys", "--bearer", name)
    lines = done.stdout + ("        admin = 1\n" if admin else "")
    return re.search(r"\bqk-[\w-]{43}\b", done.stderr)[0], lines.replace("    key =", limits + "    key =")


class Stand:
    """A server with tenants alice (limits), bob and operator (admin)."""

    def __init__(self, *options, limits=""):
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "keys.conf")
        self.keys, text = {}, "version = 1\n"
        for name in ("alice", "bob", "operator"):
            self.keys[name], lines = make(name, limits if name == "alice" else "", name == "operator")
            text += lines
        second, lines = make("again")  # alice's other key
        self.keys["alice2"] = second
        text = text.replace("tenant = bob", re.search(r" +key = \w+\n", lines)[0] + "tenant = bob")
        with open(os.open(self.path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(text)
        self.text = text
        self.server = Server("--keys", self.path, *options)
        request = self.server.request
        # metrics and the cache are the operator's
        self.server.request = lambda method, path, body=None, headers=None, timeout=120: request(
            method, path, body, {"Authorization": "Bearer " + self.keys["operator"], **(headers or {})}, timeout
        )

    def client(self, name):
        return OpenAI(base_url=self.server.base + "/v1", api_key=self.keys.get(name, name), max_retries=0, timeout=300)

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.server.__exit__(*what)
        self.folder.cleanup()


def cached(client, prompt=PROMPT, **extra):
    answer = client.completions.create(model="default", prompt=prompt, max_tokens=2, temperature=0, extra_body=extra)
    return answer.usage.prompt_tokens_details.cached_tokens, answer.choices[0].text


def together(count, work):
    """work(i) in so many threads that begin at once; results and how long it took."""
    barrier, results = threading.Barrier(count), [None] * count

    def one(i):
        barrier.wait()
        try:
            results[i] = work(i)
        except Exception as error:  # the caller looks at it
            results[i] = error

    begin = time.monotonic()
    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return results, time.monotonic() - begin


class Keys(unittest.TestCase):
    def test_who_is_let_in(self):
        with Stand() as stand:
            for key in ("none", "qk-" + "A" * 43, stand.keys["bob"][:-1]):
                client = stand.client(key)
                for call in (lambda: client.models.list(), lambda: cached(client), lambda: client.chat.completions.create(
                        model="default", messages=[{"role": "user", "content": "hi " * 200000}])):
                    with self.assertRaises(openai.AuthenticationError) as caught:
                        call()
                    error = caught.exception
                    self.assertEqual(error.response.headers["WWW-Authenticate"], 'Bearer realm="quire"')
                    self.assertEqual(set(error.response.json()["error"]), {"message", "type", "param", "code"})
                    self.assertEqual((error.code, error.type), ("invalid_api_key", "invalid_request_error"))
                    for secret in ("alice", "bob", "operator", key):
                        self.assertNotIn(secret, error.response.text)
            self.assertEqual(len(stand.client("bob").models.list().data), 1)
            with self.assertRaises(openai.PermissionDeniedError):
                stand.client("bob").get("../metrics", cast_to=str)
            self.assertIn("quire_requests_open", stand.server.metrics())
            self.assertEqual(stand.server.stop(), 0)

    def test_boot_refusals_say_what_to_do(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys.conf")

            def refused(*options, has):
                done = run("serve", "--model", MODEL, *options, check=False, timeout=PATIENCE_S)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
                for part in has:
                    self.assertIn(part, done.stderr)
                self.assertNotIn("hunter2", done.stderr)

            refused("--listen", f"0.0.0.0:{free_port()}", has=["--keys FILE", "127.0.0.1"])
            refused("--keys", path, has=[path])
            with open(path, "w") as file:
                file.write("version = 1\ntenant = a\n    key = hunter2\n")
            os.chmod(path, 0o644)
            refused("--keys", path, has=[path, "chmod it to 0600"])
            os.chmod(path, 0o600)
            refused("--keys", path, has=[path, "line 3", "SHA-256"])

    def test_keys_are_nowhere(self):
        with tempfile.TemporaryDirectory() as folder, Stand("--record", folder) as stand:
            for name in ("alice", "bob"):
                cached(stand.client(name), user=name)
                client = stand.client(name)
                list(client.completions.create(model="default", prompt="Once", max_tokens=4, stream=True))
            page = stand.server.get("/metrics")[1]
            self.assertEqual(stand.server.stop(), 0)
            shown = [page, stand.server.text().encode()]
            files = glob.glob(os.path.join(folder, "**"), recursive=True)
            for path in files:
                if os.path.isfile(path):
                    with open(path, "rb") as file:
                        shown.append(file.read())
            self.assertGreater(len(shown), 5)
            tap = subprocess.run([QUIRE, "tap", folder], capture_output=True, timeout=PATIENCE_S).stdout
            self.assertIn(b"tenant=1", tap)
            self.assertIn(b"tenant=2", tap)
            shown.append(tap)
            digests = [bytes.fromhex(d) for d in re.findall(r"key = (\w+)", stand.text)]
            for text in shown:
                for secret in [k.encode() for k in stand.keys.values()] + digests + [d.hex().encode() for d in digests]:
                    self.assertNotIn(secret, text)
            for text in shown[:2]:
                for name in (b"alice", b"bob", b"operator"):
                    self.assertNotIn(name, text)


class Sharing(unittest.TestCase):
    def test_tenants_share_nothing_and_keys_of_one_do(self):
        with Stand() as stand:
            alice, again, bob = (stand.client(n) for n in ("alice", "alice2", "bob"))
            first, text = cached(alice)
            self.assertEqual(first, 0)
            results, _ = together(8, lambda i: cached(bob if i % 2 else alice, PROMPT + [i]))
            self.assertEqual([r for r in results if isinstance(r, Exception)], [])
            self.assertTrue(all(r[0] > 0 for r in results[0::2]), results)
            stand.server.drop_cache()
            self.assertEqual(cached(alice)[0], 0)
            self.assertEqual(cached(bob), (0, text))  # the same prompt, another tenant
            for client in (alice, again, bob):
                hit, same = cached(client, user="somebody else")
                self.assertGreater(hit, 0)
                self.assertEqual(same, text)
            for client in (alice, bob):  # a salt of one's own isolates further, and is not another tenant's
                self.assertEqual(cached(client, cache_salt="s")[0], 0)
                self.assertGreater(cached(client, cache_salt="s")[0], 0)
            self.assertEqual(cached(again, priority=3, deadline_ms=60000)[1], text)


class Quotas(unittest.TestCase):
    def refused(self, error, wait_s_most=None):
        self.assertIsInstance(error, openai.RateLimitError)
        self.assertEqual((error.code, error.type, error.param), ("rate_limit_exceeded", "rate_limit_error", None))
        wait = int(error.response.headers["Retry-After"])
        self.assertGreaterEqual(wait, 1)
        if wait_s_most:
            self.assertLessEqual(wait, wait_s_most)

    def test_requests_at_once(self):
        with Stand("--max-lanes", 16, limits="    lanes = 4\n") as stand:
            alice, bob = stand.client("alice"), stand.client("bob")
            held = []

            def begin(client, i):
                stream = client.completions.create(model="default", prompt=[504, 3575, 282, 4649 + i], max_tokens=1500, stream=True,
                                                   extra_body={"ignore_eos": True})
                held.append(stream)  # nobody reads on: it runs until it is closed
                return next(iter(stream))

            results, _ = together(16, lambda i: begin(alice, i))
            errors = [r for r in results if isinstance(r, Exception)]
            self.assertEqual(len(errors), 12, results)
            for error in errors:
                self.refused(error)
            self.assertEqual(stand.server.metrics()["quire_requests_open"], 4)
            self.assertEqual(stand.server.metrics()["quire_requests_over_quota_total"], 12)
            begin(bob, 40)  # others are not touched
            for stream in held[:4]:
                stream.close()
            stand.server.settle("quire_requests_open", 1)
            begin(alice, 41)
            for stream in held[4:]:
                stream.close()
            stand.server.settle("quire_requests_open", 0)

    def test_pages(self):
        with Stand("--page-tokens", 16, limits="    pages = 8\n") as stand:
            alice = stand.client("alice")

            def begin(i):
                stream = alice.completions.create(model="default", prompt=[504, 3575, 282, 4649 + i], max_tokens=60, stream=True,
                                                  extra_body={"ignore_eos": True})
                return [e.choices[0].finish_reason for e in stream][-1]

            results, _ = together(16, begin)  # 63 rows, 4 pages each: two at a time
            good = [r for r in results if not isinstance(r, Exception)]
            self.assertGreaterEqual(len(good), 2)
            self.assertEqual(set(good), {"length"})
            for error in (r for r in results if isinstance(r, Exception)):
                self.refused(error)
            with self.assertRaises(openai.BadRequestError) as caught:
                cached(alice, PROMPT * 2)
            self.assertEqual(caught.exception.code, "never_fits")
            stand.server.settle("quire_requests_open", 0)
            begin(50)

    def test_tokens_per_second(self):
        with Stand("--max-lanes", 16, limits="    tokens_per_s = 1\n") as stand:
            alice, bob = stand.client("alice"), stand.client("bob")

            def ask(client, i):
                return client.completions.create(model="default", prompt=[504, 3575, 282, 4649 + i], max_tokens=6,
                                                 extra_body={"ignore_eos": True}).usage.total_tokens

            results, took = together(16, lambda i: ask(alice, i))
            good = [r for r in results if not isinstance(r, Exception)]
            self.assertGreaterEqual(len(good), 1)
            self.assertLessEqual(sum(good), 10 + took)  # the bucket holds ten seconds of the rate
            for error in (r for r in results if isinstance(r, Exception)):
                self.refused(error, 10)
            results, _ = together(4, lambda i: ask(bob, i))
            self.assertEqual(results, [10] * 4)


class Tool(unittest.TestCase):
    def test_quire_continuation_takes_every_key(self):
        """Keys hold any of 64 letters, '-' and '_' among them."""
        key = "qk-" + "_-Az09" * 7 + "_"
        lines = f"version = 1\ntenant = alice\n    salt = {'5a' * 32}\n    key = {hashlib.sha256(key.encode()).hexdigest()}\n"
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "keys.conf")
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(lines)
            with Server("--keys", path) as server:
                for value, status, said in ((key, 0, ""), (key[:-1], 1, "does not know"), ("two words", 2, "QUIRE_KEY")):
                    done = subprocess.run([QUIRE, "continuation", "list", "--server", f"127.0.0.1:{server.port}"], capture_output=True, text=True,
                                          timeout=PATIENCE_S, env=dict(os.environ, QUIRE_KEY=value))
                    self.assertEqual(done.returncode, status, done.stderr)
                    self.assertIn(said, done.stderr)
        self.assertEqual(run("continuation", "list", "--server", "127.0.0.1", check=False).returncode, 2)


if __name__ == "__main__":
    unittest.main()
