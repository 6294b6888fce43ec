"""A command that is started and watched, and its outcome."""

import dataclasses
import os
import resource
import select
import signal
import subprocess
import time

from . import settings


@dataclasses.dataclass
class Outcome:
    """The outcome of a command. `code` is negative if a signal ended the command."""

    command: list
    folder: object
    code: int
    hung: bool
    killed: bool
    out: bytes
    err: bytes
    seconds: float
    peak: int


class Process:
    """A running command. Its output goes to memory, so that it is not in the command's folder."""

    def __init__(self, command, folder, environment, stdout=None):
        self.command, self.folder, self.killed = command, folder, False
        self.out, self.err = os.memfd_create("out"), os.memfd_create("err")
        self.began = time.monotonic()
        self.popen = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.out if stdout is None else stdout,
            stderr=self.err,
            start_new_session=True,
        )
        self.handle = os.pidfd_open(self.popen.pid)

    @property
    def pid(self):
        return self.popen.pid

    def ended(self, seconds):
        """True if the command ends within this time."""
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        return bool(poll.poll(max(0, seconds) * 1000))

    def kill(self):
        """Kills the command, unless it has already ended."""
        if not self.ended(0):
            self.killed = True
            os.killpg(self.pid, signal.SIGKILL)

    def outcome(self, limit=None):
        """Waits for the end of the command, at most `limit` seconds from its start."""
        limit = settings.HANG if limit is None else limit
        hung = True
        try:
            hung = not self.ended(self.began + limit - time.monotonic())
        finally:
            # This also runs if this program is interrupted. The command has its own session, and would go on.
            if hung:
                os.killpg(self.pid, signal.SIGKILL)
        _, status, usage = os.wait4(self.pid, 0)
        self.popen.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - self.began
        out, err = taken(self.out), taken(self.err)
        os.close(self.handle)
        killed = self.killed and self.popen.returncode == -signal.SIGKILL
        code, peak = self.popen.returncode, usage.ru_maxrss * 1024
        return Outcome(self.command, self.folder, code, hung, killed, out, err, seconds, peak)


def taken(descriptor):
    """The written text, up to the length that a check reads."""
    data = os.pread(descriptor, settings.OUTPUT, 0)
    os.close(descriptor)
    return data


def limit_children():
    """Limits the memory and the file sizes of all commands that this process starts from now on."""
    for what, most in ((resource.RLIMIT_AS, settings.ADDRESSES), (resource.RLIMIT_FSIZE, settings.FILE_SIZE), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
