"""curl, with commands as people paste them; those of `weft serve --help` and of the documentation among them."""

import json
import pathlib
import re
import shlex
import subprocess
import tempfile
import textwrap
import unittest

from weft_server import END, MODEL, MULTIPLY, PROGRAM, ROOT, WEATHER_TOOL, Certificates, Server

ADDRESS = "http://127.0.0.1:8080"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": MULTIPLY}], "temperature": 0}
JSON = "-H 'Content-Type: application/json'"


def setUpModule():
    global server
    server = Server("--cors-origin", "http://page.example")
    unittest.addModuleCleanup(server.close)


def shell(command, timeout=END):
    return subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=timeout)


def data(body):
    return "-d " + shlex.quote(json.dumps(body))


class CurlTest(unittest.TestCase):
    def curl(self, arguments, code=0):
        """`arguments` as in the shell; {url} is the server's. Standard output."""
        done = shell("curl -sS " + arguments.replace("{url}", server.url))
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout

    def status(self, arguments):
        """The status and the JSON of an answer."""
        text, status = self.curl("-w '\\n%{http_code}' " + arguments).rsplit("\n", 1)
        return int(status), json.loads(text) if text else None


def pasted_commands():
    """Commands with curl in indented blocks or fences of the documentation and in the help, with where they stand."""
    help_text = subprocess.run([PROGRAM, "serve", "--help"], check=True, capture_output=True, text=True).stdout
    texts = {"weft serve --help": help_text}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        texts[str(path.relative_to(ROOT))] = path.read_text()
    for where, text in texts.items():
        lines = text.splitlines()
        for at, line in enumerate(lines):
            if not re.match(r"\s*(\$ )?curl ", line):
                continue
            # A command goes on while a quote or a backslash is open.
            command = line.strip().removeprefix("$ ")
            for more in lines[at + 1:]:
                if not command.endswith("\\"):
                    try:
                        shlex.split(command, comments=True)
                        break
                    except ValueError:
                        pass
                command += "\n" + more
            yield where, textwrap.dedent(command)


class Documentation(unittest.TestCase):
    def test_commands(self):
        count = 0
        for where, command in pasted_commands():
            if ADDRESS not in command:
                continue  # of a server with a key or TLS: see Secure
            with self.subTest(where, command=command):
                command = command.replace(ADDRESS, server.url).replace("curl ", "curl -sS --fail-with-body ", 1)
                done = shell(command)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertTrue(done.stdout)
                count += 1
        self.assertGreaterEqual(count, 1)


