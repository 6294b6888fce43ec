"""A thread inside a component's call calls the component again or asks for its state, from a signal handler, a callback or a `__del__`."""

import signal
import subprocess
import sys

import capo_rl
import pytest

from conftest import batches, mask_of, small
from test_components import GROUPS, WEIGHTS, Measure

SENTENCE = "is inside a call of this very thread, which waits for what runs now (in a signal handler set a flag, and save the state after the step)"


class Interrupted(Measure):
    """Measurements that run `then`."""

    def __init__(self, then):
        super().__init__()
        self.then = then

    def measure_kl(self, fraction, share):
        self.then()
        return super().measure_kl(fraction, share)


class Ranks:
    """The first of two ranks, whose sum runs `then`."""

    rank, size = 0, 2

    def __init__(self, then):
        self.then = then

    def all_reduce_sum(self, array):
        self.then()

    def all_gather(self, array):
        return [array, array]


def governed(then):
    """A control, and a call of it that runs `then` in a measurement."""
    control = capo_rl.StepControl("governor.kl", target=1e-4)
    return control, lambda: control(small(), WEIGHTS, GROUPS, Interrupted(lambda: then(control)))


def summed(then):
    """A mask, and a call of its step's end that runs `then` in a sum over ranks."""
    mask, batch = mask_of("paper-token-adam"), capo_rl.load_batch(batches("paper-token-adam")[0])
    token_mask, _ = mask(batch)
    return mask, lambda: mask.step_end(batch, token_mask, True, Ranks(lambda: then(mask)))


def by_signal(ask):
    """Asks in a signal handler that Python runs in the middle of the call."""

    def then(component):
        signal.signal(signal.SIGALRM, lambda *_: ask(component))
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        signal.pause()

    return then


def by_del(ask):
    """Asks in an object's `__del__`, whose exceptions Python ignores."""

    def then(component):
        class Gone:
            def __del__(self):
                told.append(refused(lambda: ask(component)))

        told = []
        Gone()
        raise capo_rl.CapoError(told[0])

    return then


def refused(call):
    try:
        call()
    except capo_rl.CapoError as error:
        return str(error)
    return "nothing was refused"


CALLS = {"a step control": governed, "a sum over ranks": summed}
WAYS = {"callback": lambda ask: ask, "signal": by_signal, "del": by_del}
ASKS = {
    "its state": lambda component: component.state_dict(),
    "a state for it": lambda component: component.load_state_dict({"component": component.id, "state": b""}),
    "a question": lambda component: component._native.restores_moments,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("way", WAYS)
def test_refuses_calls_inside_calls(call, way):
    # In another process, which is killed if it deadlocks.
    program = f"import sys; sys.path.insert(0, {sys.path[0]!r}); import test_interrupted; test_interrupted.asked({call!r}, {way!r})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


def asked(call, way):
    others = capo_rl.StepControl("governor.kl", target=1e-4)
    for ask in ASKS.values():

        def then(component):
            # A component without a call in progress can be read as usual.
            assert others.state_dict()["state"] == b"governor.kl/1 none"
            WAYS[way](ask)(component)

        component, interrupted = CALLS[call](then)
        told = refused(interrupted)
        assert f"component `{component.id}` {SENTENCE}" in told, told
        assert component.state_dict()["component"] == component.id, "it goes on"
