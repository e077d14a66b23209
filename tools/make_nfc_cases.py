#!/usr/bin/env python3
"""Writes tests/fixtures/text/nfc.json: random strings of characters that normalisation changes, reorders or leaves, each with its NFC
form by Python's unicodedata. The tests compare to_nfc() with it.

    python3 tools/make_nfc_cases.py > tests/fixtures/text/nfc.json
"""

import json
import random
import unicodedata

# Assigned for many years, so that other Unicode versions agree.
BASES = [chr(c) for c in range(0x20, 0x250)] + [chr(c) for c in range(0x391, 0x3CA)] + list("かはウホ你好，“”—各\uac00\uac01\u1112\u110b")
MARKS = [chr(c) for c in list(range(0x300, 0x330)) + [0x345, 0x591, 0x5B0, 0x653, 0x93C, 0x9BE, 0x9D7, 0x1161, 0x1175, 0x11A8, 0x11C2, 0x302A, 0x3099, 0x309A]]
OTHERS = list("\u0340\u0343\u0344\u0374\u037e\u0387\u0958\u09dc\u0f73\u1e9b\u1fbe\u2000\u2126\u212a\u212b\u2adc\ufb1d\ufb2a\uf900\u2f802\U0002f800\U0001d15e😀ﬁ①")


def main():
    rng = random.Random(20260101)
    print("[")
    count = 1000
    for i in range(count):
        pools = rng.choice([[BASES], [BASES, MARKS], [BASES, MARKS, OTHERS], [MARKS, OTHERS], [BASES, MARKS, MARKS, MARKS]])
        text = "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 16)))
        print(json.dumps([text, unicodedata.normalize("NFC", text)]) + ("," if i + 1 < count else ""))
    print("]")


main()
