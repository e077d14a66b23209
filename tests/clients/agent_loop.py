"""Tool loops that an agent framework, openai-agents, runs to their end."""

import asyncio

import agents
import openai

from weft_server import END, MARKERS, WEATHER, WEATHER_RESULT

# It would send what it did to its makers.
agents.set_tracing_disabled(True)


class AgentLoop:
    """The loops, by whichever API the model of make_model() speaks. `server` is set by the module that runs them."""

    server = None

    def make_model(self):
        raise NotImplementedError

    async def asyncSetUp(self):
        self.client = openai.AsyncOpenAI(base_url=self.server.v1, api_key="none", max_retries=0, timeout=END)
        self.addAsyncCleanup(self.client.close)
        self.cities = []

        @agents.function_tool
        def get_weather(city: str) -> str:
            """Get the current weather for a city.

            Args:
                city: City name
            """
            self.cities.append(city)
            return WEATHER_RESULT

        self.tool = get_weather

    def agent(self, instructions=None, **settings):
        return agents.Agent(name="weather", instructions=instructions, tools=[self.tool], model=self.make_model(),
                            model_settings=agents.ModelSettings(temperature=0, **settings))

    def expect_end(self, result):
        self.assertEqual(self.cities, ["Tokyo"], "the tool ran once, with what the model wrote")
        self.assertIn("Tokyo is sunny", result.final_output)
        for marker in MARKERS:
            self.assertNotIn(marker, result.final_output)
        kinds = [item.type for item in result.new_items]
        self.assertEqual([kind for kind in kinds if kind != "reasoning_item"],
                         ["tool_call_item", "tool_call_output_item", "message_output_item"])
        self.assertEqual(kinds.count("reasoning_item"), 2)
        self.cities.clear()

    async def test_loop(self):
        result = await agents.Runner.run(self.agent(), WEATHER)
        self.expect_end(result)
        usage = result.context_wrapper.usage
        self.assertEqual(usage.requests, 2)
        self.assertEqual(usage.total_tokens, usage.input_tokens + usage.output_tokens)
        self.assertGreater(usage.output_tokens_details.reasoning_tokens, 0)

    async def test_streamed(self):
        result = agents.Runner.run_streamed(self.agent(include_usage=True), WEATHER)
        text = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        self.expect_end(result)
        self.assertEqual(text, result.final_output)
        self.assertGreater(result.context_wrapper.usage.total_tokens, 0)

    async def test_settings(self):
        for settings in ({"tool_choice": "required"}, {"tool_choice": "get_weather"}, {"parallel_tool_calls": False},
                         {"max_tokens": 300}, {"reasoning": {"effort": "low"}}):
            with self.subTest(settings):
                result = await agents.Runner.run(self.agent(**settings), WEATHER)
                self.assertEqual(set(self.cities), {"Tokyo"})
                self.assertTrue(result.final_output)
                self.cities.clear()

    async def test_conversation(self):
        """The framework sends all that was said, its own tool results included."""
        first = await agents.Runner.run(self.agent(), WEATHER)
        self.expect_end(first)
        asked = first.to_input_list() + [{"role": "user", "content": "What is the weather in Paris?"}]
        second = await agents.Runner.run(self.agent(), asked)
        self.assertEqual(self.cities, ["Paris"])
        self.assertIn("Paris", second.final_output)

    async def test_instructions(self):
        result = await agents.Runner.run(self.agent("Answer with what the tools say."), WEATHER)
        self.assertTrue(result.final_output)

    async def test_side_by_side(self):
        results = await asyncio.gather(*(agents.Runner.run(self.agent(), WEATHER) for _ in range(4)))
        self.assertEqual(self.cities, ["Tokyo"] * 4)
        self.assertEqual(len({result.final_output for result in results}), 1)

    async def test_errors(self):
        """A tool that fails is told to the model; a loop that never ends is cut by the framework."""
        @agents.function_tool
        def get_weather(city: str) -> str:
            """Get the current weather for a city."""
            self.cities.append(city)
            raise ValueError("no such city")

        self.tool = get_weather
        result = await agents.Runner.run(self.agent(), WEATHER)
        self.assertTrue(result.final_output)
        self.assertTrue(self.cities)
        with self.assertRaises(agents.MaxTurnsExceeded):
            await agents.Runner.run(self.agent(), WEATHER, max_turns=1)
