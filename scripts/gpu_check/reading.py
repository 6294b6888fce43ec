"""Parses the output and the files of programs."""

import array
import json
import re
import struct

BRANCH = re.compile(r"^((?:│  |   )*)[├╰]─ (.*)$")
RATE = re.compile(r"^[\d.]+ \w+/s$")
TIME = re.compile(r"^[\d.]+ (?:ns|µs|ms|s)$")


def tests(said):
    """The numbers of tests that passed and failed, from the output of a test executable, which may have been stopped before the summary."""
    found = re.findall(r"test result: \w+\. (\d+) passed; (\d+) failed", said)
    if not found:
        ended = re.findall(r"^test \S+ \.\.\. (ok|FAILED)$", said, re.MULTILINE)
        return ended.count("ok"), ended.count("FAILED")
    return sum(int(passed) for passed, _ in found), sum(int(failed) for _, failed in found)


def failed_tests(said):
    return re.findall(r"^test (\S+) \.\.\. FAILED$", said, re.MULTILINE)


def bench(said):
    """`(key, value)` of the lines `key: value` before the benchmarks, then `(name, median)` of each, with its rate if it has one."""
    path, times, notes = [], [], []
    for line in said.splitlines():
        if branch := BRANCH.match(line):
            depth, text = len(branch[1]) // 3, branch[2]
            cells = [cell.strip() for cell in text.split("│")]
            name = re.split(r"\s{2,}", cells[0])[0]
            path[depth:] = [name]
            if len(cells) > 2 and TIME.match(cells[2]):
                times.append((", ".join(path), cells[2]))
        elif times and len(cells := [cell.strip(" │") for cell in line.split("│")]) >= 6 and RATE.match(cells[-4]):
            times[-1] = (times[-1][0], f"{times[-1][1]}, {cells[-4]}")
        elif not path and (note := re.match(r"^(\w[\w ,()-]*): (.+)$", line)) and note[1] != "Timer precision":
            notes.append((note[1], note[2]))
    return notes + times


def peer(said):
    """`(name, value)` of the indented lines after `best of`."""
    best = said.split("best of", 1)[-1]
    return re.findall(r"^  (\S.*?)\s{2,}(\S.*)$", best, re.MULTILINE)


def columns(said):
    """`(name of the row, its cells, each with its column's name)` of the table that trl_step.py prints."""
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said.splitlines() if line.startswith("| ")]
    return [
        (row[0].replace("`", ""), "; ".join(f"{name} {cell}" for name, cell in zip(table[0][1:], row[1:]) if cell))
        for row in table[1:]
    ]


def rates(said):
    """`{name: tokens per second}` of train_torch.py."""
    return {name: float(rate) for name, rate in re.findall(r"^  (\w+)\s+(\d+) .*tokens/s$", said, re.MULTILINE)}


def memory(said):
    """`(name, value)` of the line about memory of `host train --dry-run`."""
    return [
        ("memory, estimated", line.removeprefix("memory").strip())
        for line in said.splitlines()
        if line.startswith("memory ")
    ]


def first_difference(lines, others):
    """The first difference between two runs' metrics, in words; empty if there is none. Times and memory do not count."""
    for line, other in zip(lines, others):
        names = [name for name in line if not of_the_machine(name) and line[name] != other.get(name)]
        if names:
            named = ", ".join(f"`{name}` {line[name]} and {other.get(name)}" for name in names[:3])
            return f"they part at step {line['step']}: {named}"
    return None if len(lines) == len(others) else f"{len(lines)} and {len(others)} steps"


def of_the_machine(name):
    return name.startswith(("timing_s/", "perf/", "memory/")) or name in ("step_time", "tokens_per_second")


def tensors(path):
    """Every tensor of floats or bytes in a safetensors file, as a flat sequence."""
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    found = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        code = {"F32": "f", "F64": "d", "U8": "B"}.get(entry.get("dtype")) if name != "__metadata__" else None
        if code:
            start, end = entry["data_offsets"]
            found[name] = array.array(code, data[8 + size + start : 8 + size + end])
    return found


def metrics(path):
    """The lines of a metrics file; a torn last line is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]
