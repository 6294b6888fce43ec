"""Components of plugins: masks, weights, step controls, advantages, objectives, rewards."""

from __future__ import annotations

import functools
import json
from typing import Any, Mapping, Optional, Protocol, Sequence, Union

import numpy as np

from . import _native
from .batch import Array, Batch
from .plugins import Source, opened

#: What a component reported in a call, under ``id/name``: a number, or an array with one number per token ``[B, T]``.
Records = dict[str, Union[float, np.ndarray]]


class Collective(Protocol):
    """What connects the ranks of a run, each of which has completions of its own of a step's batch.

    A component calls it while it works, with Python's lock held for the call. All ranks make the same calls in the same order, and each waits for all
    others. An exception in it ends the component's call with a ``CapoError``, whose cause it is.
    """

    @property
    def rank(self) -> int:
        """This process's place, from 0."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def all_reduce_sum(self, array: np.ndarray) -> object:
        """Replaces the float64 ``array``, in place, by its sum over all ranks: the same bits on all of them."""

    def all_gather(self, array: np.ndarray) -> Sequence[Array]:
        """The int64 ``array`` of each rank, in the order of ranks; they may be of different lengths."""


class Measurements(Protocol):
    """Measures the step that an optimizer proposes, on request: `capo_rl.torch.Governed` has one for torch.

    A step control calls it while it works, with Python's lock held for the call. An exception in it ends the control's call with a ``CapoError``, whose cause
    it is. All numbers are of the step as it stands.
    """

    def norms(self) -> Sequence[float]:
        """Euclidean norm of each group's part of the step."""

    def fisher(self) -> float:
        """``½ Σ Δ² v̂`` over all weights, v̂ Adam's second moment after the step, bias-corrected."""

    def last_layer_kl(self) -> float:
        """KL divergence, old policy to new, that the last layer's part of the step causes alone: nats per completion token."""

    def measure_kl(self, fraction: float) -> float:
        """KL divergence, old policy to new, on ``fraction`` of the completions, at least one: nats per completion token."""

    def alignment(self) -> Optional[float]:
        """Cosine between the step before and the direction of descent of this step's batch, over all weights; none before the second step.

        Called for a control whose ``inputs`` have ``ALIGNMENT``."""


