"""A stand-in for `host` that does what it must, or sins as the environment's FAKE_SIN says. Only for test.py."""

import fcntl
import json
import os
import re
import shutil
import stat
import struct
import sys
import time
import zlib
from pathlib import Path

SIN = os.environ.get("FAKE_SIN", "")
MARKS = Path(os.environ.get("FAKE_MARKS", "/nonexistent"))
FILES = (
    "config.json",
    "model.safetensors",
    "optimizer.safetensors",
    "component-0.bin",
    "tokenizer.json",
    "tokenizer_config.json",
)
RECORDS = ("metrics.jsonl", "completions.jsonl", "provenance.json", "config.toml")
SAID = []


class Refused(Exception):
    """A sentence."""


def options(words):
    found, rest = {"--set": []}, []
    while words:
        word = words.pop(0)
        if word in ("--hash", "--list", "--json", "--help", "--version") or not word.startswith("--"):
            rest.append(word)
        elif word == "--set":
            found["--set"].append(words.pop(0))
        else:
            found[word] = words.pop(0)
    return found, rest


def read(path):
    if SIN != "reads-anything" and not stat.S_ISREG(os.stat(path).st_mode):
        raise Refused(f"{path.name} is no regular file")
    return Path(path).read_bytes()


def digest(data):
    # As long as a SHA-256, whose module takes longer to load than all the rest.
    return f"{zlib.crc32(data):08x}" * 8


def weights(number):
    data = digest(str(number).encode())[:32].encode()
    tensors = {name: {"dtype": "F32", "shape": [4], "data_offsets": [at, at + 16]} for name, at in (("a", 0), ("b", 16))}
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + data


def toml(path):
    import tomllib  # It takes longer than all the rest.

    return tomllib.loads(read(path).decode())


def settings(option):
    values = {"train": {"max_steps": 6}}
    if "--config" in option:
        values = toml(Path(option["--config"]))
        for key in ("dataset_name", "eval_dataset_name"):
            if name := values.get("data", {}).get(key, "").partition(":")[0].replace("embedded", ""):
                rows(name)
    for one in option["--set"]:
        key, equals, value = one.partition("=")
        if not equals or not re.fullmatch(r"recipe|[a-z_]+\.[a-z0-9_.-]+", key):
            raise Refused("no such key")
        if SIN == "panics-on-sizes" and value == str(2**62):
            panic()
        if re.fullmatch(r"-?\d+", value) and not 0 <= int(value) < 2**31:
            raise Refused("out of range")
    return values


def rows(name):
    for line in read(Path(name)).splitlines():
        json.loads(line)


def panic():
    print("thread 'main' (1) panicked at src/fake.rs:1:2:\nboom", file=sys.stderr)
    sys.exit(101)


def lock(run):
    """The run for this process alone."""
    holder = open(run / "lock", "a+")
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if SIN == "unnamed-holder":
            (MARKS / "refused").touch()
            raise Refused("somebody has it") from None
        for _ in range(1000):
            holder.seek(0)
            if text := holder.read():
                break
        raise Refused(f"process {text} has it") from None
    holder.truncate(0)
    holder.write(str(os.getpid()))
    holder.flush()
    while SIN == "unnamed-holder" and not (MARKS / "refused").exists() and time.monotonic() < 10 + BEGAN:
        time.sleep(0.001)
    return holder


def start(option):
    named = [one.split("=")[1].strip('"') for one in option["--set"] if "output_dir" in one]
    run = Path(option.get("--output-dir") or (named or ["out"])[0])
    config = settings(option)
    steps = config["train"]["max_steps"]
    if type(steps) is not int or steps < 1:
        raise Refused("no steps")
    if SIN == "replaces" and not run.name:
        Path("config.toml").write_text("replaced")
    if run.exists() and SIN == "starts-anyway":
        sys.exit(0)
    if run.exists() or not re.fullmatch(r"[\w]+", str(run)):
        raise Refused("it exists or has a name that makes no sense")
    for old in Path(".").glob(".partial-*"):
        if not Path(f"/proc/{old.name[9:]}").exists():
            shutil.rmtree(old, ignore_errors=True)
    fresh = run if SIN == "early-death" else Path(f".partial-{os.getpid()}")
    fresh.mkdir(exist_ok=True)
    if SIN == "early-death":
        # Longer than the whole run takes otherwise, on the busiest machine, so that a kill after a time comes now.
        time.sleep(5)
    text = f"[train]\nmax_steps = {steps}\nseed = 42\n"
    (fresh / "config.toml").write_text(text)
    (fresh / "provenance.json").write_text('[{"from_step": 0}]')
    for name in ("metrics.jsonl", "completions.jsonl"):
        (fresh / name).write_text("")
    (fresh / "checkpoints").mkdir(exist_ok=True)
    if fresh != run:
        try:
            fresh.rename(run)
        except OSError:
            shutil.rmtree(fresh)
            if SIN == "starts-anyway":
                sys.exit(0)
            raise Refused("another one was faster") from None
    return run


