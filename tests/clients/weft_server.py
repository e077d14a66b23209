"""Starts and ends `weft serve` for a test, as a user does: the program, a folder of a model, a port."""

import atexit
import logging
import os
import pathlib
import queue
import re
import signal
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("WEFT_PROGRAM", ROOT / "build" / "release" / "weft")).resolve()
MODEL = "k3-mini"

MULTIPLY = "What is 17 * 23? Answer with the number only."
WEATHER = "What is the weather in Tokyo?"
WEATHER_RESULT = '{"condition": "sunny", "temperature": 4}'
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather for a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "City name"}},
            "required": ["city"],
        },
    },
}
# No text of an answer may hold any of these.
MARKERS = ("<|", "|>", "[EOS]", "[BOS]", "[PAD]", "\N{REPLACEMENT CHARACTER}")

# Deadlines against hanging, in seconds; a busy machine needs a small part of them.
START = 120
END = 60

# Proxies of the environment are not for these servers.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
# unittest has asyncio warn of each step that takes 0.1 s.
logging.getLogger("asyncio").setLevel(logging.ERROR)


def user(text):
    return [{"role": "user", "content": text}]


class Certificates:
    """An authority and a certificate for this host, as `weft certs` makes them."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="weft_clients_")
        out = os.path.join(self._folder.name, "certs")
        subprocess.run(
            [PROGRAM, "certs", "-o", out, "--node", "server=127.0.0.1,localhost"],
            check=True, capture_output=True, timeout=START)
        self.authority = os.path.join(out, "ca.pem")
        self.certificate = os.path.join(out, "server.pem")
        self.key = os.path.join(out, "server.key")

    def arguments(self):
        return ["--ssl-cert-file", self.certificate, "--ssl-key-file", self.key]

    def context(self):
        return ssl.create_default_context(cafile=self.authority)

    def close(self):
        self._folder.cleanup()


class Server:
    """
    with Server("--pp-size", "3") as server:
        OpenAI(base_url=server.v1, api_key="none")

    The end of the block sends SIGTERM, and fails when the server does not end in order.
    """

    def __init__(self, *arguments):
        if not PROGRAM.exists():
            raise FileNotFoundError(f"{PROGRAM}: wanted the built program (./dev build), found nothing")
        command = [PROGRAM, "serve", "-m", ROOT / "models" / MODEL, "--port", "0", "--grace", "1", *arguments]
        # A group of its own: Ctrl-C of the tests is not for the server, which close() ends.
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.PIPE, text=True, start_new_session=True)
        atexit.register(self._kill)  # Ctrl-C ends unittest without its cleanups
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.log = []
        try:
            self.url = self._wait_for(r"listens on (https?://\S+)").group(1)
            self._wait_for(r"^ready: ")
        except BaseException:
            self._kill()
            raise
        self.v1 = self.url + "/v1"
        self.port = int(self.url.rsplit(":", 1)[1])

    def _read(self):
        for line in self._process.stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _wait_for(self, pattern):
        deadline = time.monotonic() + START
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise RuntimeError(f"weft serve: wanted a line /{pattern}/ within {START} s, found:\n" + "\n".join(self.log))
            self.log.append(line)
            if found := re.search(pattern, line):
                return found

    def _kill(self):
        # Stages are processes of the server's group.
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._process.stderr.close()

    def close(self):
        atexit.unregister(self._kill)
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(timeout=END)
            self._reader.join(timeout=END)
        except subprocess.TimeoutExpired:
            code = None
        while not self._lines.empty():
            if (line := self._lines.get()) is not None:
                self.log.append(line)
        try:
            os.killpg(self._process.pid, 0)
            left = True
        except ProcessLookupError:
            left = False
        if code is None or left:
            self._kill()
        self._process.stderr.close()
        if code != 0 or left:
            raise RuntimeError(f"weft serve: wanted exit code 0 and no process left after SIGTERM, found {code}, "
                               f"{'one' if left else 'none'} left:\n" + "\n".join(self.log))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def metric(self, name):
        """The value of a line of /metrics, labels included in the name; 0 when there is none."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=END) as response:
            for line in response.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[1])
        return 0.0

    def wait_for_metric(self, name, wanted):
        """Until the metric has the value."""
        deadline = time.monotonic() + END
        while (found := self.metric(name)) != wanted:
            if time.monotonic() > deadline:
                raise AssertionError(f"{name}: wanted {wanted} within {END} s, found {found}")
            time.sleep(0.02)
