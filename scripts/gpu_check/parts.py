"""The parts of a run on a GPU. Each takes the session and a list, to which it adds `(label, value)` as it goes."""

import re
import shutil
import statistics
import sys
from pathlib import Path

from . import reading, settings
from .session import Missing, complaint, tail
from .settings import DEVICE, Failure


def device(session, rows):
    """Which GPU this is."""
    query = "--query-gpu=name,driver_version,memory.total,compute_cap"
    smi = shutil.which("nvidia-smi")
    if not smi:
        raise Missing("`nvidia-smi` (it comes with the driver)")
    line = session.call(smi, query, "--format=csv,noheader").splitlines()[0]
    rows += zip(("GPU", "driver", "memory", "compute capability"), (word.strip() for word in line.split(",")))
    versions = "import torch, transformers; print(torch.__version__, torch.version.cuda, transformers.__version__)"
    code, said = session.attempt(sys.executable, "-c", versions)
    if code == 0:
        rows += zip(("torch", "CUDA of torch", "transformers"), said.split()[-3:])


def tests(session, rows):
    """Every test that runs on a GPU."""
    problems, ran = [], 0
    for test in session.manifest["tests"]:
        path = session.file(test["path"])
        code, said = session.attempt(path, *settings.TEST_FILTERS, **settings.TEST_ENVIRONMENT)
        passed, failed = reading.tests(said)
        ran += passed + failed
        if passed + failed > 0:
            rows.append((f"{test['package']}, {path.name.rsplit('-', 1)[0]}", f"{passed} passed, {failed} failed"))
        if code != 0:
            names = ", ".join(reading.failed_tests(said)) or tail(said)
            problems.append(f"`{path.name}` ended with {code}: {names}")
    if problems:
        raise Failure("\n".join(problems))
    if ran == 0:
        raise Missing(f"no test has a name with {' or '.join(settings.TEST_FILTERS)}")


def replay(session, rows):
    """The reference cases through the plugin on the GPU, compared with what is expected."""
    host, plugin = session.executable("host"), session.executable("libcapo.so")
    cases, worst = sorted(session.file("tests/data/replay").iterdir()), 0.0
    problems = []
    for case in cases:
        out = session.work / "replayed" / case.name
        arguments = ("--device", DEVICE, "--plugin", plugin, "--config", case / "mask.toml", "--out", out)
        code, said = session.attempt(host, "replay", *arguments, *sorted(case.glob("batch-*")))
        if code != 0:
            problems.append(f"`{case.name}`: host ended with {code}: {complaint(said)}")
            continue
        try:
            deviation, differing = compare(case, out)
        except (Failure, OSError, KeyError, ValueError) as error:
            problems.append(f"`{case.name}`: the results cannot be compared: {error}")
            continue
        worst = max(worst, deviation)
        if differing or deviation > settings.TOLERANCE:
            problems.append(f"`{case.name}`: {differing} decisions differ, shifts by {deviation:.1e} of the largest")
    rows.append(("cases as expected", f"{len(cases) - len(problems)} of {len(cases)}"))
    if len(problems) < len(cases):
        rows.append(("worst deviation of a shift", f"{worst:.1e} of the batch's largest"))
    if problems:
        raise Failure("\n".join(problems))


def compare(case, out):
    """The worst deviation of a shift as a share of the batch's largest, infinite for NaN, and how many decisions differ."""
    worst, differing, paths = 0.0, 0, sorted(case.glob("expected-*"))
    if not paths:
        raise Failure("nothing is expected")
    for path in paths:
        expected = reading.tensors(path)
        found = reading.tensors(out / path.name.replace("expected", "batch"))
        differing += sum(a != b for a, b in zip(expected["keep"], found["keep"], strict=True))
        for name in ("m_f", "m_h"):
            largest = max(map(abs, expected[name])) or 1.0
            pairs = zip(expected[name], found[f"capo.curvature/{name}"], strict=True)
            # A NaN would slip through `max`.
            worst = max(worst, *(abs(a - b) / largest if b == b else float("inf") for a, b in pairs))
    return worst, differing


def sanitizer(session, rows):
    """A few tests under compute-sanitizer."""
    tool = find_sanitizer()
    package, *names = settings.SANITIZED
    paths = [session.file(test["path"]) for test in session.manifest["tests"] if test["package"] == package]
    problems = []
    for check in settings.SANITIZERS:
        for path in paths:
            arguments = ("--tool", check, "--error-exitcode", "99", path, *names)
            code, said = session.attempt(tool, *arguments, **settings.TEST_ENVIRONMENT)
            passed, failed = reading.tests(said)
            summary = [line.strip("= ") for line in said.splitlines() if "SUMMARY" in line]
            rows.append((f"{check}, {path.name.rsplit('-', 1)[0]}", f"{passed} tests; {'; '.join(summary) or 'no summary'}"))
            if code != 0:
                problems.append(f"{check} on `{path.name}` ended with {code}, {failed} tests failed: {tail(said, 6)}")
    if problems:
        raise Failure("\n".join(problems))


def find_sanitizer():
    places = [folder for at in sys.path if at for folder in Path(at).glob("nvidia/*/bin")]
    places += [*Path("/usr/local").glob("cuda*/bin"), *Path("/opt/nvidia").glob("*/compute-sanitizer")]
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=":".join(map(str, places)) or "/")
    if not found:
        raise Missing("`compute-sanitizer` (it comes with CUDA's toolkit)")
    return found