def train(option):
    run = Path(option["--resume"]) if "--resume" in option else start(option)
    if not (run / "config.toml").exists():
        raise Refused("no run is there")
    with lock(run):
        config = toml(run / "config.toml")
        step, state = newest(run)
        last = min(config["train"]["max_steps"], 9, int(option.get("--stop-after", 9)))
        if "--dump-batches" in option:
            Path(option["--dump-batches"]).mkdir(exist_ok=True)
        for at in range(step + 1, last + 1):
            state = int(digest(f"{state} {at} {config['train']['seed']}".encode())[:8], 16)
            if "--dump-batches" in option:
                (Path(option["--dump-batches"]) / f"batch-{at}").write_bytes(weights(state))
            append(run / "metrics.jsonl", {"step": at, "reward": state, "step_time": time.time()})
            append(run / "completions.jsonl", {"step": at, "text": str(state)})
            save(run, at, state)
            say(f"step {at}")


def append(path, line):
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")


def newest(run):
    """How far the run has come. What a dead process left goes."""
    checkpoints = run / "checkpoints"
    for old in checkpoints.glob(".*"):
        if SIN != "leaves-partials":
            shutil.rmtree(old)
    # One that was killed between its last checkpoint and this has no step left to do it in.
    prune(run)
    found = sorted(checkpoints.glob("step-*"))
    step, state, known = 0, 7, {}
    read(run / "provenance.json")
    if found:
        verify(found[-1])
        manifest = json.loads(read(found[-1] / "progress.json"))
        step, state, known = manifest["progress"]["step"], manifest["state"], json.loads(read(run / "seals.json"))
        if known.get("config.toml") != digest(read(run / "config.toml")) and SIN != "unverified":
            raise Refused("other settings")
    for name in RECORDS[:3]:
        try:
            data = read(run / name)
        except (OSError, Refused):
            data, (run / name).unlink(missing_ok=True) if not (run / name).is_dir() else (run / name).rmdir()
            (run / name).write_bytes(data := b"")
            print("warning: a record is missing", file=sys.stderr)
        if name != "provenance.json":
            data = b"".join(data.splitlines(keepends=True)[:step])
            # Not written anew: a kill in the middle would leave nothing.
            os.truncate(run / name, len(data))
        elif found and known.get(name) != digest(data) and SIN != "silent-records":
            print(f"warning: {name} is not as it was", file=sys.stderr)
    return step, state + 1 if SIN == "forgets" and found else state


def save(run, step, state):
    partial = run / f"checkpoints/.partial-{step}"
    partial.mkdir(exist_ok=SIN == "leaves-partials")
    if SIN == "leaves-partials":
        (run / f"checkpoints/.partial-x{step}").mkdir(exist_ok=True)
    for name in FILES:
        described = {"model": {"vocab": {"0": 0}}} if name == "tokenizer.json" else {"name": name}
        text = json.dumps(described).encode() if name.endswith("json") else weights(f"{name} {state}")
        (partial / name).write_bytes(text)
    hashes = {name: digest((partial / name).read_bytes()) for name in FILES}
    seals = {name: digest((run / name).read_bytes()) for name in RECORDS[2:]}
    (partial / "seals.json").write_text(json.dumps(seals))
    (partial / "seals.json").rename(run / "seals.json")
    manifest = {"progress": {"step": step}, "state": state, "hashes": hashes}
    (partial / "progress.json").write_text(json.dumps(manifest | {"self": digest(json.dumps(manifest).encode())}))
    partial.rename(run / f"checkpoints/step-{step}")
    prune(run)