class Plain(CurlTest):
    def test_chat(self):
        status, body = self.status(f"{{url}}/v1/chat/completions {JSON} {data(CHAT)}")
        self.assertEqual((status, body["choices"][0]["message"]["content"]), (200, "391"))
        # Without /v1, with HTTP/1.0, with the body from a file, in chunks, and asked to be compressed.
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(CHAT, file)
            file.flush()
            for arguments in (f"{{url}}/chat/completions {JSON} {data(CHAT)}",
                              f"-0 {{url}}/v1/chat/completions {JSON} {data(CHAT)}",
                              f"--json @{file.name} {{url}}/v1/chat/completions",
                              f"-H 'Content-Type: application/json; charset=utf-8' -H 'Transfer-Encoding: chunked' "
                              f"--data-binary @{file.name} {{url}}/v1/chat/completions",
                              f"--compressed {{url}}/v1/chat/completions {JSON} {data(CHAT)}"):
                with self.subTest(arguments):
                    status, body = self.status(arguments)
                    self.assertEqual((status, body["choices"][0]["message"]["content"]), (200, "391"))

    def test_stream(self):
        for version in ("", "-0"):
            text = self.curl(f"-N {version} -i {{url}}/v1/chat/completions {JSON} {data({**CHAT, 'stream': True})}")
            head, body = text.split("\n\n", 1) if "\r\n\r\n" not in text else text.split("\r\n\r\n", 1)
            self.assertRegex(head, r"(?i)content-type: text/event-stream; charset=utf-8")
            events = body.strip().split("\n\n")
            self.assertEqual(events.pop(), "data: [DONE]")
            deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
            self.assertEqual("".join(delta.get("content", "") for delta in deltas), "391")

    def test_stream_cut(self):
        """The reader of a pipe leaves, so curl does, so the server stops."""
        before = server.metric('weft_answers_total{end="cancelled"}')
        # Text that goes on: after the end of a chat's answer nothing would be written.
        body = {"model": MODEL, "prompt": "The capital of", "temperature": 0, "stream": True, "max_tokens": 3500,
                "ignore_eos": True}
        done = shell(f"curl -sSN {server.url}/v1/completions {JSON} {data(body)} | head -n 3")
        self.assertIn("data: {", done.stdout)
        server.wait_for_metric("weft_requests_running", 0)
        server.wait_for_metric('weft_answers_total{end="cancelled"}', before + 1)

    def test_gets(self):
        self.assertEqual(self.status("{url}/health"), (200, {"status": "ok"}))
        self.assertEqual(self.status("{url}/v1/health"), (200, {"status": "ok"}))
        status, models = self.status("{url}/v1/models")
        self.assertEqual((status, [model["id"] for model in models["data"]]), (200, [MODEL]))
        self.assertEqual(self.status(f"{{url}}/v1/models/{MODEL}")[1], models["data"][0])
        self.assertIn("version", self.status("{url}/version")[1])
        self.assertRegex(self.curl("{url}/metrics"), r"(?m)^weft_requests_running \d")
        self.assertIn(" 200 ", self.curl("-I {url}/health").splitlines()[0])

    def test_tokens(self):
        tokens = self.status(f"{{url}}/tokenize {JSON} {data({'content': 'wörld 🙂'})}")[1]
        self.assertEqual(len(tokens["tokens"]), tokens["count"])
        self.assertEqual(self.status(f"{{url}}/detokenize {JSON} {data({'tokens': tokens['tokens']})}")[1],
                         {"content": "wörld 🙂"})
        rendered = self.status(f"{{url}}/apply-template {JSON} {data({**CHAT, 'tools': [WEATHER_TOOL]})}")[1]
        self.assertIn(MULTIPLY, rendered["prompt"])

    def test_errors(self):
        self.assertEqual(self.status(f"{{url}}/v1/chat/completions {JSON} -d '{{\"model\": \"k3-mini\",'")[1]["error"]["code"],
                         "invalid_json")
        # What curl sends when nobody says what it is.
        self.assertEqual(self.status(f"{{url}}/v1/chat/completions {data(CHAT)}")[0], 415)
        self.assertEqual(self.status("{url}/v1/nothing")[0], 404)
        self.assertEqual(self.status("{url}/v1/chat/completions")[0], 405)
        self.assertRegex(self.curl("-i {url}/v1/chat/completions"), r"(?im)^allow: POST")
        for arguments in (f"{{url}}/v1/chat/completions {JSON} -d '[]'", "{url}/v1/nothing", "-X POST {url}/v1/models"):
            self.assertEqual(self.status(arguments)[1]["error"].keys(), {"message", "type", "param", "code"})

    def test_long_bodies(self):
        """curl asks with `Expect: 100-continue` before it sends one of these."""
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            for megabytes, wanted in ((2, 400), (9, 413)):
                file.seek(0)
                json.dump({**CHAT, "messages": [{"role": "user", "content": "hello " * (megabytes * 175_000)}]}, file)
                file.flush()
                status, body = self.status(f"-H 'Expect: 100-continue' {JSON} --data-binary @{file.name} "
                                           "{url}/v1/chat/completions")
                self.assertEqual(status, wanted)
                self.assertEqual(body["error"]["type"], "invalid_request_error")

    def test_preflight(self):
        """A browser's, of a page with the openai package for JavaScript, which sends headers of its own."""
        asked = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,x-stainless-package-version," \
                "x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout"
        head = self.curl("-i -X OPTIONS -H 'Origin: http://page.example' -H 'Access-Control-Request-Method: POST' "
                         f"-H 'Access-Control-Request-Headers: {asked}' {{url}}/v1/chat/completions")
        self.assertRegex(head, r"^HTTP/1.1 204 ")
        self.assertRegex(head, r"(?im)^access-control-allow-origin: http://page.example\r?$")
        self.assertRegex(head, r"(?im)^access-control-allow-methods: .*POST")
        allowed = re.search(r"(?im)^access-control-allow-headers: (.*?)\r?$", head).group(1).lower()
        self.assertLessEqual(set(asked.split(",")), {name.strip() for name in allowed.split(",")})
        head = self.curl("-i -X OPTIONS -H 'Origin: http://other.example' -H 'Access-Control-Request-Method: POST' "
                         "{url}/v1/chat/completions")
        self.assertNotRegex(head, r"(?i)access-control-allow-origin")
        # The request itself, and one that is refused.
        for body, status in ((CHAT, 200), ({}, 400)):
            head = self.curl(f"-i -H 'Origin: http://page.example' {{url}}/v1/chat/completions {JSON} {data(body)}")
            self.assertRegex(head, rf"^HTTP/1.1 {status} ")
            self.assertRegex(head, r"(?im)^access-control-allow-origin: http://page.example\r?$")


class Secure(CurlTest):
    def test_key_and_tls(self):
        certificates = Certificates()
        self.addCleanup(certificates.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        keys = pathlib.Path(folder.name) / "keys.txt"
        keys.write_text("# of the team\nsk-team\n")
        secure = Server("--api-key-file", keys, *certificates.arguments(), "--cors-origin", "*")
        self.addCleanup(secure.close)
        models = f"{secure.v1}/models"
        authority = f"--cacert {certificates.authority}"
        self.curl(models, code=60)  # a certificate of an unknown authority
        self.assertEqual(self.status(f"{authority} {secure.url}/health"), (200, {"status": "ok"}))
        missing = self.status(f"{authority} {models}")
        self.assertEqual((missing[0], missing[1]["error"]["code"]), (401, "invalid_api_key"))
        self.assertEqual(self.status(f"{authority} -H 'Authorization: Bearer sk-other' {models}"), missing)
        self.assertEqual(self.status(f"{authority} {secure.v1}/nothing")[0], 401)
        for key in ("-H 'Authorization: Bearer sk-team'", "-H 'x-api-key: sk-team'", "--oauth2-bearer sk-team"):
            self.assertEqual(self.status(f"{authority} {key} {models}")[0], 200)
        self.assertRegex(self.curl(f"{authority} -i -X OPTIONS -H 'Origin: http://any.example' "
                                   f"-H 'Access-Control-Request-Method: POST' {models}"), r"^HTTP/\S+ 204 ")
        text = self.curl(f"{authority} -N -H 'Authorization: Bearer sk-team' {secure.v1}/chat/completions {JSON} "
                         f"{data({**CHAT, 'stream': True})}")
        self.assertTrue(text.endswith("data: [DONE]\n\n"))
        localhost = secure.v1.replace("127.0.0.1", "localhost")
        self.assertEqual(self.status(f"-4 {authority} -H 'x-api-key: sk-team' {localhost}/models")[0], 200)


if __name__ == "__main__":
    unittest.main()
