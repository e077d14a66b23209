#!/usr/bin/env python3
"""Writes tests/wire/golden/*.hex, one frame each, and the seeds of the frame fuzzer, tests/fuzz/corpus/frame/*.

An encoder of its own, written after the tables of the protocol and not after Weft's, with a bit-by-bit CRC32C. Each line of a
.hex file holds one field and its name; "message" begins each message of the frame.
Usage: tools/make_wire_goldens.py   (at the root of the sources)
"""
import pathlib
import struct

GOLDEN = pathlib.Path("tests/wire/golden")
CORPUS = pathlib.Path("tests/fuzz/corpus/frame")
COORDINATOR = 0xFFFF
F32, BF16, I32, U8, U32 = 0, 2, 3, 6, 9
RAW, LZ4 = 0, 1
HIDDEN, SEALED, TOKEN_IDS, POSITIONS, EMBEDDINGS, LOGITS, CACHE, MESSAGE = range(8)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283


class Part:
    """Bytes with what they mean."""

    def __init__(self):
        self.fields = []

    def add(self, form, value, name):
        data = value if form is None else struct.pack("<" + form, value)
        if data:
            self.fields.append((data, name if form is None else f"{name} = {value}"))
        return self

    def data(self):
        return b"".join(data for data, _ in self.fields)


def head(frame, payload, flags, part, index, count, tables):
    made = Part()
    rows = frame.get("rows", ()) if tables else ()
    tensors = frame.get("tensors", ()) if tables else ()
    length = 64 + 32 * len(rows) + sum(32 + 8 * len(t["dims"]) for t in tensors)
    made.add(None, b"PPW1", "magic PPW1").add("H", 1, "major").add("H", 0, "minor").add("H", frame["type"], "type")
    made.add("H", flags, "flags").add("I", length, "header length").add("Q", len(payload), "payload length")
    made.add("I", frame.get("epoch", 0), "epoch").add("H", frame.get("source", COORDINATOR), "source")
    made.add("H", frame.get("destination", COORDINATOR), "destination").add("Q", frame.get("step", 0), "step")
    made.add("I", frame.get("micro_batch", 0), "micro-batch").add("I", index, "chunk index").add("I", count, "chunk count")
    made.add("H", len(tensors), "tensors").add("H", len(rows), "rows")
    checksum_at = len(made.fields)
    made.add("I", 0, "header checksum").add("I", crc32c(part) if flags & 1 else 0, "payload checksum")
    for sequence, position, tokens, offset, phase, row_flags, generation in rows:
        made.add("Q", sequence, "row: sequence").add("I", position, "first position").add("I", tokens, "tokens")
        made.add("I", offset, "row offset").add("H", phase, "phase").add("H", row_flags, "row flags")
        made.add("Q", generation, "generation")
    at = 0
    for t in tensors:
        at = (at + 7) // 8 * 8
        made.add("B", t["kind"], "tensor: kind").add("B", t["dtype"], "dtype").add("B", len(t["dims"]), "dimensions")
        made.add("B", t.get("encoding", RAW), "encoding").add("I", 0, "reserved").add("Q", at, "offset")
        made.add("Q", len(t["data"]), "stored length").add("Q", t.get("logical", len(t["data"])), "logical length")
        for d in t["dims"]:
            made.add("Q", d, "dimension")
        at += len(t["data"])
    value = crc32c(made.data())
    made.fields[checksum_at] = (struct.pack("<I", value), f"header checksum = {value:#010x}")
    return made


def messages(frame, chunk=4 << 20, checksum=True):
    payload = Part()
    for i, t in enumerate(frame.get("tensors", ())):
        payload.add(None, bytes(-len(payload.data()) % 8), "zeros")
        payload.add(None, t["data"], f"tensor {i}")
    payload = payload.data()
    chunked = len(payload) > chunk
    parts = [payload[i:i + chunk] for i in range(0, len(payload), chunk)] if chunked else [payload]
    for i, part in enumerate(parts):
        flags = (1 if checksum else 0) | (2 if chunked else 0) | (4 if chunked and i == len(parts) - 1 else 0)
        flags |= 8 if any("encoding" in t for t in frame.get("tensors", ())) else 0
        yield head(frame, payload, flags, part, i, len(parts), i == 0), part


def write(name, about, frame, **how):
    lines = [f"# {about}"]
    seed = b"\x00"
    for made, part in messages(frame, **how):
        lines.append("message")
        lines += [f"{data.hex(' ')}  # {what}" for data, what in made.fields]
        for i in range(0, len(part), 16):
            lines.append(part[i:i + 16].hex(" ") + (f"  # payload from {i}" if i == 0 else ""))
        whole = made.data() + part
        seed += struct.pack("<H", len(whole)) + whole
    (GOLDEN / f"{name}.hex").write_text("\n".join(lines) + "\n")
    (CORPUS / name).write_bytes(seed)
    if name in ("payload", "control", "chunks", "lz4"):  # with checksums that the fuzzer puts right
        (CORPUS / f"{name}_signed").write_bytes(b"\x01" + seed[1:])


