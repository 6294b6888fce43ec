"""Builds the archive for the machine with the GPU."""

import datetime
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from . import settings
from .settings import ROOT, Failure


def main(args):
    with tempfile.TemporaryDirectory() as work:
        staging = Path(work) / "gpu-check"
        manifest = stage(staging, args)
        (staging / settings.MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        size = archive(staging, args.out)
    print(f"{args.out}: {size / 1e6:.1f} MB, {len(manifest['tests'])} test executables")
    if not manifest["cuda_host"]:
        print(f"without a `host` that trains on a GPU: {manifest['cuda_host_missing']}")


def stage(staging, args):
    """Fills `staging` with the layout of the workspace, because tests look for files relative to themselves."""
    folder = "debug" if args.profile == "dev" else args.profile
    built = build(args.profile)
    target = staging / "target" / folder
    manifest = facts() | {"profile": folder, "tests": [], "bench": None, "cuda_host": None}
    for path in built["files"]:
        place(path, target / path.name)
    no_cuda_needed(target / "libcapo.so")
    for test in built["tests"]:
        place(test["path"], target / "deps" / test["path"].name)
        manifest["tests"].append(test | {"path": f"target/{folder}/deps/{test['path'].name}"})
    place(bench(args.profile), staging / "target/bench/curvature")
    manifest["bench"] = "target/bench/curvature"
    if reason := no_cuda_host(args):
        manifest["cuda_host_missing"] = reason
    else:
        place(args.cuda_host or cuda_host(args.profile), staging / "target/cuda/host")
        manifest["cuda_host"] = "target/cuda/host"
    for tree in settings.TREES:
        copy(tree, staging)
    package = staging / settings.PACKAGE
    place(built["native"], package / settings.NATIVE)
    (package / "plugins").mkdir()
    (package / "plugins" / settings.TRAIN_MASK).symlink_to(f"../../../target/{folder}/{settings.TRAIN_MASK}")
    return manifest


def facts():
    """Place and time of the build. Tests look for their data where they were built, so the runner puts a link there."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"commit": commit.strip(), "packed": now.isoformat(timespec="seconds"), "built_at": str(ROOT)}


def cargo(*arguments, target=None, environment=None):
    """Cargo's messages about the files that a build produced for the workspace's packages."""
    print("cargo " + " ".join(arguments), file=sys.stderr)
    environment = os.environ | (environment or {}) | ({"CARGO_TARGET_DIR": str(target)} if target else {})
    command = ["cargo", *arguments, "--locked", "--message-format=json-render-diagnostics"]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failure("the build failed (see its messages above)")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    artifacts = [message for message in messages if message["reason"] == "compiler-artifact"]
    return [message for message in artifacts if Path(message["manifest_path"]).is_relative_to(ROOT)]


def build(profile):
    """Builds `host` with every plugin, and the test executables. One build compiles dependencies once; none of them links CUDA."""
    files, tests = {}, {}
    made = cargo("build", "--profile", profile, "--workspace", "--lib", "--bins", "--tests")
    # The core's test suite for a device is not part of an ordinary test run, so it is named.
    made += cargo("build", "--profile", profile, "--workspace", "--test", "cuda")
    for message in made:
        package = str(Path(message["manifest_path"]).parent.relative_to(ROOT))
        if not message["profile"]["test"]:
            files |= {Path(path).name: Path(path) for path in message["filenames"] if travels(package, message, path)}
        elif package in settings.TEST_PACKAGES:
            tests[message["executable"]] = {"package": package, "path": Path(message["executable"])}
    native = next(Path(path) for message in made for path in message["filenames"] if path.endswith("/libcapo_rl.so"))
    return {"files": list(files.values()), "tests": list(tests.values()), "native": native}


def travels(package, message, path):
    """True for `host` and for every library that it can load as a plugin, because only a test knows which of them it opens."""
    if package == "python":
        return False
    return Path(path).name == "host" or ("cdylib" in message["target"]["kind"] and path.endswith(".so"))


def bench(profile):
    found = cargo(
        "bench",
        "--no-run",
        "--workspace",
        "--bench",
        "curvature",
        "--profile",
        "bench" if profile == "release" else profile,
    )
    return Path(next(message["executable"] for message in found if "bench" in message["target"]["kind"]))


def toolchain():
    for folder in (os.environ.get("CUDA_HOME"), ROOT / "target/cuda-toolchain"):
        if folder and (Path(folder) / "bin/nvcc").exists():
            return Path(folder)
    return None


def no_cuda_host(args):
    """The reason why no `host` with CUDA is built; `None` if one is built."""
    if args.without_training:
        return "packed with `--without-training`"
    if not args.cuda_host and not toolchain():
        return "packed without a CUDA toolchain (`scripts/cuda-toolchain` makes one)"
    return None


def cuda_host(profile):
    """Builds `host` with CUDA in a separate target folder. candle makes cudarc link CUDA, and in one build the plugins would link it too."""
    home = toolchain()
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "cuda"
    environment = {
        "CUDA_HOME": str(home),
        "CUDA_COMPUTE_CAP": os.environ.get("CUDA_COMPUTE_CAP", "90"),
        "LIBRARY_PATH": f"{home}/lib:{home}/lib/stubs",
    }
    cargo("build", "--profile", profile, "-p", "host", "--features", "cuda", target=target, environment=environment)
    return target / ("debug" if profile == "dev" else profile) / "host"


def no_cuda_needed(library):
    """Checks that a plugin loads on a machine without a GPU."""
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    bad = [line.split("[")[1].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line and "[libcu" in line]
    if bad:
        raise Failure(
            f"`{library.name}` needs {', '.join(bad)} to load (was it built together with `--features cuda`?)"
        )


def place(source, target):
    """Makes a stripped copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    subprocess.run(["strip", "--strip-unneeded", target], check=True)


def copy(tree, staging):
    source, target = ROOT / tree, staging / tree
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "plugins", "*.so"))
    elif source.exists():
        shutil.copy(source, target)
    else:
        print(f"`{tree}` is missing, and does not travel", file=sys.stderr)


def archive(staging, path):
    """The size of the archive in bytes. An archive that is too large is deleted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    window = min(
        settings.WINDOW, max(1 << 20, sum(path.stat().st_size for path in staging.rglob("*") if path.is_file()))
    )
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": window, "mf": lzma.MF_HC4}]
    with lzma.open(fresh, "wb", filters=filters) as file, tarfile.open(fileobj=file, mode="w|") as tar:
        tar.add(staging, arcname="gpu-check")
    size = fresh.stat().st_size
    if size > settings.ARCHIVE_LIMIT:
        fresh.unlink()
        raise Failure(f"the archive has {size / 1e6:.1f} MB, at most {settings.ARCHIVE_LIMIT / 1e6:.0f} (pack less)")
    fresh.replace(path)
    return size
