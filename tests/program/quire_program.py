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


PATIENCE_S = 120  # most time for whatever comes soon on a quiet machine
PORTS = range(12000, 32000)  # below those that the system hands out to whoever connects
next_port = os.getpid() * 37


def free_port():
    """A port that nobody has; none is given twice, and no connection takes it before it is bound."""
    global next_port
    while True:
        next_port += 1
        port = PORTS[next_port % len(PORTS)]
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


class Server:
    """`quire serve` (or any long-running subcommand that ends in an HTTP port)."""

    def __init__(self, *options, model=MODEL, command=("serve",), port=None, ready_s=PATIENCE_S, wait=True):
        self.port = port or free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", delete=False)
        self.state = tempfile.TemporaryDirectory()  # its default store is its own
        words = [QUIRE, *command, "--model", model, "--listen", f"127.0.0.1:{self.port}", *map(str, options)]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT, env=dict(os.environ, XDG_STATE_HOME=self.state.name))
        if wait:
            self.wait_ready(ready_s)

    def wait_ready(self, seconds=PATIENCE_S, status=200):
        """Waits until /readyz answers so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"server ended with {self.process.returncode}:\n{self.text()}")
            try:
                if self.get("/readyz")[0] == status:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"/readyz is not {status} in {seconds} s:\n{self.text()}")

    def text(self):
        with open(self.log.name, errors="replace") as f:
            return f.read()[-4000:]

    def says(self, pattern, seconds=PATIENCE_S):
        """Waits until the log has a line that matches."""
        end = time.monotonic() + seconds
        while True:
            with open(self.log.name, errors="replace") as f:
                if re.search(pattern, f.read()):
                    return
            assert time.monotonic() < end, f"nothing about '{pattern}' in the log after {seconds} s:\n{self.text()}"
            time.sleep(0.02)

    def request(self, method, path, body=None, headers=None, timeout=300):
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data=data, method=method, headers={"Content-Type": "application/json", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read(), dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read(), dict(error.headers)

    def get(self, path, timeout=PATIENCE_S):
        return self.request("GET", path, timeout=timeout)

    def post(self, path, body, timeout=300):
        status, text, _ = self.request("POST", path, body, timeout=timeout)
        return status, json.loads(text)

    def complete(self, **body):
        status, answer = self.post("/v1/completions", body)
        assert status == 200, (status, answer)
        return answer

    def metrics(self):
        _, text, _ = self.get("/metrics")
        return {m[0]: float(m[1]) for m in re.findall(r"^(quire_\w+) ([0-9.e+]+)$", text.decode(), re.M)}

    def settle(self, name, value, seconds=PATIENCE_S):
        """Waits until a metric has a value; returns the metrics."""
        end = time.monotonic() + seconds
        while True:
            m = self.metrics()
            if m.get(name) == value:
                return m
            assert time.monotonic() < end, f"{name} is {m.get(name)}, not {value}, after {seconds} s"
            time.sleep(0.02)

    def drop_cache(self, seconds=PATIENCE_S):
        """Drops until nothing is held (a capture under way holds pages a little longer than its request) or the time is over; returns the last answer."""
        end = time.monotonic() + seconds
        while True:
            status, text, _ = self.request("POST", "/admin/cache/drop", {})
            assert status == 200, (status, text)
            pages = json.loads(text)
            if pages["pages_held"] == 0 or time.monotonic() > end:
                return pages
            time.sleep(0.02)

    def stop(self, number=signal.SIGTERM, seconds=PATIENCE_S):
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
        self.log.close()
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
