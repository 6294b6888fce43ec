"""Helpers of the tests: the repository's files, recorded cases, the built ``host``, arrays of numpy and of torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import capo_rl
import numpy as np
import pytest
from capo_rl.batch import flat, nested

ROOT = Path(__file__).parents[2]
REPLAY = ROOT / "tests/data/replay"
CASES = sorted(path.name for path in REPLAY.iterdir())
TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
PLUGINS = Path(capo_rl.__file__).parent / "plugins"
#: Keys of two weights `masks.tis`: the first gives 0 to some tokens, and the second divides by its mean over the remaining tokens.
WEIGHTS = [{"rollout_is_threshold": 1.05, "rollout_is_threshold_lower": 0.95, "mode": "mask"}, {"rollout_is_batch_normalize": True}]
#: A plugin whose components break rules. Its weight `sin = "huge"` is 1e30 for every token.
MISBEHAVE = TARGET / "debug/libmisbehave.so"
#: The refusal of a product of two such weights, up to the completion that is named.
NOT_FINITE = "multiply to more than 3.4028235e38 (lower one of them)"
#: The governor in a run of ``host`` that the same component follows in another trainer, for more steps than the first six, which tell a rate.
GOVERNED = ["--plugin", PLUGINS / "libgovernor.so", "--set", 'step_control=[{use="governor.kl",fraction=1.0}]']
GOVERNED_STEPS = 14
#: What it reports, and how far two trainers may differ in it, relative to the larger one: their gradients have other rounding errors.
GOVERNED_NUMBERS = {"kl": 5e-4, "scale": 5e-4, "slope": 1e-2, "found_rate": 5e-4}
DTYPES = {"F32": np.float32, "U8": np.uint8, "U32": np.uint32, "I64": np.int64, "F64": np.float64}


def batches(case: str) -> list[Path]:
    """The four batch files of a case."""
    return sorted((REPLAY / case).glob("batch-*.safetensors"))


def header(path: Path) -> tuple[dict, bytes]:
    """The header of a safetensors file, and the bytes of its tensors."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:start]), data[start:]


def metadata(path: Path) -> dict[str, str]:
    """The metadata of a safetensors file."""
    return header(path)[0]["__metadata__"]


def tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file."""
    said, data = header(path)
    said.pop("__metadata__", None)
    values = {name: data[slice(*tensor["data_offsets"])] for name, tensor in said.items()}
    return {name: np.frombuffer(values[name], DTYPES[one["dtype"]]).reshape(one["shape"]) for name, one in said.items()}


def table(case: str) -> dict:
    """The keys of a case's one mask: lines of ``key = value`` whose values are JSON too."""
    lines = [line.split(" = ") for line in (REPLAY / case / "mask.toml").read_text().splitlines() if " = " in line]
    return {key: json.loads(value) for key, value in lines}


