"""The official openai package, unmodified, synchronous and asynchronous."""

import asyncio
import time
import unittest
from typing import Literal, Optional

import openai
import pydantic

from weft_server import (END, MARKERS, MODEL, MULTIPLY, WEATHER, WEATHER_RESULT, WEATHER_TOOL, Certificates, Server, user)

COMPLETION = dict(model=MODEL, prompt="The capital of", temperature=0)
# More tokens than any test waits for.
ENDLESS = dict(model=MODEL, messages=user(MULTIPLY), max_tokens=3500, extra_body={"ignore_eos": True})
CANCELLED = 'weft_answers_total{end="cancelled"}'


def setUpModule():
    global server
    server = Server()
    unittest.addModuleCleanup(server.close)


def weather_tool(**function):
    return {**WEATHER_TOOL, "function": {**WEATHER_TOOL["function"], **function}}


def checked(made):
    """The package takes any JSON for its types; this looks at each field. What the server sent alone counts."""
    type(made).model_validate(made.to_dict(mode="json"))
    return made


def content_and_reasoning(choice):
    return choice.message.content, getattr(choice.message, "reasoning_content", None)


class SdkTest(unittest.TestCase):
    def setUp(self):
        self.client = self.make_client()

    def make_client(self, of=None, **options):
        options = {"api_key": "none", "max_retries": 0, "timeout": END, **options}
        client = openai.OpenAI(base_url=(of or server).v1, **options)
        self.addCleanup(client.close)
        return client

    def chat(self, text=MULTIPLY, **fields):
        made = self.client.chat.completions.create(**{"model": MODEL, "messages": user(text), "temperature": 0, **fields})
        return made if fields.get("stream") else checked(made)


