"""What `gpu-check` runs, and for how long."""

from pathlib import Path

# The workspace, or the unpacked archive, which is laid out like one.
ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT / "target/gpu-check.tar.xz"
ARCHIVE_LIMIT = 60_000_000
MANIFEST = "manifest.json"

DEVICE = "cuda:0"
# Seconds; a part ends at its own limit, and all of them at the total.
LIMITS = {"device": 15, "tests": 90, "replay": 40, "sanitizer": 90, "bench": 60, "peers": 90, "train": 50, "peer training": 40}
TOTAL = 475

# Packages, by folder, whose test executables travel; which of their tests run on a GPU; and what tells them not to skip or emulate.
TEST_PACKAGES = ("capo-core", "host", "host/ops", "plugins/curvature", "tests")
TEST_FILTERS = ("cuda",)
TEST_ENVIRONMENT = {"CAPO_TEST_DEVICE": "cuda"}
# The tests under compute-sanitizer, which slows them a hundred times: package and filters.
SANITIZED = ("capo-core", "cuda::suite::replay", "cuda::agreement::shapes")
SANITIZERS = ("memcheck", "racecheck", "initcheck")

# Data and programs of the workspace that travel as they are.
TREES = ("tests/data", "benches/peers", "configs", "capo-core/kernels", "host/ops/kernels", "scripts/gpu-check", "scripts/gpu_check")
PLUGINS = ("libcapo.so", "libdrcapo.so", "libreincapo.so", "librewarding.so")

# Largest deviation of a replayed shift, as a share of the batch's largest, as in tests/tests/suite/replay.rs.
TOLERANCE = 1e-5

BENCH_FILTERS = ("cuda", "--skip", "emulated")
PEER_SHAPE = {"completions": 24, "tokens": 1024, "k": 50, "width": 3584, "rows": 10_000}
PEER_VARIANTS = ("dense", "lean", "compiled")
PEER_PLACE = ("--device", "cuda", "--dtype", "bf16")

TRAIN_CONFIG = "configs/gpu/default.toml"
TRAIN_STEPS = 8
TRAIN_SETTINGS = ("train.dtype=bf16", f"train.max_steps={TRAIN_STEPS}", "train.save_steps=0", "eval.num_prompts=0")
# With random weights no answer is right, and without a difference in rewards the mask has nothing to do.
TRAIN_PLUGINS = ("libcapo.so", "librewarding.so")
TRAIN_REWARD = 'reward=[{use="rewarding.parity"}]'


class Failure(Exception):
    """A sentence for the user."""
