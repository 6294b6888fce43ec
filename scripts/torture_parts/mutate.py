"""Mutations of bytes, and of the words of a text."""

import json
import re
import struct

NUMBERS = [b"0", b"-1", b"1", b"2", b"3", b"1e999", b"-1e999", b"nan", b"inf", b"-inf", b"0.0", b"-0", b"1e-320", b"0.1", b"1e308"]
NUMBERS += [str(n).encode() for n in (255, 65536, -(2**31), 2**31, 2**32 - 1, 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1, -(2**63))]
NUMBERS += [str(n).encode() for n in (2**63, 2**64 - 1, 2**64, 10**30, 2**61 + 1, 3 * 2**62)] + [b"9" * 400]
STRINGS = [b'""', b'"\x00"', b'"\\u0000"', b'"\x1b[31mred"', b'"\\u001b[2J"', b'"\\ud800"', b'"\xff\xfe"', b'"' + b"a" * 70_000 + b'"']
STRINGS += ['"ünï—\u202e"'.encode(), '"\u009b31m"'.encode(), b'"../../../etc/passwd"', b'"/dev/zero"', b'"/"', b'"."', b"'%s%n'", b'"a\\nb\\rc"']
OTHERS = [b"null", b"true", b"false", b"[]", b"{}", b"[[]]", b'{"":0}', b"[1,2,3]", b"[" * 5000, b'{"a":' * 5000, b"[" * 200 + b"]" * 200]
RAW = [b"\x00", b"\x1b[2J", b"\x07", b"\r", b"\xef\xbb\xbf", b"\xff\xfe", b"\n\n", b'"', b"\\", b"}", b"]", b",", b"=", b"#", b"\x00" * 4096]
NASTY = NUMBERS + STRINGS + OTHERS + RAW

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
    return data[:at] + draw.choice(NASTY) + data[at:]


def word(data, draw):
    """A number, string or constant replaced by a nasty one."""
    found = list(WORD.finditer(data))
    if not found:
        return splice(data, draw)
    match = draw.choice(found)
    alike = STRINGS if match[0].startswith(b'"') else NUMBERS
    return data[: match.start()] + draw.choice(draw.choice((alike, alike, NASTY))) + data[match.end() :]


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
    numbers = (b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x01\x00\x00\x00")
    changed = bytearray(rest)
    for _ in range(draw.choice((1, 3, 50))):
        at = draw.randrange(max(1, len(changed) // 4)) * 4
        changed[at : at + 4] = draw.choice(numbers)
    return data[: 8 + size] + bytes(changed)


def pack(header, data):
    """A safetensors file of a header and its data."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def unpack(file):
    size = struct.unpack("<Q", file[:8])[0]
    return json.loads(file[8 : 8 + size]), file[8 + size :]