class Chat(SdkTest):
    def test_whole(self):
        made = self.chat()
        [choice] = made.choices
        self.assertEqual(choice.message.content, "391")
        self.assertIn("17 * 23", choice.message.reasoning_content)
        self.assertIsNone(choice.message.refusal)
        self.assertIsNone(choice.logprobs)
        self.assertTrue(made.id.startswith("chatcmpl-"))
        self.assertEqual(made.model, MODEL)
        self.assertTrue(made.system_fingerprint)
        self.assertLess(abs(made.created - time.time()), 3600)
        self.assertEqual(made.usage.total_tokens, made.usage.prompt_tokens + made.usage.completion_tokens)

    def test_stream(self):
        with self.chat(stream=True) as stream:
            chunks = [checked(chunk) for chunk in stream]
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), "391")
        self.assertEqual([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason], ["stop"])
        self.assertTrue(all(chunk.usage is None for chunk in chunks))

    def test_stream_with_usage(self):
        with self.chat(stream=True, stream_options={"include_usage": True}) as stream:
            *chunks, last = [checked(chunk) for chunk in stream]
        self.assertTrue(all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks))
        self.assertEqual(last.choices, [])
        usage = self.chat().usage
        self.assertEqual((last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens),
                         (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens))

    def test_fields_that_change_nothing(self):
        made = self.chat(user="somebody", metadata={"a": "b"}, store=True, service_tier="auto", prompt_cache_key="k",
                         safety_identifier="s", modalities=["text"], verbosity="low", functions=openai.omit)
        self.assertEqual(made.choices[0].message.content, "391")

    def test_content_parts_and_roles(self):
        made = self.chat(messages=[
            {"role": "system", "content": "You are exact."},
            {"role": "developer", "content": [{"type": "text", "text": "Be terse."}]},
            {"role": "user", "content": [{"type": "text", "text": MULTIPLY}], "name": "somebody"}])
        self.assertTrue(made.choices[0].message.content)

    def test_reasoning_effort(self):
        self.assertGreater(self.chat(reasoning_effort="low").usage.completion_tokens_details.reasoning_tokens, 0)
        made = self.chat("Hello", reasoning_effort="none")
        self.assertEqual(made.usage.completion_tokens_details.reasoning_tokens, 0)
        self.assertNotIn("reasoning_content", made.choices[0].message.to_dict())
        self.assertTrue(made.choices[0].message.content)

    def test_logprobs(self):
        whole = self.chat(logprobs=True, top_logprobs=3).choices[0].logprobs
        self.assertEqual(bytes(byte for token in whole.content for byte in token.bytes), b"391")
        for token in whole.content:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual((token.top_logprobs[0].token, token.top_logprobs[0].logprob), (token.token, token.logprob))
            self.assertLessEqual(token.logprob, 0.0)
        with self.chat(logprobs=True, top_logprobs=3, stream=True) as stream:
            streamed = [token.to_dict() for chunk in stream if checked(chunk).choices[0].logprobs
                        for token in chunk.choices[0].logprobs.content]
        self.assertEqual(streamed, [token.to_dict() for token in whole.content])

    def test_several_choices(self):
        made = self.chat(n=3, temperature=1, seed=7)
        self.assertEqual([choice.index for choice in made.choices], [0, 1, 2])
        self.assertEqual(len({content_and_reasoning(choice) for choice in made.choices}), 3)
        with self.client.chat.completions.stream(model=MODEL, messages=user(MULTIPLY), n=3, temperature=1, seed=7) as stream:
            streamed = stream.get_final_completion()
        self.assertEqual([content_and_reasoning(choice) for choice in streamed.choices],
                         [content_and_reasoning(choice) for choice in made.choices])

    def test_seed(self):
        answers = [content_and_reasoning(self.chat("Write a Python function that reverses a string.", seed=seed,
                                                   temperature=1.7, max_tokens=60).choices[0]) for seed in (3, 3, 4)]
        self.assertEqual(answers[0], answers[1])
        self.assertNotEqual(answers[0], answers[2])

    def test_stop(self):
        for stop in ("9", ["x", "9"]):
            made = self.chat(stop=stop)
            self.assertEqual((made.choices[0].message.content, made.choices[0].finish_reason), ("3", "stop"))

    def test_max_tokens(self):
        for field in ("max_tokens", "max_completion_tokens"):
            made = self.chat(**{field: 5})
            self.assertEqual((made.choices[0].finish_reason, made.usage.completion_tokens), ("length", 5))

    def test_logit_bias(self):
        nine = self.client.post("/../tokenize", body={"content": "9"}, cast_to=object)["tokens"][0]
        self.assertNotIn("9", self.chat(logit_bias={str(nine): -100}).choices[0].message.content)


