"""A run on the machine with the GPU: its paths, the environment of its commands, and time limits."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import settings
from .settings import Failure


class Missing(Exception):
    """Something that a part needs is missing; the message says what."""


class Late(Failure):
    """A command that had to be stopped, with its output until then."""

    def __init__(self, sentence, said):
        super().__init__(sentence)
        self.said = said


class Session:
    def __init__(self, root, work, sizes=settings.WHOLE):
        self.root, self.work, self.sizes = root, work, sizes
        self.manifest = json.loads((root / settings.MANIFEST).read_text())
        self.environment = environment(root, self.manifest)
        self.end = time.monotonic() + settings.TOTAL * sizes.patience
        self.part_end = self.end
        self.results = {}

    def file(self, name):
        """A file of the archive."""
        path = self.root / name
        if not path.exists():
            raise Missing(f"`{name}` is not in the archive")
        return path

    def executable(self, folder_name):
        return self.file(f"target/{self.manifest['profile']}/{folder_name}")

    def cuda_host(self):
        """The `host` that trains on the GPU."""
        if not self.manifest["cuda_host"]:
            raise Missing(self.manifest.get("cuda_host_missing", "no `host` with CUDA in the archive"))
        return self.file(self.manifest["cuda_host"])

    def python(self, *command):
        """As `attempt`, for a script of this Python. A module that is not installed counts as missing."""
        code, said = self.attempt(sys.executable, *command)
        if code != 0 and (module := re.search(r"^ModuleNotFoundError: No module named '([^']+)'", said, re.MULTILINE)):
            raise Missing(f"`{sys.executable}` has no module `{module[1]}`")
        return code, said

    def call(self, *command, cwd=None, **environment):
        """The output of the command. It is an error if the command fails or the part's time is over."""
        code, said = self.attempt(*command, cwd=cwd, **environment)
        if code != 0:
            raise Failure(f"`{shown(command)}` ended with {code}\n{tail(said)}")
        return said

    def attempt(self, *command, cwd=None, **environment):
        """The exit code and the output of the command, which runs in the folder `cwd` or in one that is deleted afterwards."""
        left = min(self.part_end, self.end) - time.monotonic()
        if left <= 0:
            raise Failure("no time is left")
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd or self.work,
            env=self.environment | environment,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            raise Late(f"`{shown(command)}` was stopped after {left:.0f} s\n{tail(said)}", said) from None
        return process.returncode, said


def shown(command):
    """The command line in a form for a sentence."""
    words = [Path(str(word)).name for word in command]
    return " ".join(words[:4] + ["..."] if len(words) > 4 else words)


def tail(text, lines=12):
    return "\n".join(text.rstrip().splitlines()[-lines:])


def complaint(said):
    """The line with the error: the first that names an error, else the last."""
    lines = said.rstrip().splitlines() or ["nothing was printed"]
    return next((line for line in lines if re.match(r"\w*error", line, re.IGNORECASE)), lines[-1])


def environment(root, manifest):
    """The environment of all commands. It leads to CUDA's libraries (those that the user names, those of torch's packages, and the
    driver's), to the Python package of the archive, and to the files of the tests."""
    known = os.environ.get("LD_LIBRARY_PATH")
    libraries = [known] if known else []
    folders = [Path(folder) / "nvidia" for folder in sys.path if folder]
    libraries += [path for folder in folders for path in sorted(folder.glob("*/lib")) if path.is_dir()]
    libraries += [path for path in map(Path, DRIVER_FOLDERS) if (path / "libcuda.so.1").exists()]
    libraries = ":".join(map(str, libraries))
    trainer = (
        {"CAPO_CUDA_HOST": str(root / manifest["cuda_host"]), "CAPO_CUDA_LIBRARIES": libraries}
        if manifest["cuda_host"]
        else {}
    )
    return (
        os.environ
        | trainer
        | {
            "LD_LIBRARY_PATH": libraries,
            "PYTHONPATH": ":".join(filter(None, (str((root / settings.PACKAGE).parent), os.environ.get("PYTHONPATH")))),
            # Tests that would build a program find it built.
            "CARGO": "true",
            "INSTA_WORKSPACE_ROOT": str(root),
            "INSTA_UPDATE": "no",
        }
    )


DRIVER_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/local/cuda/compat/lib")