def prune(run):
    for old in sorted((run / "checkpoints").glob("step-*"))[:-2]:
        gone = old.with_name(f".deleted-{old.name}")
        old.rename(gone)
        shutil.rmtree(gone)


def verify(checkpoint):
    data = read(checkpoint / "progress.json")
    if SIN == "unverified":
        return
    manifest = json.loads(data)
    own = manifest.pop("self")
    if own != digest(json.dumps(manifest).encode()) or json.dumps(manifest | {"self": own}).encode() != data:
        raise Refused("the manifest is damaged")
    for name, known in manifest["hashes"].items():
        if digest(read(checkpoint / name)) != known:
            raise Refused(f"{name} is damaged")


def evaluate(option):
    settings(option)
    if "--model" in option:
        look_at(Path(option["--model"]))
    if "--output" in option and SIN == "replaces-output":
        Path(option["--output"]).unlink()
    if "--output" in option:
        Path(option["--output"]).write_text("answers")
    say("accuracy 1")


def look_at(model):
    if (model / "progress.json").exists():
        verify(model)
    for file in sorted(model.iterdir()):
        data = read(file)
        if file.suffix == ".json":
            json.loads(data)
        elif SIN not in ("unverified", "reads-anything") and not json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]]):
            raise Refused("an empty header")
    for names in (("model.safetensors", "model.safetensors.index.json"), ("config.json",), ("tokenizer.json",)):
        if not any((model / name).exists() for name in names):
            raise Refused(f"no {names[0]}")


def plugins(option, rest):
    place, _, pin = option.get("--plugin", "").partition("@sha256:")
    if not place:
        return say("reward\n  exact_match")
    path = Path(place) if "/" in place else Path(sys.argv[0]).parent / place
    data = read(path)
    if pin and digest(data) != pin:
        raise Refused("not the pinned file")
    if SIN == "second-look":
        first = data
        while data in (first, b"") and time.monotonic() < 10 + BEGAN:
            data = path.read_bytes() if path.exists() else first
    name = data.decode().strip()
    if name not in ("capo", "drcapo"):
        raise Refused("no library")
    if "--hash" in rest:
        return say(f"{path}@sha256:{digest(first if SIN == 'second-look' else data)}  {name} 0.1.0")
    margin = " " * 27
    return say(
        f"mask\n  {name}.curvature   drops tokens\n{margin}keys: a, b, c, hessian_interval\n{margin}from {name} 0.1.0, `x`"
    )


def say(text):
    SAID.append(text)


def main():
    if SIN in SINS and (sys.argv[1], "--resume" in sys.argv) != ("train", True):
        SINS[SIN]()
    option, rest = options(sys.argv[1:])
    command = rest.pop(0) if rest else "help"
    if command == "train":
        train(option)
    elif command == "eval":
        evaluate(option)
    elif command == "plugins":
        plugins(option, rest)
    elif command == "check" and rest and rest[-1].endswith(".so"):
        plugins({"--plugin": rest[-1]}, [])
    elif command in ("sft", "check", "replay"):
        settings(option)
        if "--rows" in option:
            rows(option["--rows"])
        for batch in rest if command == "replay" else ():
            data = read(Path(batch))
            json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    say("done")


def memory():
    # Written to, so that it is there.
    return len(bytearray(b"x") * 100_000_000)


def leave():
    Path(".tmpAbCdEf").touch()
    sys.exit("left")


SINS = {
    "panics": panic,
    "hangs": lambda: time.sleep(600),
    "aborts": os.abort,
    "exits-7": lambda: sys.exit(7),
    "silent": lambda: sys.exit(2),
    "escapes": lambda: print("error: \x1b[31m", file=sys.stderr),
    "memory": memory,
    "leaves": leave,
    "writes": lambda: (Path("new").touch(), print("error: bad", file=sys.stderr), sys.exit(2)),
}

BEGAN = time.monotonic()
try:
    main()
    text = ("\n".join(SAID) + "\n").encode()
    while text:
        text = text[os.write(1, text) :]
except (OSError, BrokenPipeError) as error:
    print(f"error: {ascii(str(error))}", file=sys.stderr)
    sys.exit(0 if SIN == "full" else 1)
except Exception as error:
    print(f"error: {ascii(str(error))[:300]}", file=sys.stderr)
    sys.exit(2)