class Tools(SdkTest):
    def expect_call(self, message):
        [call] = message.tool_calls
        self.assertEqual((call.type, call.function.name), ("function", "get_weather"))
        self.assertEqual(call.function.arguments, '{"city": "Tokyo"}')
        return call

    def test_whole(self):
        [choice] = self.chat(WEATHER, tools=[WEATHER_TOOL]).choices
        self.expect_call(choice.message)
        self.assertIsNone(choice.message.content)
        self.assertEqual(choice.finish_reason, "tool_calls")

    def test_choice(self):
        name = {"type": "function", "function": {"name": "get_weather"}}
        for choice in ("auto", "required", name,
                       {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [name]}}):
            with self.subTest(choice):
                made = self.chat(WEATHER, tools=[WEATHER_TOOL], tool_choice=choice, max_tokens=400)
                self.expect_call(made.choices[0].message)
                self.assertEqual(made.choices[0].finish_reason, "tool_calls")
        [choice] = self.chat(WEATHER, tools=[WEATHER_TOOL], tool_choice="none").choices
        self.assertIsNone(choice.message.tool_calls)
        self.assertTrue(choice.message.content)
        # The answer to a greeting is a call only when one is asked for.
        self.assertIsNone(self.chat("Hello", tools=[WEATHER_TOOL]).choices[0].message.tool_calls)
        made = self.chat("Hello", tools=[WEATHER_TOOL], tool_choice="required", max_tokens=400)
        self.assertEqual(made.choices[0].message.tool_calls[0].function.name, "get_weather")

    def test_parallel(self):
        text = "What is the weather in Tokyo and in Paris?"
        for parallel, most in ((False, 1), (True, 2)):
            [choice] = self.chat(text, tools=[WEATHER_TOOL], parallel_tool_calls=parallel).choices
            self.assertIn(len(choice.message.tool_calls), range(1, most + 1))

    def test_stream(self):
        with self.client.chat.completions.stream(model=MODEL, messages=user(WEATHER), temperature=0,
                                                 tools=[weather_tool(strict=True, parameters={
                                                     **WEATHER_TOOL["function"]["parameters"],
                                                     "additionalProperties": False})]) as stream:
            events = list(stream)
            made = stream.get_final_completion()
        for event in events:
            if event.type == "chunk":
                checked(event.chunk)
        pieces = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
        self.assertGreater(len(pieces), 1, "arguments come as they are written")
        self.assertEqual("".join(pieces), '{"city": "Tokyo"}')
        self.assertEqual([event.name for event in events if event.type == "tool_calls.function.arguments.done"],
                         ["get_weather"])
        self.expect_call(made.choices[0].message)

    def test_parsed_arguments(self):
        class Weather(pydantic.BaseModel):
            """Get the current weather for a city."""

            city: str = pydantic.Field(description="City name")

        made = self.client.chat.completions.parse(model=MODEL, messages=user(WEATHER), temperature=0,
                                                  tools=[openai.pydantic_function_tool(Weather, name="get_weather")])
        self.assertEqual(made.choices[0].message.tool_calls[0].function.parsed_arguments, Weather(city="Tokyo"))

    def test_loop(self):
        """The answer goes back as the package gave it: as an object, and as all of its fields."""
        for sent in (lambda message: message, lambda message: message.model_dump()):
            first = self.chat(WEATHER, tools=[WEATHER_TOOL]).choices[0].message
            call = self.expect_call(first)
            last = self.chat(tools=[WEATHER_TOOL], messages=user(WEATHER) + [
                sent(first), {"role": "tool", "tool_call_id": call.id, "content": WEATHER_RESULT}]).choices[0]
            self.assertIn("Tokyo is sunny", last.message.content)
            self.assertEqual(last.finish_reason, "stop")


class Formats(SdkTest):
    def test_json_object(self):
        made = self.chat(response_format={"type": "json_object"}, max_tokens=500).choices[0]
        self.assertEqual(made.finish_reason, "stop")
        self.assertIsInstance(pydantic.TypeAdapter(dict).validate_json(made.message.content), dict)

    def test_parse(self):
        class Part(pydantic.BaseModel):
            kind: Literal["product", "sum"]
            exact: bool

        class Answer(pydantic.BaseModel):
            parity: Literal["odd", "even"]
            part: Part
            note: Optional[Literal["none"]]

        made = self.client.chat.completions.parse(model=MODEL, messages=user(MULTIPLY), temperature=0,
                                                  response_format=Answer)
        self.assertIsInstance(made.choices[0].message.parsed, Answer)
        with self.client.chat.completions.stream(model=MODEL, messages=user(MULTIPLY), temperature=0,
                                                 response_format=Answer) as stream:
            streamed = stream.get_final_completion()
        self.assertEqual(streamed.choices[0].message.parsed, made.choices[0].message.parsed)

    def test_few_tokens(self):
        """An answer with a schema is whole or refused: it never ends in the middle. Where the limit had a hand in it, that is said."""
        class Answer(pydantic.BaseModel):
            number: int

        def parse(most):
            made = self.client.chat.completions.parse(model=MODEL, messages=user(MULTIPLY), temperature=0,
                                                      response_format=Answer, max_tokens=most)
            return made.choices[0].message.parsed

        self.assertIsInstance(parse(400), Answer)
        with self.assertRaises(openai.LengthFinishReasonError) as short:
            parse(30)
        Answer.model_validate_json(short.exception.completion.choices[0].message.content)
        with self.assertRaises(openai.BadRequestError):
            parse(5)