def bench(session, rows):
    """The curvature model on the GPU, with what the machine can do at most."""
    said = session.call(session.file(session.manifest["bench"]), "--bench", *settings.BENCH_FILTERS)
    rows += reading.bench(said)
    if not rows:
        raise Missing(f"no benchmark has a name with `{settings.BENCH_FILTERS[0]}`")


def peers(session, rows):
    """The same arithmetic in plain torch."""
    program, problems = session.file("benches/peers/token_adam_torch.py"), []
    shape = [word for name, value in settings.PEER_SHAPE.items() for word in (f"--{name}", value)]
    for variant in settings.PEER_VARIANTS:
        code, said = session.python(program, "--variant", variant, *settings.PEER_PLACE, *shape)
        if code == 0:
            rows += [(f"torch {variant}, {name}", value) for name, value in reading.peer(said)]
        else:
            problems.append(f"torch {variant} ended with {code}: {tail(said, 1)}")
    if problems:
        raise Failure("\n".join(problems))


def train(session, rows):
    """Training on the GPU, with the mask."""
    if not session.manifest["cuda_host"]:
        raise Missing(session.manifest.get("cuda_host_missing", "no `host` with CUDA in the archive"))
    host, run = session.file(session.manifest["cuda_host"]), session.work / "trained"
    words = [word for key in (*settings.TRAIN_SETTINGS, settings.TRAIN_REWARD, f"train.output_dir={run}") for word in ("--set", key)]
    words += [word for name in settings.TRAIN_PLUGINS for word in ("--plugin", session.executable(name))]
    session.call(host, "train", "--device", DEVICE, "--config", session.file(settings.TRAIN_CONFIG), *words)
    lines = reading.metrics(run / "metrics.jsonl")
    if not any(line["capo.curvature/rows"] for line in lines):
        raise Failure("no token had an advantage, so that the mask had nothing to do")
    session.results["train"] = measured = speeds(lines, completions(run))
    rows += [("completions per step", measured["completions"])]
    rows += [("tokens per completion", f"{measured['new_tokens']:.1f}")]
    rows += [("generation, completion tokens/s", f"{measured['generation']:.0f}")]
    rows += [("training (score, backward, AdamW), tokens/s", f"{measured['training']:.0f}")]
    rows += [("backward and AdamW alone, tokens/s", f"{measured['backward']:.0f}")]
    rows += [("share of the step in the mask", f"{100 * measured['mask']:.1f}%")]


def completions(run):
    """Completions of an optimizer step."""
    keys = dict(re.findall(r"^(\w+) = (\d+)$", (run / "config.toml").read_text(), re.MULTILINE))
    return int(keys["per_device_train_batch_size"]) * int(keys.get("gradient_accumulation_steps", 1))


def speeds(lines, completions):
    """Medians over the steps after the first, which warms up."""
    if len(lines) < 3:
        raise Failure(f"the run has {len(lines)} steps, at least 3 are needed")
    found = [speed(*pair, completions) for pair in zip(lines, lines[1:])]
    return {name: statistics.median(step[name] for step in found) for name in found[0]} | {"completions": completions}


def speed(before, line, completions):
    def seconds(*stages):
        return sum(line.get(f"timing_s/{stage}", 0.0) for stage in stages)

    tokens = line["num_tokens"] - before["num_tokens"]
    return {
        "new_tokens": line["completions/mean_length"],
        "prompt_tokens": tokens / completions - line["completions/mean_length"],
        "generation": completions * line["completions/mean_length"] / seconds("rollout"),
        "training": tokens / seconds("score", "backward", "step"),
        "backward": tokens / seconds("backward", "step"),
        "mask": seconds("mask") / line["step_time"],
    }


def peer_training(session, rows):
    """Training in torch and transformers, on the model and the sizes of the part before."""
    program, measured = session.file("benches/peers/train_torch.py"), session.results.get("train")
    words = []
    if measured:
        checkpoints = sorted((session.work / "trained/checkpoints").glob("*/config.json"))
        words += ["--model", checkpoints[-1].parent] if checkpoints else []
        for name in ("completions", "prompt_tokens", "new_tokens"):
            words += [f"--{name.replace('_', '-')}", max(1, round(measured[name]))]
    code, said = session.python(program, *settings.PEER_PLACE, *words)
    if code != 0:
        raise Failure(f"the program ended with {code}: {tail(said, 1)}")
    rows.append(("torch, model and sizes", said.splitlines()[0]))
    for name, rate in reading.rates(said).items():
        rows.append((f"torch, {name}, tokens/s", f"{rate:.0f}{beside(measured, name, rate)}"))


def beside(measured, name, rate):
    """How `host` does at the same; its training scores the completions with a pass of its own, which the torch program does not have."""
    if not measured:
        return ""
    without = f", {measured['backward'] / rate:.2f} times without scoring" if name == "training" else ""
    return f", host {measured[name] / rate:.2f} times{without}"


PARTS = {
    "device": device,
    "tests": tests,
    "replay": replay,
    "sanitizer": sanitizer,
    "bench": bench,
    "peers": peers,
    "train": train,
    "peer training": peer_training,
}
