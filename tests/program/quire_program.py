"""Starts the real `quire` program for tests: a server on a free port, one-shot commands, metrics as numbers."""
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

BUILD = os.environ.get("QUIRE_BUILD", "build")
QUIRE = os.path.join(BUILD, "quire")
MODEL = os.environ["QUIRE_MODEL"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """`quire serve` (or any long-running subcommand that ends in an HTTP port)."""

    def __init__(self, *options, model=MODEL, command=("serve",), port=None, ready_s=120, wait=True):
        self.port = port or free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        self.state = tempfile.TemporaryDirectory()  # its default store is its own
        words = [QUIRE, *command, "--model", model, "--listen", f"127.0.0.1:{self.port}", *map(str, options)]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT, env=dict(os.environ, XDG_STATE_HOME=self.state.name))
        if wait:
            self.wait_ready(ready_s)

    def wait_ready(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"server ended with {self.process.returncode}:\n{self.text()}")
            try:
                if self.get("/readyz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"not ready in {seconds} s:\n{self.text()}")

    def text(self):
        with open(self.log.name, errors="replace") as f:
            return f.read()[-4000:]

    def request(self, method, path, body=None, headers=None, timeout=120):
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=data, method=method, headers={"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read(), dict(error.headers)

    def get(self, path, timeout=30):
        return self.request("GET", path, timeout=timeout)

    def post(self, path, body, timeout=120):
        status, text, _ = self.request("POST", path, body, timeout=timeout)
        return status, json.loads(text)

    def complete(self, **body):
        status, answer = self.post("/v1/completions", body)
        assert status == 200, (status, answer)
        return answer

    def metrics(self):
        _, text, _ = self.get("/metrics")
        return {m[0]: float(m[1]) for m in re.findall(r"^(quire_\w+) ([0-9.e+]+)$", text.decode(), re.M)}

    def settle(self, name, value, seconds=10):
        """Waits until a metric has a value; returns the metrics."""
        end = time.monotonic() + seconds
        while True:
            m = self.metrics()
            if m.get(name) == value:
                return m
            assert time.monotonic() < end, f"{name} is {m.get(name)}, not {value}, after {seconds} s"
            time.sleep(0.02)

    def drop_cache(self, seconds=10):
        """Drops until nothing is held (a capture under way holds pages a little longer than its request) or the time is over; returns the last answer."""
        end = time.monotonic() + seconds
        while True:
            status, text, _ = self.request("POST", "/admin/cache/drop", {})
            assert status == 200, (status, text)
            pages = json.loads(text)
            if pages["pages_held"] == 0 or time.monotonic() > end:
                return pages
            time.sleep(0.02)

    def stop(self, number=signal.SIGTERM, seconds=15):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(seconds)
        self.log.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if kind is not None:
            print(self.text())
        os.unlink(self.log.name)
        self.state.cleanup()


def run(*words, timeout=300, check=True):
    done = subprocess.run([QUIRE, *map(str, words)], capture_output=True, text=True, timeout=timeout)
    if check and done.returncode != 0:
        raise AssertionError(f"quire {' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done


def generate(*words, **options):
    return json.loads(run("generate", "--model", MODEL, "--json", *words, **options).stdout)
