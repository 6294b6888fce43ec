"""Libraries that end, hang or break the process while they are opened or while it ends."""

import shutil
import subprocess

from . import runs
from .settings import Failure

TRIED = "libraries whose constructors, destructors and threads exit, abort, crash, hang, use up the stack, fork or close what is open, through `plugins`, `check` and `train`"
# Seconds; more than `component_timeout` here plus the time to open a library.
LIMIT = 50
# Sins after which `host` cannot print a sentence: they look as if a user had ended the process, or they use up the
# stack of a thread.
SILENT = ("raises", "closes", "overflows-in-thread")
# Without `[train]` settings a library may take ten minutes to be opened.
ENDLESS = ("hangs", "spins")

SINS = {
    "exits": "exit(0);",
    "exits-quickly": "quick_exit(0);",
    "aborts": "abort();",
    "crashes": "*(volatile int *)8 = 1;",
    "divides": "volatile int n = 0; n = 1 / n;",
    "raises": "raise(SIGTERM);",
    "hangs": "for (;;) pause();",
    "spins": "for (volatile long n = 0;; n++);",
    "overflows": "deeper(1);",
    "closes": "for (int n = 0; n < 64; n++) close(n);",
    "talks": 'printf("error: all is well\\n"); fflush(stdout);',
    "exits-in-thread": "pthread_t t; pthread_create(&t, 0, ends, 0); pthread_join(t, 0);",
    "crashes-in-thread": "pthread_t t; pthread_create(&t, 0, falls, 0); pthread_join(t, 0);",
    "overflows-in-thread": "pthread_t t; pthread_create(&t, 0, sinks, 0); pthread_join(t, 0);",
    "rounds": "fesetround(FE_UPWARD);",
    "ignores-signals": "for (int n = 1; n < 32; n++) signal(n, SIG_IGN);",
}
SOURCE = """#define _GNU_SOURCE
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((noinline)) int deeper(int n) { volatile char here[4096]; here[0] = n; return deeper(n + 1) + here[0]; }
void *ends(void *_) { exit(0); }
void *falls(void *_) { *(volatile int *)8 = 1; return 0; }
void *sinks(void *_) { deeper(1); return 0; }
__attribute__((WHEN)) static void sin_(void) { WHAT }
"""
WHEN = ("constructor", "destructor")


class Part:
    def __init__(self, bench):
        self.bench = bench
        self.folder = bench.fresh("sinners")
        uses = {sin: ("train",) if sin in ENDLESS else ("plugins", "check", "train") for sin in SINS}
        self.cases = [(when, sin, use) for when in WHEN for sin in SINS for use in uses[sin]]
        for when in WHEN:
            for sin, what in SINS.items():
                source = self.folder / "sin.c"
                source.write_text(SOURCE.replace("WHEN", when).replace("WHAT", what))
                made = ["cc", "-O0", "-w", "-shared", "-fPIC", "-pthread", "-o", self.folder / f"{when}-{sin}.so", source, "-lm"]
                if subprocess.run(made, capture_output=True).returncode:
                    raise Failure("cc cannot make a library (install gcc)")

    def run(self, case):
        when, sin, use = case.one
        case.kind = f"a {when} that {sin}, in `{use}`"
        shutil.copy(self.folder / f"{when}-{sin}.so", case.folder / "sin.so")
        outcome = self.bench.start(command(use), case.folder).outcome(LIMIT)
        case.log.append(outcome)
        case.tally[f"exit {outcome.code}" if outcome.code >= 0 else "signal"] += 1
        case.peak, case.seconds = max(case.peak, outcome.peak), max(case.seconds, outcome.seconds)
        # None of these libraries is a plugin. A library may end the process, even by a signal, but not with an exit
        # code of 0, and not without a message.
        if outcome.hung:
            case.find("it hangs", outcome)
        elif outcome.code == 0:
            case.find("exit code 0", outcome)
        elif b"sin" not in outcome.err and sin not in SILENT and use != "check":
            case.find("it ends without a word about the library", outcome)


def command(use):
    if use == "check":
        return ["check", "./sin.so", "--only", "load-time"]
    if use == "plugins":
        return ["plugins", "--plugin", "./sin.so"]
    small = runs.TINY | {"train.max_steps": 1, "train.save_steps": 0, "eval.num_prompts": 0, "train.component_timeout": 1}
    return runs.train(small, ("--plugin", "./sin.so"))