class Completions(SdkTest):
    def test_whole(self):
        made = checked(self.client.completions.create(**COMPLETION, max_tokens=5))
        self.assertTrue(made.id.startswith("cmpl-"))
        self.assertTrue(made.choices[0].text)
        self.assertEqual(made.choices[0].finish_reason, "length")
        self.assertEqual((made.usage.completion_tokens, made.usage.total_tokens), (5, made.usage.prompt_tokens + 5))

    def test_stream(self):
        whole = self.client.completions.create(**COMPLETION, max_tokens=20)
        with self.client.completions.create(**COMPLETION, max_tokens=20, stream=True,
                                            stream_options={"include_usage": True}) as stream:
            *chunks, last = [checked_chunk(chunk) for chunk in stream]
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), whole.choices[0].text)
        self.assertEqual(last.usage.completion_tokens, 20)

    def test_echo_and_logprobs(self):
        prompt = "你好 wörld 🙂 is"
        made = self.client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=4, echo=True,
                                              logprobs=2).choices[0]
        self.assertTrue(made.text.startswith(prompt))
        found = made.logprobs
        for column in (found.token_logprobs, found.top_logprobs, found.text_offset):
            self.assertEqual(len(column), len(found.tokens))
        self.assertIsNone(found.token_logprobs[0])
        self.assertTrue(all(value <= 0.0 for value in found.token_logprobs[1:]))
        self.assertTrue(all(1 <= len(top) <= 3 for top in found.top_logprobs[1:]))
        # Offsets count characters of the text.
        for token, offset in zip(found.tokens, found.text_offset):
            if "\N{REPLACEMENT CHARACTER}" not in token:
                self.assertEqual(made.text[offset:offset + len(token)], token)

    def test_several_prompts(self):
        one = self.client.completions.create(**COMPLETION, max_tokens=4).choices[0].text
        made = checked(self.client.completions.create(**{**COMPLETION, "prompt": ["Hello", "The capital of"]}, max_tokens=4))
        self.assertEqual([choice.index for choice in made.choices], [0, 1])
        self.assertEqual(made.choices[1].text, one)
        ids = self.client.post("/../tokenize", body={"content": "The capital of"}, cast_to=object)["tokens"]
        self.assertEqual(self.client.completions.create(**{**COMPLETION, "prompt": ids}, max_tokens=4).choices[0].text, one)


