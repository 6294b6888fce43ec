"""Runs every part with its own time limit, also if other parts fail."""

import contextlib
import datetime
import json
import os
import tarfile
import tempfile
import time
from pathlib import Path

from . import settings
from .parts import PARTS
from .report import table
from .session import Missing, Session
from .settings import ROOT, Failure


def main(args):
    start, names = time.monotonic(), args.only or list(settings.LIMITS)
    if unknown := [name for name in names if name not in PARTS]:
        raise Failure(f"no part is called `{unknown[0]}` (there are {', '.join(settings.LIMITS)})")
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as work:
        root = unpacked(args.archive, Path(work))
        session = Session(root, Path(work), settings.SMALL if args.small else settings.WHOLE)
        with link(session):
            results = facts(session) | {"parts": [perform(session, name) for name in names]}
    for part in results["parts"]:
        if part["name"] == "device":
            results |= {label: value for label, value in part["rows"] if label in ("GPU", "driver")}
    results["seconds"] = round(time.monotonic() - start, 1)
    write(args.out, results)
    print(table(results), end="")
    print(f"results in `{args.out}`")
    return 1 if any(part["status"] == "failed" for part in results["parts"]) else 0


def unpacked(archive, work):
    """The folder with the packed files: this script's own folder if it comes from an archive, else the unpacked `archive`."""
    if archive is None and (ROOT / settings.MANIFEST).exists():
        return ROOT
    archive = archive or settings.ARCHIVE
    if not archive.exists():
        raise Failure(f"`{archive}` does not exist (make it with `scripts/gpu-check pack`)")
    try:
        with tarfile.open(archive) as tar:
            # Only later versions of Python 3.10 have the filter.
            tar.extractall(work, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    except (tarfile.TarError, EOFError) as error:
        raise Failure(f"`{archive}` cannot be read: {error} (pack it again)") from None
    if not (work / "gpu-check" / settings.MANIFEST).exists():
        raise Failure(f"`{archive}` was not made by `scripts/gpu-check pack`")
    return work / "gpu-check"


@contextlib.contextmanager
def link(session):
    """Inside this context, tests find their data at the path where they were built."""
    place, made = Path(session.manifest["built_at"]), False
    if not place.exists():
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(session.root)
            made = True
        except OSError as error:
            print(f"tests that read files will fail: no link at `{place}` ({error})")
    try:
        yield
    finally:
        if made:
            place.unlink()


def facts(session):
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"date": now.isoformat(timespec="seconds"), "commit": session.manifest["commit"]}


def perform(session, name):
    """The result of a part. An error in the part is its result."""
    print(f"{name} ...", flush=True)
    rows, status, said, start = [], "ok", "", time.monotonic()
    session.part_end = start + settings.LIMITS[name] * session.sizes.patience
    try:
        PARTS[name](session, rows)
    except Missing as missing:
        status, said = "missing", str(missing)
    except Failure as failure:
        status, said = "failed", str(failure)
    except Exception as error:
        status, said = "failed", f"{type(error).__name__}: {error}"
    if said:
        print(f"  {status}: {said}", flush=True)
    seconds = round(time.monotonic() - start, 1)
    return {"name": name, "status": status, "seconds": seconds, "rows": [[a, str(b)] for a, b in rows], "said": said}


def write(path, results):
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(results, indent=2) + "\n")
    os.replace(fresh, path)
