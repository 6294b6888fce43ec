"""Mutations of files, as strategies of Hypothesis, by bytes and by the words of a text."""

import json
import re
import struct

from hypothesis import strategies as st

from . import nasty

WORD = re.compile(rb'"(?:[^"\\\n]|\\.){0,200}"|[-+]?\d[\d.]*(?:[eE][-+]?\d+)?|true|false|null')


@st.composite
def mutated(draw, data):
    """The data with one to three mutations, which replace parts by another word, other bytes, or bytes or lines from another place."""
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        places, words = st.integers(0, len(data)), list(WORD.finditer(data))
        how = draw(st.sampled_from(("word", "word", "bytes", "bytes", "line")))
        if how == "word" and words:
            (start, end), strings = (match := draw(st.sampled_from(words))).span(), match[0].startswith(b'"')
            new = draw(nasty.as_bytes(nasty.strings if strings else nasty.numbers) | nasty.anything)
        elif how == "line":
            lines = data.splitlines(keepends=True) or [b"\n"]
            start = sum(map(len, lines[: draw(st.integers(0, len(lines)))]))
            end = start + len(data[start:].partition(b"\n")[0]) * draw(st.booleans())
            new = draw(st.sampled_from(lines))
        else:
            start, other = draw(places), draw(places)
            end = start + draw(st.sampled_from((0, 0, 1, 1, 8, 100, 2000, len(data))))
            copied = st.builds(lambda size, times: data[other : other + size] * times, st.sampled_from((1, 4, 256)), st.sampled_from((1, 2, 100)))
            new = draw(st.one_of(st.just(b""), st.binary(max_size=100), copied, nasty.anything))
        data = data[:start] + new + data[end:]
    return data


@st.composite
def tensors(draw, data):
    """A safetensors file with mutations of its bytes, of its header with a matching length, or of its numbers."""
    size = struct.unpack("<Q", data[:8])[0]
    header, rest = data[8 : 8 + size], data[8 + size :]
    how = draw(st.sampled_from(("bytes", "header", "header", "numbers")))
    if how == "bytes":
        return draw(mutated(data))
    if how == "header":
        header = draw(mutated(header))
        return struct.pack("<Q", len(header)) + header + rest
    changed = bytearray(rest)
    for at in draw(st.lists(st.integers(0, max(1, len(changed) // 4) - 1), min_size=1, max_size=50)):
        changed[at * 4 : at * 4 + 4] = draw(st.sampled_from(nasty.FLOATS))
    return data[: 8 + size] + bytes(changed)


def pack(header, data):
    """A safetensors file of a header and its data."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def unpack(file):
    """The header of a safetensors file, and its data."""
    size = struct.unpack("<Q", file[:8])[0]
    return json.loads(file[8 : 8 + size]), file[8 + size :]