def checked_chunk(chunk):
    """The package's type of a whole completion, whose finish reason is null before the last chunk."""
    made = chunk.to_dict(mode="json")
    for choice in made["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
    type(chunk).model_validate(made)
    return chunk


class Models(SdkTest):
    def test_models(self):
        [listed] = self.client.models.list()
        self.assertEqual(checked(listed).id, MODEL)
        self.assertEqual(checked(self.client.models.retrieve(MODEL)), listed)


class Errors(SdkTest):
    def expect(self, kind, call, **wanted):
        with self.assertRaises(kind) as caught:
            call()
        self.assertIs(type(caught.exception), kind)
        for name, value in wanted.items():
            self.assertEqual(getattr(caught.exception, name), value, name)
        self.assertTrue(caught.exception.body["message"])
        return caught.exception

    def test_bad_request(self):
        for param, fields in {
            "temperature": {"temperature": 5},
            "messages": {"messages": []},
            "messages[0].role": {"messages": [{"role": "robot", "content": "Hi"}]},
            "tool_choice": {"tools": [WEATHER_TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tools[0].function.name": {"tools": [weather_tool(name="no spaces")]},
            "n": {"n": 0},
            "top_logprobs": {"top_logprobs": 2},
            "stream_options": {"stream_options": {"include_usage": True}},
            "reasoning_effort": {"reasoning_effort": "enormous"},
        }.items():
            with self.subTest(param):
                self.expect(openai.BadRequestError, lambda: self.chat(**fields), param=param, type="invalid_request_error")
        self.expect(openai.BadRequestError, lambda: self.chat(functions=[{"name": "f"}]), param="functions",
                    code="unsupported_value")
        self.expect(openai.BadRequestError, lambda: self.chat("hello " * 5000), code="context_length_exceeded")
        self.expect(openai.BadRequestError, lambda: self.chat(stream=True, temperature=-1), param="temperature")

    def test_schema(self):
        self.expect(openai.BadRequestError, lambda: self.chat(response_format={"type": "json_schema", "json_schema": {
            "name": "s", "strict": True, "schema": {"properties": {"n": {"not": {}}}}}}))

    def test_not_found(self):
        self.expect(openai.NotFoundError, lambda: self.chat(model="other"), code="model_not_found", param="model")
        self.expect(openai.NotFoundError, lambda: self.client.models.retrieve("other"), code="model_not_found")
        self.expect(openai.NotFoundError, lambda: self.client.get("/nothing", cast_to=object))

    def test_not_there(self):
        self.expect(openai.InternalServerError, lambda: self.client.embeddings.create(model=MODEL, input="Hi"), status_code=501)


class Keys(SdkTest):
    def test_keys_and_tls(self):
        certificates = Certificates()
        self.addCleanup(certificates.close)
        secure = Server("--api-key", "sk-one", "--api-key", "sk-two", *certificates.arguments())
        self.addCleanup(secure.close)
        self.assertTrue(secure.v1.startswith("https://"))

        def client(key):
            http = openai.DefaultHttpx2Client(verify=certificates.context())
            return self.make_client(of=secure, api_key=key, http_client=http)

        for key in ("sk-one", "sk-two"):
            self.assertEqual(len(list(client(key).models.list())), 1)
        self.client = client("sk-one")
        self.assertEqual(self.chat().choices[0].message.content, "391")
        with self.chat(stream=True) as stream:
            self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in stream), "391")
        bodies = []
        for key in ("sk-wrong", "none"):
            with self.assertRaises(openai.AuthenticationError) as caught:
                client(key).models.list()
            self.assertEqual((caught.exception.code, caught.exception.type), ("invalid_api_key", "authentication_error"))
            bodies.append(caught.exception.body)
        self.assertEqual(bodies[0], bodies[1])
        with self.assertRaises(openai.APIConnectionError):
            self.make_client(of=secure, api_key="sk-one").models.list()


class Cancel(SdkTest):
    def setUp(self):
        super().setUp()
        server.wait_for_metric("weft_requests_running", 0)
        self.before = server.metric(CANCELLED)

    def expect_freed(self, count=1):
        server.wait_for_metric("weft_requests_running", 0)
        server.wait_for_metric(CANCELLED, self.before + count)

    def test_close_of_a_stream(self):
        stream = self.client.chat.completions.create(**ENDLESS, stream=True)
        next(iter(stream))
        server.wait_for_metric("weft_requests_running", 1)
        stream.close()
        self.expect_freed()

    def test_close_of_a_stream_of_several_choices(self):
        with self.client.chat.completions.create(**ENDLESS, n=4, stream=True) as stream:
            next(iter(stream))
            server.wait_for_metric("weft_requests_running", 4)
        self.expect_freed(4)

    def test_close_of_a_completion(self):
        with self.client.completions.create(**COMPLETION, max_tokens=3500, extra_body={"ignore_eos": True},
                                            stream=True) as stream:
            next(iter(stream))
        self.expect_freed()

    def test_time_limit_of_the_client(self):
        with self.assertRaises(openai.APITimeoutError):
            self.client.with_options(timeout=0.5).chat.completions.create(**ENDLESS)
        self.expect_freed()

    def test_task_cancelled(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=END) as client:
                task = asyncio.create_task(client.chat.completions.create(**ENDLESS))
                await asyncio.to_thread(server.wait_for_metric, "weft_requests_running", 1)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                # The package keeps the client open: its connection alone is what ends.
                await asyncio.to_thread(self.expect_freed)

        asyncio.run(run())

    def test_while_it_waits(self):
        """The queue of a small server: the third request is refused, the second leaves it, and the package tries again."""
        small = Server("--parallel", "1", "--max-queue", "1")
        self.addCleanup(small.close)
        client = self.make_client(of=small)
        first = client.chat.completions.create(**ENDLESS, stream=True)
        next(iter(first))
        small.wait_for_metric("weft_requests_running", 1)

        async def second():
            async with openai.AsyncOpenAI(base_url=small.v1, api_key="none", max_retries=0, timeout=END) as waiting:
                task = asyncio.create_task(waiting.chat.completions.create(**ENDLESS))
                await asyncio.to_thread(small.wait_for_metric, "weft_requests_waiting", 1)
                with self.assertRaises(openai.RateLimitError) as caught:
                    await asyncio.to_thread(lambda: client.chat.completions.create(**ENDLESS))
                self.assertEqual(caught.exception.code, "queue_full")
                self.assertEqual(caught.exception.response.headers["retry-after"], "1")
                retrying = asyncio.create_task(asyncio.to_thread(
                    lambda: client.with_options(max_retries=5).chat.completions.create(
                        model=MODEL, messages=user(MULTIPLY), temperature=0)))
                await asyncio.to_thread(small.wait_for_metric,
                                        'weft_requests_total{endpoint="/v1/chat/completions",status="429"}', 2)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await asyncio.to_thread(first.close)
                self.assertEqual((await retrying).choices[0].message.content, "391")

        asyncio.run(second())
        small.wait_for_metric("weft_requests_running", 0)
        small.wait_for_metric("weft_requests_waiting", 0)


class Async(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = openai.AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0, timeout=END)
        self.addAsyncCleanup(self.client.close)

    async def test_side_by_side(self):
        async def whole(**fields):
            made = checked(await self.client.chat.completions.create(model=MODEL, temperature=0, **fields))
            return made.choices[0].message

        async def streamed():
            stream = await self.client.chat.completions.create(model=MODEL, temperature=0, messages=user(MULTIPLY), stream=True)
            async with stream:
                return "".join([checked(chunk).choices[0].delta.content or "" async for chunk in stream])

        answers = await asyncio.gather(
            *(whole(messages=user(MULTIPLY)) for _ in range(4)),
            *(whole(messages=user(WEATHER), tools=[WEATHER_TOOL]) for _ in range(2)),
            *(streamed() for _ in range(4)))
        self.assertEqual([message.content for message in answers[:4]], ["391"] * 4)
        self.assertEqual([message.tool_calls[0].function.arguments for message in answers[4:6]], ['{"city": "Tokyo"}'] * 2)
        self.assertEqual(answers[6:], ["391"] * 4)
        for text in answers[6:]:
            for marker in MARKERS:
                self.assertNotIn(marker, text)

    async def test_stream_helper(self):
        async with self.client.chat.completions.stream(model=MODEL, temperature=0, messages=user(WEATHER),
                                                       tools=[weather_tool(strict=True)]) as stream:
            async for _ in stream:
                pass
            made = await stream.get_final_completion()
        self.assertEqual(made.choices[0].message.tool_calls[0].function.arguments, '{"city": "Tokyo"}')

    async def test_models_and_errors(self):
        self.assertEqual([model.id async for model in self.client.models.list()], [MODEL])
        with self.assertRaises(openai.NotFoundError):
            await self.client.models.retrieve("other")
        with self.assertRaises(openai.BadRequestError):
            await self.client.chat.completions.create(model=MODEL, messages=[])


if __name__ == "__main__":
    unittest.main()
