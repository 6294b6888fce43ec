"""Runs every part of gpu-check in an empty folder on the emulated GPU: python3 scripts/gpu_check/test_emulated.py

It builds a `host` with CUDA (`scripts/emulated-gpu`), packs, unpacks, and runs all parts with small shapes. Tools that
need a GPU are stand-ins.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_check import settings  # noqa: E402

TOOLS = {
    "nvidia-smi": "echo 'an emulated GPU, 580.0, 16384 MiB, 9.0'",
    # Options of compute-sanitizer, then the program that it watches.
    "compute-sanitizer": 'shift 4; "$@" && echo "========= ERROR SUMMARY: 0 errors"',
}
# Parts for which numpy, torch or TRL may be missing.
PEERS = ("capo_rl", "TRL", "peers", "peer training 154M", "peer training 494M")


def main():
    root, target = settings.ROOT, Path(os.environ.get("CARGO_TARGET_DIR", settings.ROOT / "target"))
    subprocess.run([root / "scripts/emulated-gpu"], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory(prefix="gpu-check-test-", dir=target) as work:
        work = Path(work)
        archive, tools, results = work / "gpu-check.tar.xz", work / "tools", work / "results.json"
        packing = ["--profile", "dev", "--out", archive, "--cuda-host", root / "target/emulated/debug/host"]
        subprocess.run([root / "scripts/gpu-check", "pack", *packing], check=True)
        with tarfile.open(archive) as tar:
            tar.extractall(work, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        tools.mkdir()
        for name, text in TOOLS.items():
            (tools / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (tools / name).chmod(0o755)
        environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(root / "target/emulated-cuda/lib"),
            "XDG_CACHE_HOME": str(work / "cache"),
        }
        running = [work / "gpu-check/scripts/gpu-check", "run", "--small", "--out", results]
        code = subprocess.run([sys.executable, *running, *sys.argv[1:]], env=environment, cwd=work).returncode
        parts = {part["name"]: part for part in json.loads(results.read_text())["parts"]}
    wrong = [
        name
        for name, part in parts.items()
        if part["status"] != "ok" and not (name in PEERS and part["status"] == "missing")
    ]
    if wrong or code != 0:
        sys.exit(f"test_emulated: {', '.join(wrong) or 'gpu-check'} did not run to its end (exit code {code})")
    print(f"{len(parts)} parts ran in an empty folder")


if __name__ == "__main__":
    main()
