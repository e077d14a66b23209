"""/v1/responses with the official openai package and with openai-agents."""

import asyncio
import json
import unittest
from typing import Literal

import agents
import openai
import pydantic

from agent_loop import AgentLoop
from weft_server import END, MARKERS, MODEL, MULTIPLY, WEATHER, WEATHER_RESULT, WEATHER_TOOL, Server

TOOL = {"type": "function", "strict": False, **WEATHER_TOOL["function"]}
# More tokens than any test waits for.
ENDLESS = dict(model=MODEL, input=MULTIPLY, max_output_tokens=3500, extra_body={"ignore_eos": True})
CANCELLED = 'weft_answers_total{end="cancelled"}'


def setUpModule():
    global server
    server = Server()
    unittest.addModuleCleanup(server.close)
    Agent.server = server


def checked(made):
    """The package takes any JSON for its types; this looks at each field. What the server sent alone counts."""
    type(made).model_validate(made.to_dict(mode="json"))
    return made


class SdkTest(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=END)
        self.addCleanup(self.client.close)

    def create(self, input=MULTIPLY, **fields):
        made = self.client.responses.create(**{"model": MODEL, "input": input, "temperature": 0, **fields})
        return made if fields.get("stream") else checked(made)

    def expect_call(self, made):
        self.assertEqual(made.status, "completed")
        [call] = [item for item in made.output if item.type == "function_call"]
        self.assertEqual((call.name, call.arguments, call.status), ("get_weather", '{"city": "Tokyo"}', "completed"))
        self.assertTrue(call.call_id.startswith("call_"))
        self.assertEqual(made.output_text, "")
        return call


