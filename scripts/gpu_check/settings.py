"""The parts that `gpu-check` runs, and their time limits."""

from dataclasses import dataclass, field
from pathlib import Path

# The workspace, or the unpacked archive, which is laid out like one.
ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "target/gpu-check.tar.xz"
ARCHIVE_LIMIT = 60_000_000
# The executables share most of their code. With a dictionary of this size, xz finds the repetitions.
WINDOW = 512 << 20
MANIFEST = "manifest.json"

DEVICE = "cuda:0"
# Time limit of each part, seconds, with the most important parts first, so that a short lease runs these. The total limits all of them.
LIMITS = {
    "device": 15,
    "train 154M": 130,
    "replay": 30,
    "capo_rl": 60,
    "tests": 260,
    "train 494M": 90,
    "peer training 154M": 60,
    "peer training 494M": 120,
    "bench": 50,
    "peers": 80,
    "TRL": 150,
    "sanitizer": 120,
}
TOTAL = 800

# By folder, the packages whose test executables are packed, the tests of each that need a GPU, and the variables that tell
# these tests not to skip or emulate.
TEST_PACKAGES = ("capo-core", "host/model", "host/ops", "plugins/curvature", "tests")
TEST_FILTERS = ("cuda",)
TEST_ENVIRONMENT = {"CAPO_TEST_DEVICE": "cuda"}
# Package and filters of the tests that run under compute-sanitizer, which makes them a hundred times slower.
SANITIZED = ("capo-core", "cuda::suite::replay", "cuda::agreement::shapes")
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")

# Data and programs of the workspace that are packed unchanged.
TREES = (
    "tests/data",
    "study/peers",
    "python/capo_rl",
    "python/tests/on_device.py",
    "python/benches/trl_step.py",
    "python/benches/in_torch.py",
    "configs",
    "capo-core/kernels",
    "host/ops/kernels",
    "scripts/gpu-check",
    "scripts/gpu_check",
)

# Largest deviation of a replayed shift, relative to the batch's largest shift, as in tests/tests/suite/replay.rs.
TOLERANCE = 1e-5

TRAIN_CONFIG = "configs/gpu/default.toml"
TRAIN_MODEL = "configs/gpu/model"
TRAIN_STEPS = 6
# The Python package in the archive, its native library, and the plugin that its parts use.
PACKAGE = "python/capo_rl"
NATIVE = "_native.abi3.so"
# With random weights no answer is correct, and without different rewards the mask would have nothing to do.
TRAIN_REWARD = ("rewarding.parity", "librewarding.so")
TRAIN_MASK = "libcapo.so"
# Files of a checkpoint with a run's numbers.
TRAIN_STATE = ("model.safetensors", "optimizer.safetensors")


@dataclass
class Shape:
    """A model with random weights, which is made on the machine that trains it, and the sizes of its batches."""

    # Keys of its `config.json` that differ from those of `TRAIN_MODEL`; empty if that folder is the model.
    model: dict = field(default_factory=dict)
    completions: int = 64
    new_tokens: int = 256
    # A group whose answers all have equal rewards has no gradient.
    generations: int = 8
    dtype: str = "bf16"
    # True to compare runs with the same seed. Each of them writes its weights and moments, which takes the longest time.
    repeated: bool = True

    def settings(self):
        pairs = {"train.dtype": self.dtype, "train.per_device_train_batch_size": self.completions}
        pairs |= {"rollout.max_completion_length": self.new_tokens, "rollout.num_generations": self.generations}
        return [f"{key}={value}" for key, value in pairs.items()]


@dataclass
class Sizes:
    """The files and the sizes that the parts use."""

    shapes: dict
    # The model of the run that compute-sanitizer watches.
    watched: Shape
    # Shape and device of the peers' arithmetic.
    peer: dict
    peer_place: tuple = ("--device", "cuda", "--dtype", "bf16")
    peer_variants: tuple = ("dense", "lean", "compiled")
    # Options of the steps in TRL; the first two steps are a warm-up.
    trl: tuple = ("--device", "cuda", "--layers", 10, "--width", 1024, "--rows", 64, "--tokens", 128, "--steps", 4)
    # Filters of the tests that run.
    tests: tuple = TEST_FILTERS
    # Options of the benchmark; empty for its own shape.
    bench: str = ""
    # Factor of all time limits.
    patience: int = 1


# A model so small that its completions have more tokens than it has weights.
TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
QWEN = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
}
QWEN |= {"num_key_value_heads": 2, "tie_word_embeddings": True, "rope_theta": 1e6}
WATCHED = Shape(TINY, completions=8, new_tokens=6, generations=4, dtype="f32")
WHOLE = Sizes(
    shapes={"154M": Shape(), "494M": Shape(QWEN, completions=32, repeated=False)},
    watched=WATCHED,
    peer={"completions": 24, "tokens": 1024, "k": 50, "width": 3584, "rows": 10_000},
)
# For `gpu-check run --small`, which tries the parts on the emulator, without a GPU.
SMALL = Sizes(
    shapes={"154M": WATCHED, "494M": WATCHED},
    watched=WATCHED,
    peer={"completions": 2, "tokens": 8, "k": 4, "width": 16, "rows": 20},
    peer_place=("--device", "cpu", "--dtype", "f32"),
    peer_variants=("dense", "lean"),
    trl=("--one-rank", "--layers", 1, "--width", 128, "--rows", 8, "--tokens", 4, "--steps", 1),
    tests=(
        "cuda::weights_on_a_device",
        "cuda::published_masks",
        "cuda::suite::edge::an_empty_mask_assesses_nothing",
        "cuda_state",
    ),
    bench="2 4 3 64",
    patience=10,
)


class Failure(Exception):
    """An error with a sentence for the user."""