def replayed_weights(host: Path, folder: Path, file: Path, each: list[dict]) -> tuple[subprocess.CompletedProcess, dict[str, np.ndarray]]:
    """Runs ``host replay`` on a batch file without masks and with weights `masks.tis` of these keys. Returns the process and its results."""
    tables = [{"use": "masks.tis", **keys} for keys in each]
    config = folder / "weights.toml"
    config.write_text("".join("[[weight]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items()) for table in tables))
    arguments = ["--plugin", PLUGINS / "libmasks.so", "--config", config, "--out", folder / "out", file]
    ended = subprocess.run([host, "replay", *arguments], capture_output=True, text=True)
    return ended, tensors(folder / "out" / file.name) if ended.returncode == 0 else {}


def mask_of(case: str) -> capo_rl.Mask:
    """The mask of a case, with the settings of its ``mask.toml``."""
    keys = table(case)
    return capo_rl.Mask(keys.pop("use"), **keys)


def as_numpy(batch: capo_rl.Batch) -> capo_rl.Batch:
    """The batch with numpy arrays."""
    return batch.replace()


def as_torch(batch: capo_rl.Batch) -> capo_rl.Batch:
    """The batch with torch tensors: ids are int64, masks are booleans."""
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    changes = {}
    for name, value in flat(batch).items():
        if isinstance(value, np.ndarray):
            tensor = torch.from_numpy(value.astype(np.int64)) if value.dtype == np.uint32 else torch.from_numpy(value)
            changes[name] = tensor.bool() if value.dtype == np.uint8 else tensor
    return changed(batch, **changes)


def changed(batch: capo_rl.Batch, **fields) -> capo_rl.Batch:
    """The batch with these fields replaced, also in its nested parts."""
    return nested(flat(batch) | fields)


MAKERS = {"numpy": as_numpy, "torch": as_torch}


@pytest.fixture(params=list(MAKERS))
def made_of(request):
    """A function that rebuilds a recorded batch with the arrays of one library."""
    return MAKERS[request.param]


@pytest.fixture(scope="session")
def host() -> Path:
    """The ``host`` that the repository's tests have built."""
    path = TARGET / "debug/host"
    if not path.exists():
        pytest.skip(f"there is no `{path}` (cargo build -p host)")
    return path


def recorded_run(host: Path, folder: Path, name: str, *words, **settings) -> tuple[Path, Path, list[dict]]:
    """A run of ``host`` with the embedded model that records its batches. Returns its folder, that of the batches, and the lines of its metrics."""
    run, batches = folder / f"host-{name}", folder / f"batches-{name}"
    settings = {"max_steps": 6, "learning_rate": 1e-3, "lr_scheduler_type": "constant", "warmup_ratio": 0} | settings
    settings = {"save_steps": settings["max_steps"]} | settings
    changed = [f"train.{name}={value}" for name, value in settings.items()] + ["rollout.temperature=1", "logging.logging_steps=1"]
    changed = [word for setting in changed for word in ("--set", setting)]
    subprocess.run([host, "train", *words, *changed, "--output-dir", run, "--dump-batches", batches], check=True, capture_output=True)
    return run, batches, [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def third_party(host: Path, tmp_path_factory) -> Path:
    """The library of a crate that ``host new-plugin`` made, with an additional mask that waits for a file."""
    if shutil.which("cargo") is None:
        pytest.skip("there is no cargo to build a plugin with")
    folder = tmp_path_factory.mktemp("third-party")
    subprocess.run([host, "new-plugin", "third", "--dir", folder], check=True, stdout=subprocess.DEVNULL)
    crate = folder / "third"
    # The versions that this repository is tested with, so that cargo fetches nothing.
    shutil.copy(ROOT / "Cargo.lock", crate / "Cargo.lock")
    waits = (Path(__file__).parent / "waits.rs").read_text()
    source = crate / "src/lib.rs"
    source.write_text(source.read_text().replace("#[cfg(test)]", waits + "\n#[cfg(test)]"))
    environment = {**os.environ, "CARGO_TARGET_DIR": str(TARGET / "examples")}
    subprocess.run(["cargo", "build", "--quiet", "--offline"], cwd=crate, env=environment, check=True)
    return TARGET / "examples/debug/libthird.so"


def small(**changes) -> capo_rl.Batch:
    """Two completions of three tokens, of which the second has one token of padding, with plain gradient steps."""
    arrays = {
        "completion_ids": np.array([[1, 2, 3], [3, 2, 0]], np.uint32),
        "completion_mask": np.array([[1, 1, 1], [1, 1, 0]], np.uint8),
        "logps": np.array([[-0.5, -1.0, -8.0], [-2.0, -9.0, 0.0]], np.float32),
        "advantages": np.array([[1, 1, 1], [-1, -1, 0]], np.float32),
        "rewards": np.array([1, 0], np.float32),
        "group_size": 2,
        "optimizer": {"kind": "sgd", "learning_rate": 0.1},
    }
    return nested({**arrays, **changes})


def layer(**changes) -> dict:
    """The last layer of the batch `plain`: width 4, and 2 of 5 logits."""
    random = np.random.default_rng(0)
    arrays = {
        "hidden": random.normal(size=(2, 3, 4)).astype(np.float32),
        "topk_ids": np.array([[[1, 2]] * 3] * 2, np.uint32),
        "topk_logits": np.array([[[2.0, 1.0]] * 3] * 2, np.float32),
        "logsumexp": np.full((2, 3), 2.5, np.float32),
        "action_logits": np.full((2, 3), 1.0, np.float32),
        "vocab_size": 5,
    }
    return {**arrays, **changes}
