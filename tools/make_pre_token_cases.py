#!/usr/bin/env python3
"""Writes tests/fixtures/text/pre_tokens.json (kimi) or qwen_pre_tokens.json (qwen): random strings, cut by a regular expression engine
with the pattern of prompt_and_api.md 1.3 or 1.8. The tests compare the hand-written scanners with them.

    pip install regex && python3 tools/make_pre_token_cases.py kimi > tests/fixtures/text/pre_tokens.json
"""

import json
import random
import sys

import regex

W, NOT_W = r"\p{White_Space}", r"\P{White_Space}"
KIMI = regex.compile(
    "|".join([
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^" + W + r"\p{L}\p{N}]+[\r\n]*",
        W + r"*[\r\n]+",
        W + r"+(?!" + NOT_W + r")",
        W + r"+",
    ]), regex.V1)
QWEN = regex.compile(
    "|".join([
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^" + W + r"\p{L}\p{N}]+[\r\n]*",
        W + r"*[\r\n]+",
        W + r"+(?!" + NOT_W + r")",
        W + r"+",
    ]), regex.V1)

# All assigned for many years, so that engines with other Unicode versions agree.
ALPHABETS = [
    ("ABXYZÀÉΩДЖ", 6), ("abstrevmldéωдж", 10), ("ǅǈ", 1), ("ʰˢーゝ", 2), ("ªºאבखกかカ", 3),
    ("\u0301\u0308\u20dd\u093f", 3), ("0123456789", 4), ("²½Ⅷ٣〸", 2), ("中文字々〇⺀", 4), (" ", 8), ("\t\u00a0\u3000\u2028\x85", 2),
    ("\n\r", 4), ("'", 5), ("'s 't 're 've 'm 'll 'd 'S 'T 'RE 'Ve 'M 'lL 'D 'ſ 'x ''s".split(" "), 5), ("!.,-_()\u2019\u3002€+", 5),
    ("😀🎉\u200d", 2), ("\x1c\x00\x7f\u200b\ufeff", 1),
]


def main():
    pattern, count = {"kimi": (KIMI, 3000), "qwen": (QWEN, 1500)}[sys.argv[1]]
    random.seed(20260101)
    sets, weights = [a for a, _ in ALPHABETS], [w for _, w in ALPHABETS]
    print("[")
    for i in range(count):
        # Some strings use few classes, so that long runs and backtracking occur.
        some = random.choices(range(len(sets)), weights, k=random.choice([1, 2, 2, 3, 17]))
        text = "".join(random.choice(sets[random.choice(some)]) for _ in range(random.randint(1, 24)))
        pieces = pattern.findall(text)
        assert "".join(pieces) == text
        print(json.dumps(pieces, ensure_ascii=True) + ("," if i + 1 < count else ""))
    print("]")


main()