def message(text):
    data = text if isinstance(text, bytes) else text.encode()
    return {"kind": MESSAGE, "dtype": U8, "dims": [len(data)], "data": data}


def tensor(kind, dtype, dims, form, values):
    data = b"".join(struct.pack("<" + form, v) for v in values)
    return {"kind": kind, "dtype": dtype, "dims": dims, "data": data}


def lz4(made, period):
    """A tensor as one LZ4 block; its bytes repeat after `period`, which is below 15: one match, then five literals."""
    data = made["data"]
    match = len(data) - period - 5
    assert period < 15 and match >= 19 and data[period:] == data[:-period]
    length = match - 4 - 15
    block = bytes([period << 4 | 15]) + data[:period] + struct.pack("<H", period)
    block += b"\xff" * (length // 255) + bytes([length % 255]) + bytes([5 << 4]) + data[-5:]
    return {**made, "data": block, "logical": len(data), "encoding": LZ4}


def boundary(layer, block, dtype):
    """K3's before `layer`: 3 rows, D = 4; value (plane * 32 + row * 8 + column), negative in odd columns."""
    planes = 1 + -(-layer // block)
    values = [(p * 32 + r * 8 + c) * (-1 if c % 2 else 1) for r in range(3) for p in range(planes) for c in range(4)]
    words = [struct.pack("<f", v) for v in values]
    if dtype == BF16:
        assert all(w[:2] == b"\0\0" for w in words)
        words = [w[2:] for w in words]
    return {"kind": SEALED if layer % block == 0 else HIDDEN, "dtype": dtype, "dims": [3, planes * 4], "data": b"".join(words)}


ROWS = [(0x1122334455667788, 5, 2, 0, 1, 1, 9), (2, 1000, 1, 2, 2, 3, 0)]


def main():
    for folder in (GOLDEN, CORPUS):
        folder.mkdir(parents=True, exist_ok=True)
    to_stage = {"epoch": 3, "destination": 1}
    write("step", "a decision", {"type": 1, **to_stage, "step": 7, "micro_batch": 2, "tensors": [message("a decision")]})
    write("payload", "two sequences, no K3", {
        "type": 2, "epoch": 3, "source": 0, "destination": 1, "step": 0x0102030405060708, "micro_batch": 0xA1A2A3A4, "rows": ROWS,
        "tensors": [tensor(HIDDEN, F32, [3, 2], "f", [1.0, -2.0, 0.5, 4.0, -0.0, 8.0]),
                    tensor(TOKEN_IDS, U32, [3], "I", [1, 163_585, 0xFFFFFFFF]),
                    tensor(POSITIONS, I32, [3], "i", [5, 6, -1])]})
    write("tokens", "an answer with logits, which stand at a multiple of 8", {
        "type": 3, "epoch": 3, "source": 2, "step": 7, "tensors": [message("done"), tensor(LOGITS, F32, [1, 3], "f", [0.25, -1.5, 3.0])]})
    write("logits", "reserved", {"type": 4, "epoch": 3, "source": 2, "step": 7, "tensors": [tensor(LOGITS, BF16, [2], "H", [0x3F80, 0xC000])]})
    write("credit", "three further payload frames", {"type": 5, "epoch": 3, "source": 1, "destination": 0, "step": 3}, checksum=False)
    write("abort", "in place of a payload", {"type": 6, "epoch": 3, "source": 1, "destination": 2, "step": 8, "tensors": [message("[stage] failed")]})
    write("ping", "a sign of life", {"type": 7, "step": 41}, checksum=False)
    write("pong", "the answer to ping 41", {"type": 8, "step": 41}, checksum=False)
    write("control", "a message of no bytes, and a scalar and an empty tensor beside it", {
        "type": 9, "tensors": [message(""), tensor(CACHE, F32, [], "f", [1.5]), tensor(EMBEDDINGS, BF16, [0, 7], "H", [])]})
    write("chunks", "chunks of 16 bytes, which cut a tensor and the zeros behind it", {
        "type": 2, "epoch": 1, "source": 0, "destination": 1, "step": 5, "rows": ROWS[:1],
        "tensors": [tensor(HIDDEN, BF16, [2, 5], "H", range(0x3F80, 0x3F8A)), tensor(POSITIONS, I32, [4], "i", [1, 2, 3, 4])]}, chunk=16)
    write("lz4", "a tensor as an LZ4 block, and one as it is behind it", {
        "type": 2, "epoch": 2, "source": 0, "destination": 1, "step": 6, "rows": ROWS[:1],
        "tensors": [lz4(tensor(HIDDEN, BF16, [2, 160], "H", [0x3F80, 0xC000, 0x0001, 0x7F81] * 80), 8),
                    tensor(POSITIONS, I32, [4], "i", [1, 2, 3, 4])]})
    for name, dtype in (("bf16", BF16), ("f32", F32)):
        for layer in (11, 12, 13, 24):
            write(f"k3_boundary_{layer}_{name}", f"K3 before layer {layer}, blocks of 12 layers", {
                "type": 2, "epoch": 1, "source": 0, "destination": 1, "step": 1, "rows": [(1, 0, 3, 0, 0, 0, 0)],
                "tensors": [boundary(layer, 12, dtype)]})


main()
