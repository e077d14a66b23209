"""An agent framework, openai-agents, by /v1/chat/completions; test_responses.py runs the same loops by /v1/responses."""

import unittest

import agents

from agent_loop import AgentLoop
from weft_server import MODEL, Server


def setUpModule():
    ChatCompletions.server = Server()
    unittest.addModuleCleanup(ChatCompletions.server.close)


class ChatCompletions(AgentLoop, unittest.IsolatedAsyncioTestCase):
    def make_model(self):
        return agents.OpenAIChatCompletionsModel(MODEL, self.client)


if __name__ == "__main__":
    unittest.main()
