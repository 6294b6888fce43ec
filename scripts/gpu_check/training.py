"""The parts that train: `host` on the GPU with a mask, without a mask, twice, and resumed; and torch on the same shape."""

import json
import re
import shutil
import statistics

from . import reading, settings
from .session import Missing, tail
from .settings import DEVICE, Failure


def train(session, rows, name):
    """Trains one model with one seed several times, and reports each run."""
    shape, host = session.sizes.shapes[name], session.cuda_host()
    arguments = command(session, shape)
    rows += reading.memory(session.call(host, *arguments, "--dry-run", cwd=session.root))
    mask = ("--plugin", session.executable(settings.TRAIN_MASK))
    whole = session.work / f"{name}-whole"
    session.call(host, *arguments, *mask, "--output-dir", whole, cwd=session.root)
    lines = reading.metrics(whole / "metrics.jsonl")
    if not any(line["capo.curvature/rows"] for line in lines):
        raise Failure("no token had an advantage, so that the mask had nothing to do")
    session.results[name] = measured = speeds(lines, completions(whole))
    rows += [("completions per step", measured["completions"])]
    rows += [("tokens per completion", f"{measured['new_tokens']:.1f}")]
    rows += [("generation, completion tokens/s", f"{measured['generation']:.0f}")]
    rows += [("score (forward), tokens/s", f"{measured['score']:.0f}")]
    rows += [("training (score, backward, AdamW), tokens/s", f"{measured['training']:.0f}")]
    rows += [("backward and AdamW alone, tokens/s", f"{measured['backward']:.0f}")]
    rows += [("seconds a step", f"{measured['step']:.3f}")]
    rows += [("share of the step in the mask", f"{100 * measured['mask']:.1f}%")]
    if shape.repeated:
        compare(session, rows, f"{name}-halves", [host, *arguments, *mask], (whole, lines))
    shutil.rmtree(whole)


def compare(session, rows, name, command, run):
    """Repeats the run, stops it half way and resumes it. The result must equal that of `run`, the folder and the metrics of the whole run."""
    (whole, lines), halves, half = run, session.work / name, settings.TRAIN_STEPS // 2
    session.call(*command, "--output-dir", halves, "--stop-after", half, cwd=session.root)
    session.call(command[0], "train", "--resume", halves, cwd=session.root)
    again = reading.metrics(halves / "metrics.jsonl")
    apart = reading.first_difference(lines[:half], again[:half])
    rows.append((f"two runs of one seed, steps 1 to {half}", apart or "every number is the same"))
    later = reading.first_difference(lines[half:], again[half:])
    states = [state(folder) for folder in (whole, halves)]
    bits = "the same bits" if states[0] == states[1] else "other weights or moments"
    rows.append((f"stopped after step {half} and resumed", f"{later or 'every number is the same'}; at the end {bits}"))
    shutil.rmtree(halves)
    if apart or later or states[0] != states[1]:
        raise Failure("runs of one seed differ (see the rows above)")


def command(session, shape):
    """Runs `host train` on a shape, in the archive's folder, to which the relative paths of its config refer."""
    model = model_folder(session, shape)
    reward, library = settings.TRAIN_REWARD
    pairs = [*shape.settings(), f"model.model_name_or_path={model}", f'reward=[{{use="{reward}"}}]']
    pairs += [f"train.max_steps={settings.TRAIN_STEPS}", "train.save_steps=0", "eval.num_prompts=0"]
    words = [word for pair in pairs for word in ("--set", pair)]
    config = ("--config", session.file(settings.TRAIN_CONFIG))
    return ["train", "--device", DEVICE, *config, *words, "--plugin", session.executable(library)]


def model_folder(session, shape):
    """The folder of a model without weights, as an argument of `host`."""
    own = session.file(settings.TRAIN_MODEL)
    if not shape.model:
        return settings.TRAIN_MODEL
    folder = session.work / f"model-{shape.model['num_hidden_layers']}-{shape.model['hidden_size']}"
    if not folder.exists():
        shutil.copytree(own, folder)
        known = json.loads((own / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(known | shape.model))
    return folder


def state(run):
    """Hashes of the files in a run's last checkpoint."""
    [*_, last] = sorted((run / "checkpoints").glob("*/capo-manifest.json"))
    files = json.loads(last.read_text())["files"]
    return {name: files.get(name) for name in settings.TRAIN_STATE}


def completions(run):
    """Completions per optimizer step."""
    keys = dict(re.findall(r"^(\w+) = (\d+)$", (run / "config.toml").read_text(), re.MULTILINE))
    return int(keys["per_device_train_batch_size"]) * int(keys.get("gradient_accumulation_steps", 1))


def speeds(lines, completions):
    """Medians over all steps but the first, which is a warm-up."""
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
        "score": tokens / seconds("score"),
        "training": tokens / seconds("score", "backward", "step"),
        "backward": tokens / seconds("backward", "step"),
        "mask": seconds("mask") / line["step_time"],
        "step": line["step_time"],
    }


def peer_training(session, rows, name):
    """Times training in torch and transformers with the model's shape, and with the sizes of the part that trained it, or its planned sizes."""
    program, shape, measured = (
        session.file("study/peers/train_torch.py"),
        session.sizes.shapes[name],
        session.results.get(name),
    )
    folder = session.root / model_folder(session, shape)
    sizes = measured or {"completions": shape.completions, "prompt_tokens": 8, "new_tokens": shape.new_tokens}
    words = ["--model", folder]
    for size in ("completions", "prompt_tokens", "new_tokens"):
        words += [f"--{size.replace('_', '-')}", max(1, round(sizes[size]))]
    code, said = session.python(program, *session.sizes.peer_place, *words)
    if code != 0:
        raise Failure(f"the program ended with {code}: {tail(said, 1)}")
    rows.append(("torch, model and sizes", said.splitlines()[0]))
    for what, rate in reading.rates(said).items():
        rows.append((f"torch, {what}, tokens/s", f"{rate:.0f}{beside(measured, what, rate)}"))


def beside(measured, name, rate):
    """The speed of `host` on the same work. Its training also has a pass that scores the completions, which the torch program lacks."""
    if not measured:
        return ""
    without = f", {measured['backward'] / rate:.2f} times without scoring" if name == "training" else ""
    return f", host {measured[name] / rate:.2f} times{without}"


def watched(session):
    """The command line of `host train` for compute-sanitizer, on a shape that is small enough for it."""
    try:
        host = session.cuda_host()
    except Missing:
        return []
    mask = ("--plugin", session.executable(settings.TRAIN_MASK), "--set", "train.max_steps=2")
    return [host, *command(session, session.sizes.watched), *mask]
