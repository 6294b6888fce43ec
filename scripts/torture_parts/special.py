"""Special files in the place of regular files, and outputs that cannot be written."""

import os
import shutil
import socket

from . import originals, runs
from .bench import copy

TRIED = (
    "FIFO, socket, folder, devices, dangling and looping links, unreadable files as config, dataset, model, batch, plugin and run; "
    "output to `/dev/full` and to a closed pipe"
)
# Seconds; no case has to compute anything.
LIMIT = 20
MEASURED = ("--num-prompts", "1", "--set", "data.dataset_name=embedded:arithmetic")


def fifo(path):
    os.mkfifo(path)


def unix_socket(path):
    # The path of a socket must be short.
    here = os.getcwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(path.name)
    os.chdir(here)


def folder(path):
    path.mkdir()


def unreadable(path):
    path.write_text("{}")
    path.chmod(0)


def link_to(target):
    return lambda path: path.symlink_to(target)


THINGS = {
    "a FIFO": fifo,
    "a socket": unix_socket,
    "a folder": folder,
    "/dev/full": link_to("/dev/full"),
    "/dev/zero": link_to("/dev/zero"),
    "/dev/null": link_to("/dev/null"),
    "/proc/self/mem": link_to("/proc/self/mem"),
    "a dangling link": link_to("nowhere"),
    "a loop of links": lambda path: path.symlink_to(path.name),
    "an unreadable file": unreadable,
}


class Part:
    def __init__(self, bench):
        self.bench = bench
        reference = runs.reference(bench)
        half, data, model, batch = (runs.half(bench, "half"), originals.data(bench), originals.model(bench), originals.batch(bench))
        self.cases = [*inputs(reference, half, data, model, batch), *outputs(bench, data, batch)]

    def run(self, case):
        case.one(case)


def inputs(reference, half, data, model, batch):
    """A case for every special file in every place where a file or folder is read. `host` may report damaged records and go on."""
    training = ["train", "--output-dir", "out", "--stop-after", "1", "--config", "data.toml"]
    evaluating = ["eval", "--config", "data.toml", "--num-prompts", "1"]
    replaying = ["replay", "--plugin", "libcapo.so", "--config", "mask.toml", "--out", "out", "batch-0000.safetensors"]
    places = [
        (data, "data.toml", training, True),
        (data, "train.jsonl", training, True),
        (data, "test.jsonl", evaluating, True),
        (data, "sft.toml", ["sft", "--config", "sft.toml", "--output-dir", "out"], True),
        (data, "plugin.so", ["plugins", "--plugin", "./plugin.so"], True),
        (data, "plugin.so", ["check", "./plugin.so"], True),
        (batch, "batch-0000.safetensors", replaying, True),
        (batch, "mask.toml", replaying, True),
        (data, "model", ["eval", "--model", "model", *MEASURED], True),
        (data, "run", runs.resume(), True),
    ]
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        places.append((model, name, ["eval", "--model", ".", *MEASURED], True))
    newest = runs.checkpoint(half).relative_to(half)
    for file in sorted((half / newest).iterdir()):
        # The only file of a checkpoint that a model does not need, and components without a state.
        places.append((half, str(newest / file.name), runs.resume(), file.stat().st_size > 0))
    for name in runs.files(half):
        places.append((half, f"{runs.RUN}/{name}", runs.resume(), name == "config.toml"))
    for source, name, command, must_refuse in places:
        for thing, make in THINGS.items():
            if os.geteuid() != 0 or not spared(thing, command):
                yield reading(source, name, command, must_refuse, thing, make)


def spared(thing, command):
    """True if root must not run the case: root can read every file, and where `host` writes, it could replace a device of the machine."""
    return thing == "an unreadable file" or thing.startswith("/dev") and "--resume" in command


def reading(source, name, command, must_refuse, thing, make):
    def run(case):
        copy(source, case.folder)
        place = case.folder / name
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        make(place)
        case.kind = f"{thing} as {os.path.basename(name)}"
        outcome = case.call(*command, limit=LIMIT)
        if outcome.code == 0 and must_refuse:
            case.find("it is taken", outcome)

    return run


def outputs(bench, data, batch):
    """A case for every command whose output cannot be written."""
    commands = [
        (data, ["plugins"]),
        (data, ["plugins", "--hash", "--plugin", "libcapo.so"]),
        (data, ["check", "--list"]),
        (data, ["check", "--only", "load-time"]),
        (data, ["check", "--only", "load-time", "--json"]),
        (data, ["train", "--output-dir", "out", "--stop-after", "1", "--config", "data.toml"]),
        (data, ["eval", "--config", "data.toml", "--num-prompts", "1"]),
        (data, ["sft", "--config", "sft.toml", "--output-dir", "out"]),
        (batch, ["replay", "--plugin", "libcapo.so", "--out", "out", "batch-0000.safetensors"]),
        (batch, ["replay", "--plugin", "libcapo.so", "--sweep", "mask.0.fisher_threshold=1e-6..1e-2:2", "batch-0000.safetensors"]),
        (data, ["new-plugin", "calm"]),
        (data, ["--help"]),
        (data, ["--version"]),
    ]
    for source, command in commands:
        yield writing(source, command, full=True)
        yield writing(source, command, full=False)
    yield replacing


def writing(source, command, full):
    def run(case):
        copy(source, case.folder)
        case.kind = f"`{command[0]}` to {'/dev/full' if full else 'a closed pipe'}"
        stdout = os.open("/dev/full", os.O_WRONLY) if full else closed_pipe()
        outcome = case.call(*command, limit=LIMIT, stdout=stdout)
        os.close(stdout)
        if full and outcome.code != 1:
            case.find(f"exit code {outcome.code}, not 1", outcome)

    return run


def replacing(case):
    """A special file in the place of the answers must stay as it is. Devices are not tried, because root could replace one."""
    answers = case.folder / "answers"
    unix_socket(answers)
    case.kind = "a socket as answers"
    outcome = case.call("eval", "--num-prompts", "1", "--output", answers.name, limit=LIMIT)
    if not answers.is_socket():
        case.find("it is replaced", outcome)
    elif outcome.code == 0:
        case.find("it is taken", outcome)


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return writer
