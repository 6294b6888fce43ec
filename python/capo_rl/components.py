"""Components of plugins: masks, weights, step controls, advantages, objectives, rewards."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .batch import Array, Batch
from .plugins import Source, opened

#: What a component reported in a call, under `id/name`: a number, or an array with one number per token `[B, T]`.
Records = dict[str, float | NDArray[Any]]


class Collective(Protocol):
    """The connection of a run's ranks, each of which has some completions of a step's batch.

    A component calls it while it works, with Python's lock held for the call. All ranks make the same calls in the same
    order, and each waits for all others. An exception in it ends the component's call with a `CapoError`, whose cause
    it is.
    """

    @property
    def rank(self) -> int:
        """This process's place, from 0."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def all_reduce_sum(self, array: NDArray[np.float64]) -> object:
        """Replaces `array`, in place, by its sum over all ranks: the same bits on all of them."""

    def all_gather(self, array: NDArray[np.int64]) -> Sequence[Array]:
        """Each rank's `array`, in the order of ranks; they may be of different lengths."""


class Measurements(Protocol):
    """Measures the step that an optimizer proposes, on request: `capo_rl.torch.Governed` has one for torch.

    A step control calls it while it works, with Python's lock held for the call. An exception in it ends the control's
    call with a `CapoError`, whose cause it is. All numbers are of the step as it stands.
    """

    def norms(self) -> Sequence[float]:
        """Euclidean norm of each group's part of the step."""

    def fisher(self) -> float:
        """`½ Σ Δ² v̂` over all weights, v̂ Adam's second moment after the step, bias-corrected."""

    def last_layer_kl(self) -> float:
        """KL divergence that the last layer's part of the step causes alone.

        From the old policy to the new one: nats per completion token.
        """

    def measure_kl(self, fraction: float, share: float) -> float:
        """KL divergence that `share` of the step causes, on `fraction` of the completions, at least one.

        From the old policy to the new one: nats per completion token. `share` is 1 for the whole step.
        """

    def alignment(self) -> float | None:
        """Cosine between the step before and the direction of descent of this step's batch, over all weights.

        `None` before the second step. Called for a control whose `inputs` have `ALIGNMENT`.
        """

    def gradient_norm(self) -> float | None:
        """Euclidean norm of the gradient before it was clipped; `None` where only a clipped one is left.

        Called for a control whose `inputs` have `ALIGNMENT`.
        """


