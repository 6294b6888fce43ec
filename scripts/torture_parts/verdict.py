"""Rules that every command must keep, whatever its input."""

import dataclasses
import os
import re
import shlex
import signal
from pathlib import Path

from . import settings

PANIC = re.compile(rb"panicked at ([^\s:]+:\d+)")
# Control characters except newline and tab: those below the space, DEL, and those above ASCII in UTF-8.
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


@dataclasses.dataclass
class Finding:
    """A finding. Findings with the same `what` are of one kind."""

    case: str
    what: str
    command: str
    said: str


def faults(outcome):
    """The faults of a command's outcome itself, as sentences."""
    if outcome.killed:
        return
    panic = PANIC.search(outcome.err)
    if outcome.hung:
        yield "it hangs"
    elif panic:
        yield f"panic at {place(panic[1].decode(errors='replace'))}"
    elif outcome.code < 0:
        yield f"ended by {signal.Signals(-outcome.code).name}"
    elif outcome.code not in (0, 1, 2):
        yield f"exit code {outcome.code}"
    if outcome.code > 0 and not outcome.err.strip():
        yield f"exit code {outcome.code} without a sentence"
    for name, text in (("stdout", outcome.out), ("stderr", outcome.err)):
        if CONTROL.search(text):
            yield f"a raw control byte on {name}"
    if outcome.peak > settings.MEMORY:
        yield "it takes more than 2 GB of memory"


def place(path):
    """The place of a panic in the sources, without the machine's folders."""
    return re.sub("^.*/registry/src/[^/]*/|^.*/library/", "", path)


def snapshot(folder):
    """Every file under a folder, with the properties that change if it is written or replaced."""
    found = {}
    for path, status in walk(folder):
        if not any(lock in Path(path).name for lock in settings.LOCKS):
            is_folder = status.st_mode & 0o170000 == 0o040000
            found[path] = (status.st_ino,) if is_folder else (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


def walk(folder, below=""):
    """Paths relative to the folder, with their status. Files that disappear meanwhile are left out."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        name = f"{below}{entry.name}"
        try:
            yield name, entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path, f"{name}/")


def traces(outcome, before, after):
    """Files that a command must not have left behind, as sentences. Bad input leaves everything as it was."""
    if outcome.code == 2 and before != after:
        changed = sorted(path for path in {**before, **after} if before.get(path) != after.get(path))
        yield f"exit code 2, but {general(changed[0])} is not as before"
    for path in after:
        if path not in before and Path(path).name.startswith(settings.UNFINISHED):
            yield f"left behind: {general(path)}"


def general(name):
    """A path up to the first folder with a random name, without the random part."""
    parts = name.split("/")
    for number, part in enumerate(parts):
        if unfinished := [kind for kind in settings.UNFINISHED if part.startswith(kind)]:
            return "/".join([*parts[:number], f"{unfinished[0]}*"])
    return name


def command_line(outcome):
    """The command that reproduces the fault."""
    return f"cd {shlex.quote(str(outcome.folder))} && {shlex.join(map(str, outcome.command))}"


def said(outcome, most=600):
    """The end of the command's stderr, safe to print."""
    text = outcome.err.decode(errors="replace").strip()
    text = "".join(letter if letter == "\n" or letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
