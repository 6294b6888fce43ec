"""Mutations of bytes, and of the words of a text."""

import json
import re
import struct

from . import nasty

WORD = re.compile(rb'"(?:[^"\\\n]|\\.){0,200}"|[-+]?\d[\d.]*(?:[eE][-+]?\d+)?|true|false|null')


def mutated(data, draw):
    """The data with one to three mutations."""
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        data = draw.choice(MUTATIONS)(data, draw)
    return data


def place(data, draw):
    return draw.randrange(len(data) + 1)


def flip(data, draw):
    if not data:
        return data
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]


def insert(data, draw):
    at = place(data, draw)
    return data[:at] + draw.randbytes(draw.choice((1, 1, 2, 8, 100))) + data[at:]


def delete(data, draw):
    at = place(data, draw)
    return data[:at] + data[at + draw.choice((1, 1, 2, 8, 100, 2000)) :]


def truncate(data, draw):
    return data[: place(data, draw)]


def duplicate(data, draw):
    at, size = place(data, draw), draw.choice((1, 4, 16, 64, 256))
    return data[:at] + data[at : at + size] * draw.choice((2, 2, 3, 100)) + data[at + size :]


def exchange(data, draw):
    one, two, three = sorted(place(data, draw) for _ in range(3))
    return data[:one] + data[two:three] + data[one:two] + data[three:]


def splice(data, draw):
    at = draw.choice((0, len(data), place(data, draw), place(data, draw)))
    return data[:at] + draw.choice(nasty.ANYTHING) + data[at:]


def word(data, draw):
    """A number, string or constant replaced by a nasty one."""
    found = list(WORD.finditer(data))
    if not found:
        return splice(data, draw)
    match = draw.choice(found)
    alike = nasty.STRINGS if match[0].startswith(b'"') else nasty.NUMBERS
    return data[: match.start()] + draw.choice(draw.choice((alike, alike, nasty.ANYTHING))) + data[match.end() :]


def line(data, draw):
    """A line repeated, removed or moved."""
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    taken = lines.pop(at)
    for _ in range(draw.choice((0, 1, 2))):
        lines.insert(draw.randrange(len(lines) + 1), taken)
    return b"\n".join(lines)


MUTATIONS = (flip, insert, delete, truncate, duplicate, exchange, splice, splice, word, word, word, word, line)


def tensors(data, draw):
    """A safetensors file, mutated as bytes, or in its header with the length put right, or in its first numbers."""
    how = draw.random()
    if how < 0.3:
        return mutated(data, draw)
    size = struct.unpack("<Q", data[:8])[0]
    header, rest = data[8 : 8 + size], data[8 + size :]
    if how < 0.9:
        header = mutated(header, draw)
        return struct.pack("<Q", len(header)) + header + rest
    changed = bytearray(rest)
    for _ in range(draw.choice((1, 3, 50))):
        at = draw.randrange(max(1, len(changed) // 4)) * 4
        changed[at : at + 4] = draw.choice(nasty.FLOATS)
    return data[: 8 + size] + bytes(changed)


def pack(header, data):
    """A safetensors file of a header and its data."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def unpack(file):
    size = struct.unpack("<Q", file[:8])[0]
    return json.loads(file[8 : 8 + size]), file[8 + size :]
