"""The parts of a run on a GPU. Each part gets the session and a list, to which it adds `(label, value)` pairs."""

import functools
import re
import shutil
import sys
from pathlib import Path

from . import reading, settings, training
from .session import Late, Missing, complaint, tail
from .settings import DEVICE, Failure


def device(session, rows):
    """Describes the GPU."""
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
    """Runs every test that needs a GPU."""
    problems, ran = [], 0
    for test in session.manifest["tests"]:
        path = session.file(test["path"])
        # The tests of the whole program, which are ignored elsewhere, need a `host` with CUDA, which the archive has.
        ignored = ["--include-ignored"] if test["package"] == "tests" and session.manifest["cuda_host"] else []
        try:
            code, said = session.attempt(path, *session.sizes.tests, *ignored, **settings.TEST_ENVIRONMENT)
            if code != 0:
                names = ", ".join(reading.failed_tests(said)) or tail(said)
                problems.append(f"`{path.name}` ended with {code}: {names}")
        except Late as late:
            said = late.said
            problems.append(str(late))
        passed, failed = reading.tests(said)
        ran += passed + failed
        if passed + failed > 0:
            rows.append((f"{test['package']}, {path.name.rsplit('-', 1)[0]}", f"{passed} passed, {failed} failed"))
    if problems:
        raise Failure("\n".join(problems))
    if ran == 0:
        raise Missing(f"no test has a name with {' or '.join(session.sizes.tests)}")


def replay(session, rows):
    """Replays the reference cases through the plugin on the GPU, and compares the results with the expected ones."""
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
    """The largest deviation of a shift, relative to the batch's largest shift and infinite for NaN, and the number of different decisions."""
    worst, differing, paths = 0.0, 0, sorted(case.glob("expected-*"))
    if not paths:
        raise Failure("nothing is expected")
    for path in paths:
        expected = reading.tensors(path)
        found = reading.tensors(out / path.name.replace("expected", "batch"))
        # The reference data use an older name for `token_mask`.
        differing += sum(a != b for a, b in zip(expected["keep"], found["token_mask"], strict=True))
        for name in ("m_f", "m_h"):
            largest = max(map(abs, expected[name])) or 1.0
            pairs = zip(expected[name], found[f"capo.curvature/{name}"], strict=True)
            # `max` would ignore a NaN.
            worst = max(worst, *(abs(a - b) / largest if b == b else float("inf") for a, b in pairs))
    return worst, differing


def sanitizer(session, rows):
    """Runs the trainer and a few tests under compute-sanitizer."""
    tool = find_sanitizer()
    package, *names = settings.SANITIZED
    tests = [session.file(test["path"]) for test in session.manifest["tests"] if test["package"] == package]
    trainer, problems = training.watched(session), []
    # Findings of one checker in the trainer come before those of the next checker.
    for check in settings.SANITIZERS:
        folder = session.work / f"watched-{check}"
        programs = [("host train", [*trainer, "--output-dir", folder])] if trainer else []
        programs += [(path.name.rsplit("-", 1)[0], [path, *names]) for path in tests]
        for name, words in programs:
            options = ("--tool", check, "--error-exitcode", "99")
            code, said = session.attempt(tool, *options, *words, cwd=session.root, **settings.TEST_ENVIRONMENT)
            summary = [line.strip("= ") for line in said.splitlines() if "SUMMARY" in line]
            passed, failed = reading.tests(said)
            if code == 0 and words[0] in tests and passed + failed == 0:
                # The tests are in another executable of the package.
                continue
            ran = f"{passed} tests; " if passed + failed else ""
            rows.append((f"{check}, {name}", f"{ran}{'; '.join(summary) or 'no summary'}"))
            if code != 0:
                problems.append(f"{check} on `{name}` ended with {code}: {tail(said, 6)}")
    if problems:
        raise Failure("\n".join(problems))
    if not trainer:
        raise Missing("no `host` with CUDA in the archive, so that the trainer was not watched")


def find_sanitizer():
    places = [folder for at in sys.path if at for folder in Path(at).glob("nvidia/*/bin")]
    places += [*Path("/usr/local").glob("cuda*/bin"), *Path("/opt/nvidia").glob("*/compute-sanitizer")]
    found = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=":".join(map(str, places)) or "/"
    )
    if not found:
        raise Missing("`compute-sanitizer` (it comes with CUDA's toolkit)")
    return found


def bench(session, rows):
    """Times the curvature model on the GPU, and the least times that the machine allows."""
    said = session.call(
        session.file(session.manifest["bench"]), "--bench", "cuda", CAPO_BENCH_SHAPE=session.sizes.bench
    )
    rows += reading.bench(said)
    if not rows:
        raise Missing("no benchmark has a name with `cuda`")


def peers(session, rows):
    """Times the same arithmetic in plain torch."""
    program, problems = session.file("study/peers/token_adam_torch.py"), []
    shape = [word for name, value in session.sizes.peer.items() for word in (f"--{name}", value)]
    for variant in session.sizes.peer_variants:
        code, said = session.python(program, "--variant", variant, *session.sizes.peer_place, *shape)
        if code == 0:
            rows += [(f"torch {variant}, {name}", value) for name, value in reading.peer(said)]
        else:
            problems.append(f"torch {variant} ended with {code}: {tail(said, 1)}")
    if problems:
        raise Failure("\n".join(problems))


def package(session, rows):
    """Runs the reference cases through the Python package with arrays on the GPU, which are torch's if torch sees the GPU."""
    program, cases = session.file("python/tests/on_device.py"), sorted(session.file("tests/data/replay").iterdir())
    session.file(f"{settings.PACKAGE}/{settings.NATIVE}")
    code, said = session.python(program, *cases)
    if code != 0:
        raise Failure(f"the program ended with {code}: {tail(said)}")
    found = re.search(r"^the same on the device: (\d+), as arrays of (.+)$", said, re.MULTILINE)
    rows.append((f"cases the same with arrays of {found[2]}", f"{found[1]} of {len(cases)}"))


def trl(session, rows):
    """Times the mask in a step of TRL, ahead and in flight, and the same arithmetic in plain torch."""
    program = session.file("python/benches/trl_step.py")
    session.file(f"{settings.PACKAGE}/{settings.NATIVE}")
    try:
        code, said = session.python(program, *session.sizes.trl)
    except Late as late:
        rows += reading.columns(late.said)
        raise
    rows += reading.columns(said)
    if code != 0:
        raise Failure(f"the program ended with {code}: {tail(said)}")


PARTS = {"device": device, "replay": replay, "capo_rl": package, "tests": tests}
PARTS |= {"bench": bench, "peers": peers, "TRL": trl, "sanitizer": sanitizer}
for shape in settings.WHOLE.shapes:
    PARTS[f"train {shape}"] = functools.partial(training.train, name=shape)
    PARTS[f"peer training {shape}"] = functools.partial(training.peer_training, name=shape)