class Component:
    """The base class of the components of all points.

    `help()` of a component shows its description and its keys.

    Args:
        id: Names the component.
        plugin: The libraries that may offer it: a path, a list of paths or `Plugins`; without it, those that this
            package carries.
        **keys: The component's own, as in its table in a config; one that is `None` is left out.

    Raises:
        CapoError: For an unknown id, and for keys that the component refuses.
    """

    _point: str

    def __init__(self, id: str, /, plugin: Source = None, **keys: Any) -> None:
        self.id = id
        self.keys = {name: value for name, value in keys.items() if value is not None}
        try:
            table = json.dumps(self.keys, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise type(error)(f"the keys of `{id}` are no table of TOML: {error}") from None
        plugins = opened(plugin)
        self._native = plugins._native.component(self._point, id, table)
        # What `help()` shows of the component.
        self.__doc__ = plugins._native.describe(self._point, id)

    @property
    def inputs(self) -> frozenset[str]:
        """The arrays that it reads beyond those that every batch has.

        Any of `OLD_LOGPS`, `REF_LOGPS`, `ENTROPY`, `LAST_LAYER`, `OPTIMIZER_STATE`, `ROLLOUT_CONTEXT`,
        `SAMPLER_TOP_K`; a step control may also read `ALIGNMENT`.
        """
        return frozenset(self._native.inputs)

    def state_dict(self) -> dict[str, Any]:
        """Its state for a checkpoint: `{"component": id, "state": bytes}`.

        Raises:
            CapoError: In a signal handler or a callback that runs in the middle of its own call, whose step is half
                done.
        """
        return {"component": self.id, "state": self._native.save()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up what `state_dict` gave; a resumed run goes on bit for bit.

        Raises:
            TypeError: For what is no state.
            ValueError: For the state of another component.
            CapoError: Where the component refuses it; it stays as it was.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"`state` is of type `{type(state).__name__}` (give the dict that `state_dict` gave)")
        for name in ("component", "state"):
            if name not in state:
                raise ValueError(f"`state` has no `{name}` (give the dict that `state_dict` gave)")
        if state["component"] != self.id:
            raise ValueError(f"this is the state of `{state['component']}` (it must be that of `{self.id}`)")
        if not isinstance(state["state"], bytes):
            kind = type(state["state"]).__name__
            raise TypeError(f"`state['state']` is of type `{kind}` (it must be bytes, as `state_dict` gave)")
        self._native.load(state["state"])

    def __repr__(self) -> str:
        keys = "".join(f", {name}={value!r}" for name, value in self.keys.items())
        return f"{type(self).__name__}({self.id!r}{keys})"


Kind = TypeVar("Kind", bound=Component)


def listed(kind: type[Kind], given: str | Kind | Iterable[str | Kind]) -> list[Kind]:
    """The components of one kind that a trainer was given: an id, an object, or several of either.

    Raises:
        ValueError: For a component of another kind.
    """
    each_of = [given] if isinstance(given, (str, Component)) else given
    found = [kind(each) if isinstance(each, str) else each for each in each_of]
    for each in found:
        if isinstance(each, Component) and not isinstance(each, kind):
            raise ValueError(f"{each!r} is no {kind.__name__} (give it where components of its kind go)")
    return found


class Decider(Component):
    """The base class of masks and weights."""

    @functools.cached_property
    def traits(self) -> frozenset[str]:
        """Its declarations about its decisions, under its keys.

        Any of:

        * `TOKEN_WISE`: each token is decided by itself, so that parts of a step's batch, whole completions each, may be
          decided one by one before the one `step_end` with the whole.
        * `SUMS_RANKS`: with a `collective`, `step_end` on each rank's own rows leaves on all ranks the state that one
          with the whole batch would.
        * `NO_OPTIMIZER`: it needs no `optimizer` in its batches.
        """
        return frozenset(self._native.traits)


class Mask(Decider):
    """Decides which tokens reach the backward pass.

    One instance sees every optimizer step of a run: it may keep a model of the optimizer, which `step_end` moves on. A
    call does not hold Python's lock; calls of one instance wait for each other.
    """

    _point = "mask"

    def __call__(
        self, batch: Batch, token_mask: Array | None = None, collective: Collective | None = None
    ) -> tuple[NDArray[np.uint8], Records]:
        """Decides over a batch.

        Args:
            batch: The whole batch of the step; of a mask that is `TOKEN_WISE`, a part of it.
            token_mask: `[B, T]`: what the masks before this one left; without it, all tokens of the completions. It is
                not changed.
            collective: Connects the ranks, for a mask that asks them.

        Returns:
            `token_mask`, uint8 `[B, T]`, 0 for each token to drop, and what was reported.

        Raises:
            ValueError: Where the batch lacks what the mask reads.
            CapoError: With the mask's own sentence.
        """
        return self._native.mask(batch._native, token_mask, collective)

    def step_end(
        self, batch: Batch, token_mask: Array, taken: bool = True, collective: Collective | None = None
    ) -> Records:
        """Tells it, once, that the optimizer's step is over.

        Args:
            batch: The batch of the whole step, or with a `collective` this rank's completions of it.
            token_mask: `[B, T]`: the final decision of all masks over `batch`.
            taken: False where the step was skipped.
            collective: Where `traits` has `SUMS_RANKS`: each rank calls, and all have the same state afterwards.

        Returns:
            What was reported.
        """
        return self._native.step_end(batch._native, token_mask, taken, collective)


class Weight(Decider):
    """Says how much each token that the masks left counts in the gradient; otherwise as `Mask`."""

    _point = "weight"

    def __call__(
        self, batch: Batch, token_mask: Array | None = None, collective: Collective | None = None
    ) -> tuple[NDArray[np.float32], Records]:
        """Weights, float32 `[B, T]`, 0 where `token_mask` is, and what was reported; arguments as for `Mask`."""
        return self._native.weigh(batch._native, token_mask, collective)

    def step_end(
        self, batch: Batch, weights: Array, taken: bool = True, collective: Collective | None = None
    ) -> Records:
        """Tells it, once, that the optimizer's step is over; otherwise as for `Mask`.

        Args:
            batch: As for `Mask`.
            weights: `[B, T]`: the product of all weights, 0 for dropped tokens.
            taken: As for `Mask`.
            collective: As for `Mask`.

        Returns:
            What was reported.
        """
        return self._native.step_end(batch._native, weights, taken, collective)


class StepControl(Component):
    """Says how much of the step that an optimizer proposes is taken.

    `capo_rl.torch.Governed` asks one about the steps of a torch optimizer.
    """

    _point = "step_control"

    @property
    def restores_moments(self) -> bool:
        """True if the optimizer's moments go back to those before a step of which nothing is taken."""
        return self._native.restores_moments

    def __call__(
        self, batch: Batch, weights: Array, groups: Mapping[str, int], measure: Measurements
    ) -> tuple[list[float], Records]:
        """Says how much of a step is taken.

        Args:
            batch: The one behind the step.
            weights: `[B, T]`, float32: what each token weighed in its gradient, 0 for dropped ones and padding.
            groups: The parts of the model in the order of the forward pass, with their numbers of weights, by names
                such as `embedding`, `block.0`, `last_layer`.
            measure: Answers questions about the step.

        Returns:
            The scale of each group's part of the step, between 0 and 1, and what was reported.

        Raises:
            ValueError: Where the batch lacks what the control reads.
            CapoError: With the control's own sentence.
        """
        return self._native.control(batch._native, weights, list(groups.items()), measure)


class Advantage(Component):
    """Makes advantages of rewards."""

    _point = "advantage"

    def __call__(self, batch: Batch) -> tuple[NDArray[np.float32], Records]:
        """Advantages, float32 `[B, T]`, 0 on padding, and what was reported.

        The batch's own advantages are not read.
        """
        return self._native.estimate(batch._native)


class Objective(Component):
    """Makes a loss per token of advantages and log-probabilities."""

    _point = "objective"

    @property
    def reduction(self) -> str | None:
        """How its losses become one number: `completion_mean`, `fixed_length`, `token_mean` or `completion_sum`."""
        return self._native.reduction

    def __call__(self, batch: Batch) -> tuple[NDArray[np.float32], NDArray[np.float32], Records]:
        """Losses and their derivatives by `logps`, float32 `[B, T]` each, and what was reported.

        The derivative is that of the sum of a completion's losses. Seed the backward pass with it, reduced over the
        tokens that the masks keep.
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
        answers: Sequence[str] | None = None,
        columns: Sequence[Mapping[str, Any]] | None = None,
        completion_ids: Sequence[Sequence[int]] | None = None,
        truncated: Sequence[bool] | None = None,
        group_size: int = 1,
        evaluation: bool = False,
        step: int = 0,
        max_steps: int = 1,
        seed: int = 0,
        max_completion_length: int | None = None,
    ) -> tuple[NDArray[np.float32], Records]:
        """Scores B completions.

        Args:
            prompts: B texts.
            completions: B texts.
            answers: B texts that completions are compared with; empty without it.
            columns: The B rows of the dataset.
            completion_ids: The tokens of each completion.
            truncated: Whether the length limit cut each completion off.
            group_size: Completions per prompt.
            evaluation: Scores without moving the component's state.
            step: The optimizer's step, from 0.
            max_steps: How many the run has.
            seed: The run's.
            max_completion_length: The limit, tokens; without it the longest of `completion_ids`.

        Returns:
            Rewards, float32 `[B]`, and what was reported; arrays in it are `[B]` too.

        Raises:
            ValueError: For lists of other lengths than B.
            CapoError: With the reward's own sentence.
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