class Text(SdkTest):
    def test_whole(self):
        made = self.create()
        self.assertEqual(made.output_text, "391")
        self.assertEqual((made.status, made.error, made.incomplete_details), ("completed", None, None))
        self.assertTrue(made.id.startswith("resp_"))
        self.assertEqual([item.type for item in made.output], ["reasoning", "message"])
        [part] = made.output[0].content
        self.assertIn("17 * 23", part.text)
        self.assertEqual(part.type, "reasoning_text")
        self.assertEqual(made.usage.total_tokens, made.usage.input_tokens + made.usage.output_tokens)
        self.assertEqual(made.usage.input_tokens, 100)
        self.assertGreater(made.usage.output_tokens_details.reasoning_tokens, 10)
        for marker in MARKERS:
            self.assertNotIn(marker, made.to_json())

    def test_stream(self):
        with self.create(stream=True) as stream:
            events = [checked(event) for event in stream]
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        kinds = [event.type for event in events]
        self.assertEqual(kinds[:3], ["response.created", "response.in_progress", "response.output_item.added"])
        self.assertEqual(kinds[-4:], ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                                      "response.completed"])
        joined = {kind: "".join(event.delta for event in events if event.type == kind + ".delta")
                  for kind in ("response.output_text", "response.reasoning_text")}
        self.assertEqual(joined["response.output_text"], "391")
        [reasoning] = [event.text for event in events if event.type == "response.reasoning_text.done"]
        self.assertEqual(joined["response.reasoning_text"], reasoning)
        made = events[-1].response
        self.assertEqual(made.output_text, "391")
        self.assertEqual([item.to_dict() for item in made.output],
                         [event.item.to_dict() for event in events if event.type == "response.output_item.done"])

    def test_stream_helper(self):
        with self.client.responses.stream(model=MODEL, input=MULTIPLY, temperature=0) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_response().output_text, "391")

    def test_input_items(self):
        made = self.create([{"role": "developer", "content": "Be exact."},
                            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": MULTIPLY}]}],
                           instructions="Be terse.")
        self.assertTrue(made.output_text)
        self.assertEqual(made.instructions, "Be terse.")

    def test_fields(self):
        made = self.create(user="somebody", metadata={"a": "b"}, service_tier="auto", prompt_cache_key="k",
                           safety_identifier="s", include=["reasoning.encrypted_content"], truncation="disabled",
                           store=False, reasoning={"effort": "low", "summary": "auto"})
        self.assertTrue(made.output_text)
        self.assertEqual(made.metadata, {"a": "b"})
        none = self.create("Hello", reasoning={"effort": "none"})
        self.assertEqual([item.type for item in none.output], ["message"])

    def test_cut_short(self):
        made = self.create(max_output_tokens=5)
        self.assertEqual((made.status, made.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        self.assertEqual(made.usage.output_tokens, 5)
        with self.create(max_output_tokens=5, stream=True) as stream:
            *_, last = [checked(event) for event in stream]
        self.assertEqual(last.type, "response.incomplete")

    def test_logprobs(self):
        made = self.create(top_logprobs=2, include=["message.output_text.logprobs"])
        [part] = made.output[-1].content
        self.assertEqual(bytes(byte for token in part.logprobs for byte in token.bytes), b"391")
        self.assertTrue(all(len(token.top_logprobs) == 2 for token in part.logprobs))

    def test_parse(self):
        class Answer(pydantic.BaseModel):
            parity: Literal["odd", "even"]
            exact: bool

        made = self.client.responses.parse(model=MODEL, input=MULTIPLY, temperature=0, text_format=Answer)
        self.assertIsInstance(made.output_parsed, Answer)
        with self.client.responses.stream(model=MODEL, input=MULTIPLY, temperature=0, text_format=Answer) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_response().output_parsed, made.output_parsed)
        text = self.create(text={"format": {"type": "json_object"}}, max_output_tokens=500).output_text
        self.assertIsInstance(json.loads(text), dict)


class Tools(SdkTest):
    def test_choice(self):
        name = {"type": "function", "name": "get_weather"}
        for choice in ("auto", "required", name, {"type": "allowed_tools", "mode": "required", "tools": [name]}):
            with self.subTest(choice):
                made = self.create(WEATHER, tools=[TOOL], tool_choice=choice, max_output_tokens=400)
                self.assertEqual([item.arguments for item in made.output if item.type == "function_call"],
                                 ['{"city": "Tokyo"}'])
        self.assertTrue(self.create(WEATHER, tools=[TOOL], tool_choice="none").output_text)

    def test_stream(self):
        with self.create(WEATHER, tools=[TOOL], stream=True) as stream:
            events = [checked(event) for event in stream]
        pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        self.assertGreater(len(pieces), 1, "arguments come as they are written")
        self.assertEqual("".join(pieces), '{"city": "Tokyo"}')
        [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
        self.assertEqual((done.name, done.arguments), ("get_weather", '{"city": "Tokyo"}'))
        self.expect_call(events[-1].response)

    def test_parsed_arguments(self):
        class Weather(pydantic.BaseModel):
            """Get the current weather for a city."""

            city: str = pydantic.Field(description="City name")

        made = self.client.responses.parse(model=MODEL, input=WEATHER, temperature=0,
                                           tools=[openai.pydantic_function_tool(Weather, name="get_weather")])
        [call] = [item for item in made.output if item.type == "function_call"]
        self.assertEqual(call.parsed_arguments, Weather(city="Tokyo"))

    def test_loop_by_items(self):
        first = self.create(WEATHER, tools=[TOOL], store=False)
        call = self.expect_call(first)
        result = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER_RESULT}
        for items in (first.output, [item.to_dict() for item in first.output]):
            last = self.create([{"role": "user", "content": WEATHER}, *items, result], tools=[TOOL], store=False)
            self.assertIn("Tokyo is sunny", last.output_text)

    def test_loop_by_id(self):
        first = self.create(WEATHER, tools=[TOOL])
        call = self.expect_call(first)
        last = self.create([{"type": "function_call_output", "call_id": call.call_id, "output": WEATHER_RESULT}],
                           tools=[TOOL], previous_response_id=first.id)
        self.assertIn("Tokyo is sunny", last.output_text)
        self.assertEqual(last.previous_response_id, first.id)


class Kept(SdkTest):
    def test_kept(self):
        made = self.create()
        self.assertEqual(checked(self.client.responses.retrieve(made.id)).to_dict(), made.to_dict())
        [item] = self.client.responses.input_items.list(made.id)
        self.assertEqual((item.role, item.content[0].text), ("user", MULTIPLY))
        self.client.responses.delete(made.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(made.id)
        with self.assertRaises(openai.APIStatusError):
            self.create(previous_response_id=made.id)

    def test_not_kept(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(self.create(store=False).id)

    def test_close_of_a_stream(self):
        before = server.metric(CANCELLED)
        with self.client.responses.create(**ENDLESS, stream=True) as stream:
            next(iter(stream))
            server.wait_for_metric("weft_requests_running", 1)
        server.wait_for_metric("weft_requests_running", 0)
        server.wait_for_metric(CANCELLED, before + 1)

    def test_cancel(self):
        before = server.metric(CANCELLED)
        with self.client.responses.create(**ENDLESS, stream=True) as stream:
            events = iter(stream)
            self.client.responses.cancel(next(events).response.id)
            for _ in events:
                pass
        server.wait_for_metric("weft_requests_running", 0)
        server.wait_for_metric(CANCELLED, before + 1)


class Errors(SdkTest):
    def test_errors(self):
        for kind, fields in ((openai.NotFoundError, {"model": "other"}),
                             (openai.BadRequestError, {"temperature": 5}),
                             (openai.BadRequestError, {"input": [{"type": "message", "role": "robot", "content": "Hi"}]}),
                             (openai.BadRequestError, {"input": "hello " * 5000}),
                             (openai.BadRequestError, {"tools": [{"type": "web_search"}]}),
                             (openai.BadRequestError, {"stream": True, "tools": [TOOL], "tool_choice": {"type": "function",
                                                                                                       "name": "other"}})):
            with self.subTest(fields), self.assertRaises(kind) as caught:
                self.create(**fields)
            self.assertTrue(caught.exception.body["message"])


class Async(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = openai.AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=END)
        self.addAsyncCleanup(self.client.close)

    async def test_side_by_side(self):
        async def streamed():
            stream = await self.client.responses.create(model=MODEL, temperature=0, input=MULTIPLY, stream=True)
            async with stream:
                return "".join([event.delta async for event in stream if checked(event).type == "response.output_text.delta"])

        whole = [self.client.responses.create(model=MODEL, temperature=0, input=MULTIPLY) for _ in range(4)]
        answers = await asyncio.gather(*whole, *(streamed() for _ in range(4)))
        self.assertEqual([made.output_text for made in answers[:4]] + answers[4:], ["391"] * 8)

    async def test_task_cancelled(self):
        before = server.metric(CANCELLED)
        task = asyncio.create_task(self.client.responses.create(**ENDLESS))
        await asyncio.to_thread(server.wait_for_metric, "weft_requests_running", 1)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(server.wait_for_metric, "weft_requests_running", 0)
        await asyncio.to_thread(server.wait_for_metric, CANCELLED, before + 1)


class Agent(AgentLoop, unittest.IsolatedAsyncioTestCase):
    """The loops of agent_loop.py."""

    def make_model(self):
        return agents.OpenAIResponsesModel(MODEL, self.client)


if __name__ == "__main__":
    unittest.main()