class Component:
    """What the components of all points have in common.

    ``id`` names the component, ``plugin`` the libraries that may offer it: a path, a list of paths or ``Plugins``; without it, those that this package
    carries. ``keys`` are the component's own, as in its table in a config; one that is ``None`` is left out.

    Raises ``CapoError`` for an unknown id, and for keys that the component refuses.
    """

    _point: str

    def __init__(self, id: str, /, plugin: Source = None, **keys: Any) -> None:
        self.id = id
        self.keys = {name: value for name, value in keys.items() if value is not None}
        try:
            self._table = json.dumps(self.keys, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise type(error)(f"the keys of `{id}` are no table of TOML: {error}") from None
        self._registry = opened(plugin)._native
        self._native = self._registry.component(self._point, id, self._table)

    @property
    def inputs(self) -> frozenset[str]:
        """What it reads beyond the arrays that every batch has: any of ``OLD_LOGPS``, ``REF_LOGPS``, ``ENTROPY``, ``LAST_LAYER``, ``OPTIMIZER_STATE``,
        ``ROLLOUT_CONTEXT``, ``SAMPLER_TOP_K``."""
        return frozenset(self._native.inputs)

    def state_dict(self) -> dict[str, Any]:
        """Its state for a checkpoint: ``{"component": id, "state": bytes}``.

        Raises ``CapoError`` in a signal handler or a callback that runs in the middle of its own call, whose step is half done.
        """
        return {"component": self.id, "state": self._native.save()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up what ``state_dict`` gave; a resumed run goes on bit for bit.

        Raises ``TypeError`` and ``ValueError`` for what is no state, or that of another component, ``CapoError`` where the component refuses it; it
        stays as it was.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"`state` is of type `{type(state).__name__}` (give the dict that `state_dict` gave)")
        for name in ("component", "state"):
            if name not in state:
                raise ValueError(f"`state` has no `{name}` (give the dict that `state_dict` gave)")
        if state["component"] != self.id:
            raise ValueError(f"this is the state of `{state['component']}` (it must be that of `{self.id}`)")
        if not isinstance(state["state"], bytes):
            raise TypeError(f"`state['state']` is of type `{type(state['state']).__name__}` (it must be bytes, as `state_dict` gave)")
        self._native.load(state["state"])

    def __repr__(self) -> str:
        keys = "".join(f", {name}={value!r}" for name, value in self.keys.items())
        return f"{type(self).__name__}({self.id!r}{keys})"


def listed(kind: type, given: Any) -> list[Any]:
    """What was given as a trainer's components of one kind: an id, an object, or several of either.

    Raises ``ValueError`` for a component of another kind.
    """
    found = [kind(each) if isinstance(each, str) else each for each in ([given] if isinstance(given, (str, Component)) else given)]
    for each in found:
        if isinstance(each, Component) and not isinstance(each, kind):
            raise ValueError(f"{each!r} is no {kind.__name__} (give it where components of its kind go)")
    return found


class Decider(Component):
    """What masks and weights have in common."""

    @functools.cached_property
    def traits(self) -> frozenset[str]:
        """What it declares of its decisions, under its keys: any of ``TOKEN_WISE``, ``SUMS_RANKS``, ``NO_OPTIMIZER``.

        ``TOKEN_WISE``: each token is decided by itself, so that parts of a step's batch, whole completions each, may be decided one by one before the
        one ``step_end`` with the whole. ``SUMS_RANKS``: with a ``collective``, ``step_end`` on each rank's own rows leaves on all ranks the state that
        one with the whole batch would. ``NO_OPTIMIZER``: it needs no ``optimizer`` in its batches.
        """
        return frozenset(self._native.traits)


class Mask(Decider):
    """Decides which tokens reach the backward pass.

    One instance sees every optimizer step of a run: it may keep a model of the optimizer, which ``step_end`` moves on. A call does not hold
    Python's lock; calls of one instance wait for each other.
    """

    _point = "mask"

    def __call__(
        self, batch: Batch, keep: Optional[Array] = None, collective: Optional[Collective] = None
    ) -> tuple[np.ndarray, Records]:
        """``keep``, uint8 ``[B, T]``, 0 for each token to drop, and what was reported.

        The argument ``keep`` is what the masks before this one left; without it, all tokens of the completions. It is not changed.

        Raises ``ValueError`` where the batch lacks what the mask reads, ``CapoError`` with the mask's own sentence.
        """
        return self._native.mask(batch._native, keep, collective)

    def step_end(self, batch: Batch, keep: Array, taken: bool = True, collective: Optional[Collective] = None) -> Records:
        """Tells it, once after the optimizer's step, the final ``keep`` of all masks; ``taken`` is false where the step was skipped.

        Without a ``collective``, batch and ``keep`` are those of the whole step. With one, where ``traits`` has ``SUMS_RANKS``, each rank calls with its own
        completions, and all have the same state afterwards.
        """
        return self._native.step_end(batch._native, keep, taken, collective)


class Weight(Decider):
    """Says how much each token that the masks left counts in the gradient; otherwise as ``Mask``."""

    _point = "weight"

    def __call__(
        self, batch: Batch, keep: Optional[Array] = None, collective: Optional[Collective] = None
    ) -> tuple[np.ndarray, Records]:
        """Weights, float32 ``[B, T]``, 0 where ``keep`` is, and what was reported. ``keep`` as for ``Mask``."""
        return self._native.weigh(batch._native, keep, collective)

    def step_end(self, batch: Batch, weights: Array, taken: bool = True, collective: Optional[Collective] = None) -> Records:
        """Tells it, once after the optimizer's step, the product of all weights, 0 for dropped tokens. ``collective`` as for ``Mask``."""
        return self._native.step_end(batch._native, weights, taken, collective)


class StepControl(Component):
    """Says how much of the step that an optimizer proposes is taken; `capo_rl.torch.Governed` asks one about the steps of a torch optimizer."""

    _point = "step_control"

    @property
    def restores_moments(self) -> bool:
        """True if the optimizer's moments go back to those before a step of which nothing is taken."""
        return self._native.restores_moments

    def __call__(
        self, batch: Batch, weights: Array, groups: Mapping[str, int], measure: Measurements
    ) -> tuple[list[float], Records]:
        """The scale of each group's part of the step, between 0 and 1, and what was reported.

        The batch is the one behind the step, ``weights``, float32 ``[B, T]``, what each token weighed in its gradient, 0 for dropped ones and padding. ``groups`` are the
        parts of the model in the order of the forward pass, with their numbers of weights, by names such as ``embedding``, ``block.0``, ``last_layer``.

        Raises ``ValueError`` where the batch lacks what the control reads, ``CapoError`` with the control's own sentence.
        """
        return self._native.control(batch._native, weights, list(groups.items()), measure)


class Advantage(Component):
    """Makes advantages of rewards."""

    _point = "advantage"

    def __call__(self, batch: Batch) -> tuple[np.ndarray, Records]:
        """Advantages, float32 ``[B, T]``, 0 on padding, and what was reported. The batch's own advantages are not read."""
        return self._native.estimate(batch._native)


class Objective(Component):
    """Makes a loss per token of advantages and log-probabilities."""

    _point = "objective"

    @property
    def reduction(self) -> Optional[str]:
        """How its losses become one number: ``completion_mean``, ``fixed_length``, ``token_mean`` or ``completion_sum``."""
        return self._native.reduction

    def __call__(self, batch: Batch) -> tuple[np.ndarray, np.ndarray, Records]:
        """Losses and their derivatives by ``logps``, float32 ``[B, T]`` each, and what was reported.

        The derivative is that of the sum of a completion's losses. Seed the backward pass with it, reduced over the tokens that the masks keep.
        """
        return self._native.evaluate(batch._native)


class Reward(Component):
    """Scores completions as text."""

    _point = "reward"

    def __call__(
        self,
        prompts: Sequence[str],
        completions: Sequence[str],
        *,
        answers: Optional[Sequence[str]] = None,
        columns: Optional[Sequence[Mapping[str, Any]]] = None,
        completion_ids: Optional[Sequence[Sequence[int]]] = None,
        truncated: Optional[Sequence[bool]] = None,
        group_size: int = 1,
        evaluation: bool = False,
        step: int = 0,
        max_steps: int = 1,
        seed: int = 0,
        max_completion_length: Optional[int] = None,
    ) -> tuple[np.ndarray, Records]:
        """Rewards, float32 ``[B]``, and what was reported; arrays in it are ``[B]`` too.

        ``columns`` are the rows of the dataset, one mapping per completion. ``evaluation`` scores without moving the component's state.
        """
        count = len(completions)
        ids = [[int(token) for token in row] for row in completion_ids] if completion_ids is not None else [[]] * count
        longest = max(map(len, ids), default=0)
        rollout: dict[str, list[Any]] = {
            "prompts": list(prompts),
            "completions": list(completions),
            "answers": list(answers) if answers is not None else [""] * count,
            "columns": [json.dumps(dict(row)) for row in columns] if columns is not None else ["{}"] * count,
            "completion_ids": ids,
            "truncated": [bool(cut) for cut in truncated] if truncated is not None else [False] * count,
        }
        for name, values in rollout.items():
            if len(values) != count:
                raise ValueError(f"`{name}` has {len(values)} entries (it must be {count}, as `completions` is)")
        settings = {
            "group_size": group_size,
            "evaluation": evaluation,
            "step": step,
            "max_steps": max_steps,
            "seed": seed,
            "max_completion_length": longest if max_completion_length is None else max_completion_length,
        }
        return self._native.score({**rollout, **settings})
