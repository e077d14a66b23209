#!/usr/bin/env python3
"""Writes tests/fixtures/text/chatml_cases.json: random conversations, rendered by Jinja with the chat template that the Qwen3
tokenizer carries, and with the two forms of it that Qwen3-Next uses. The tests compare the renderer with it.

    pip install jinja2 && python3 tools/make_chatml_cases.py tokenizer_config.json > tests/fixtures/text/chatml_cases.json
"""

import json
import random
import sys

import jinja2.sandbox

GENERATION = "{%- if add_generation_prompt %}"
CONTENTS = ["", "Hi", "Tide at Barry?", " spaced ", "\n\nafter breaks\n", "a\n\n", "é 你好 😀", 'say "x" & <b>', "\\n", "a</think>b",
            "<think>\nplan\n</think>\n\nanswer", "<think>a</think>\n<think>b</think>c", "x\n</think>\n\n", "</think>",
            "<tool_response>\nold\n</tool_response>", "<tool_response>", "<|im_start|>user", "<tool_call>\n{}\n</tool_call>"]
REASONINGS = [None, "", "Use the tool.\n", "\n\nmany\nlines\n\n", "a <think> b"]
ARGUMENTS = ["{}", '{"port":"Barry"}', "not json", {"port": "Tenby", "n": [1, 2]}, {"a": None, "b": {"c": True}, "é": "\n\""}, {}]
TOOLS = [{"type": "function", "function": {"name": "tide_height", "description": "Tide & time", "parameters":
          {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]}}},
         {"type": "function", "function": {"name": "größe", "description": "\"<>'\u2028\n", "parameters": {}}}]


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return env


def templates(published):
    """The published text; Thinking ends the prompt in an open think block; Instruct knows no reasoning."""
    head = published[:published.rindex(GENERATION)]
    thinking = head + GENERATION + "\n    {{- '<|im_start|>assistant\\n<think>\\n' }}\n{%- endif %}"
    begin = head.index("        {%- set reasoning_content = '' %}")
    end = head.index("        {%- if message.tool_calls %}")
    instruct = (head[:begin] + "        {{- '<|im_start|>' + message.role + '\\n' + content }}\n" + head[end:] + GENERATION +
                "\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}")
    return {"both": published, "thinking": thinking, "instruct": instruct}


def conversation(rng):
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(CONTENTS)})
    for _ in range(rng.randint(1, 6)):
        role = rng.choices(["user", "assistant", "tool", "system"], [4, 5, 3, 1])[0]
        message = {"role": role, "content": rng.choice(CONTENTS)}
        if role == "assistant":
            reasoning = rng.choice(REASONINGS)
            if reasoning is not None:
                message["reasoning_content"] = reasoning
            if rng.random() < 0.4:
                message["tool_calls"] = [{"type": "function", "function": {"name": rng.choice(["tide_height", "f.g", "größe"]),
                                                                           "arguments": rng.choice(ARGUMENTS)}}
                                         for _ in range(rng.randint(1, 3))]
        messages.append(message)
    return messages


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        texts = templates(json.load(file)["chat_template"])
    env = environment()
    rng = random.Random(20260101)
    cases = []
    for i in range(240):
        name = ["both", "thinking", "instruct"][i % 3]
        request = {"messages": conversation(rng), "add_generation_prompt": rng.random() < 0.8}
        if rng.random() < 0.4:
            request["tools"] = rng.sample(TOOLS, rng.randint(1, 2))
        values = dict(request)
        if name == "both" and rng.random() < 0.5:
            values["enable_thinking"] = rng.random() < 0.5
            request["chat_template_kwargs"] = {"enable_thinking": values["enable_thinking"]}
        cases.append({"template": name, "request": request, "text": env.from_string(texts[name]).render(**values)})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    print('{"templates": ' + json.dumps(texts) + ',\n"cases": [\n' + lines + "\n]}")


main()
