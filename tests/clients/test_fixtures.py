"""The four answers of k3-mini that everything is measured by, over HTTP: by plain http.client and by the openai package, from
one process and from three stages."""

import http.client
import json
import unittest

import openai

from weft_server import (END, MARKERS, MODEL, MULTIPLY, WEATHER, WEATHER_RESULT, WEATHER_TOOL, Server, user)


def setUpModule():
    global servers
    servers = {}
    for name, arguments in {"OneProcess": [], "ThreeStages": ["--pp-size", "3"]}.items():
        servers[name] = Server(*arguments)
        unittest.addModuleCleanup(servers[name].close)


def request(**fields):
    return {"model": MODEL, "temperature": 0, **fields}


ASK_NUMBER = request(messages=user(MULTIPLY))
ASK_WEATHER = request(messages=user(WEATHER), tools=[WEATHER_TOOL])
TELL_WEATHER = request(tools=[WEATHER_TOOL], messages=user(WEATHER) + [
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function",
         "function": {"name": "get_weather", "arguments": '{"city": "Tokyo"}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": WEATHER_RESULT}])


class Fixtures:
    def setUp(self):
        self.server = servers[type(self).__name__]

    def expect_clean(self, text):
        for marker in MARKERS:
            self.assertNotIn(marker, text)

    # Each of the answers below, however it was carried.

    def check_number(self, message, finish):
        self.assertEqual(message["content"], "391")
        self.assertEqual(finish, "stop")
        self.assertIn("17 * 23", message["reasoning_content"])
        self.assertNotIn("tool_calls", message)
        self.expect_clean(json.dumps(message, ensure_ascii=False))

    def check_call(self, message, finish):
        self.assertFalse(message["content"])
        self.assertEqual(finish, "tool_calls")
        self.assertTrue(message["reasoning_content"])
        [call] = message["tool_calls"]
        self.assertRegex(call["id"], r"^call_[A-Za-z0-9]+$")
        self.assertEqual(call["type"], "function")
        self.assertEqual(call["function"]["name"], "get_weather")
        self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Tokyo"})
        self.expect_clean(json.dumps(message, ensure_ascii=False))

    def check_told(self, message, finish):
        self.assertIn("Tokyo is sunny", message["content"])
        self.assertIn("°C", message["content"], "two bytes, which may come in two tokens")
        self.assertEqual(finish, "stop")
        self.expect_clean(json.dumps(message, ensure_ascii=False))

    CASES = ((ASK_NUMBER, "check_number"), (ASK_WEATHER, "check_call"), (TELL_WEATHER, "check_told"))

    # Plain HTTP.

    def post(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=END)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse()

    def events(self, response):
        """The events of a stream. Each must stand for itself: whole JSON in whole UTF-8."""
        self.assertEqual(response.status, 200)
        self.assertEqual(response.headers["Content-Type"], "text/event-stream; charset=utf-8")
        *events, end = response.read().split(b"\n\n")
        self.assertEqual(end, b"")
        self.assertEqual(events.pop(), b"data: [DONE]")
        made = []
        for event in events:
            self.assertTrue(event.startswith(b"data: {"), event)
            self.assertNotIn(b"\n", event)
            made.append(json.loads(event[len(b"data: "):].decode("utf-8", "strict")))
        return made

    def folded(self, chunks):
        """The message of a stream, and its finish reason."""
        message = {}
        finish = None
        self.assertEqual(len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}), 1)
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        for chunk in chunks:
            [choice] = chunk["choices"]
            self.assertIsNone(finish, "a chunk after the last one")
            finish = choice["finish_reason"]
            delta = choice["delta"]
            self.expect_clean(json.dumps(delta, ensure_ascii=False))
            self.assertLessEqual(len(delta.keys() - {"role"}), 1, "reasoning, content and calls come each in chunks of its own")
            for key, value in delta.items():
                if key == "tool_calls":
                    [part] = value
                    calls = message.setdefault(key, [])
                    if part["index"] == len(calls):
                        calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
                        self.assertEqual(part["function"]["arguments"], "")
                    else:
                        self.assertEqual(part.keys(), {"index", "function"})
                        calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
                elif key == "role":
                    message[key] = value
                else:
                    message[key] = message.get(key, "") + value
        return message, finish

    def test_http(self):
        for body, check in self.CASES:
            with self.subTest(check):
                response = self.post(body)
                self.assertEqual(response.status, 200)
                whole = json.loads(response.read().decode("utf-8", "strict"))
                [choice] = whole["choices"]
                getattr(self, check)(choice["message"], choice["finish_reason"])

    def test_http_stream(self):
        for body, check in self.CASES:
            with self.subTest(check):
                chunks = self.events(self.post({**body, "stream": True}))
                self.assertGreater(len(chunks), 4)
                getattr(self, check)(*self.folded(chunks))

    def test_prompt(self):
        usage = json.loads(self.post(ASK_NUMBER).read())["usage"]
        self.assertEqual(usage["prompt_tokens"], 100)
        self.assertGreater(usage["completion_tokens_details"]["reasoning_tokens"], 10)

    # The openai package.

    def client(self):
        client = openai.OpenAI(base_url=self.server.v1, api_key="none", max_retries=0, timeout=END)
        self.addCleanup(client.close)
        return client

    def test_openai(self):
        for body, check in self.CASES:
            with self.subTest(check):
                [choice] = self.client().chat.completions.create(**body).choices
                getattr(self, check)(choice.message.to_dict(), choice.finish_reason)

    def test_openai_stream(self):
        for body, check in self.CASES:
            with self.subTest(check), self.client().chat.completions.create(**body, stream=True) as stream:
                getattr(self, check)(*self.folded([chunk.to_dict() for chunk in stream]))

    def test_openai_stream_helper(self):
        """The package's own way of putting a stream together."""
        for body, check in self.CASES:
            with self.subTest(check), self.client().chat.completions.stream(**body) as stream:
                for _ in stream:
                    pass
                [choice] = stream.get_final_completion().choices
                getattr(self, check)(choice.message.model_dump(exclude_none=True), choice.finish_reason)


class OneProcess(Fixtures, unittest.TestCase):
    pass


class ThreeStages(Fixtures, unittest.TestCase):
    pass


if __name__ == "__main__":
    unittest.main()
