"""The batch of one optimizer step.

The arrays and their descriptions are those of the table in `capo-plugin/src/batch/table.rs`, from which
`CAPO_WRITE_TABLES=1 cargo test -p capo-plugin --test pages` writes them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

from ._native import Batch as NativeBatch

OptimizerKind = Literal["sgd", "adam", "adamw", "adamw_kept_and_rejected"]
Reduction = Literal["completion_mean", "fixed_length", "token_mean", "completion_sum"]
Denominator = Literal["kept", "original"]


@runtime_checkable
class Array(Protocol):
    """Anything that speaks DLPack: arrays of torch, numpy, cupy, jax."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


@dataclass(frozen=True, eq=False, kw_only=True)
class LastLayer:
    """The last layer in the forward pass, for components whose `inputs` have `LAST_LAYER`.

    The arrays lie together in host memory or on one CUDA device, there contiguous, ids as int32 or uint32.

    Attributes:
        hidden: `[B, T, D]`: the feature from which the logits of the token were computed.
        topk_ids: `[B, T, K]`, integers: vocabulary ids of the K largest logits, largest first.
        topk_logits: `[B, T, K]`: the K largest logits themselves, raw (temperature 1), in the order of `topk_ids`.
        logsumexp: `[B, T]`: logsumexp over the full vocabulary of logits ÷ `loss_temperature`.
        action_logits: `[B, T]`: raw logit of the sampled token.
        vocab_size: V: number of vocabulary entries.
    """

    hidden: Array
    topk_ids: Array
    topk_logits: Array
    logsumexp: Array
    action_logits: Array
    vocab_size: int


@dataclass(frozen=True, eq=False, kw_only=True)
class OptimizerState:
    """The last layer's weight and Adam's moments of it, for components whose `inputs` have `OPTIMIZER_STATE`.

    Where there is a `LastLayer`, they lie where its arrays lie.

    Attributes:
        weight: `[V, D]`: the weight.
        exp_avg: `[V, D]`: first moment, the running mean of gradients.
        exp_avg_sq: `[V, D]`: second moment, the running mean of squared gradients.
    """

    weight: Array
    exp_avg: Array
    exp_avg_sq: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class RolloutContext:
    """The sampler's log-probabilities, and the age of the completions.

    Components whose `inputs` have `ROLLOUT_CONTEXT` or `SAMPLER_TOP_K` read them.

    Attributes:
        sampler_logps: `[B, T]`, nats: log-probabilities with which the sampler, such as vLLM, drew the tokens.
        sampler_topk_ids: `[B, T, K]`, integers: the sampler's most likely tokens, most likely first.
        sampler_topk_logps: `[B, T, K]`, nats: their log-probabilities.
        age: Optimizer steps since the completions were sampled.
    """

    sampler_logps: Array
    sampler_topk_ids: Array | None = None
    sampler_topk_logps: Array | None = None
    age: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Losses:
    """An objective's result on the batch, before reduction.

    Attributes:
        losses: `[B, T]`: the objective's loss per token, before masking and reduction. Present for masks.
        dloss_dlogp: `[B, T]`: derivative of the sum of a completion's `losses` by this token's `logps`. Present for
            masks.
    """

    losses: Array
    dloss_dlogp: Array


@dataclass(frozen=True)
class Optimizer:
    """The optimizer of the coming step. Masks and weights need it, unless their `traits` have `NO_OPTIMIZER`.

    Attributes:
        kind: `sgd`, `adam`, `adamw` or `adamw_kept_and_rejected`.
        learning_rate: The largest learning rate at which the coming step's gradient will move the weights. Masks and
            weights judge the gradient by it. Adam's first moment carries a gradient into later steps, so in a warm-up
            this rate is above the step's own; `capo_rl.torch.acting_rate` finds it. A constant rate is this rate.
        beta1: Decay rate of the first moment; SGD's momentum. `None` is 0.9, and 0 for SGD.
        beta2: Decay rate of the second moment. `None` is 0.999.
        eps: Term added to the square root of the second moment. `None` is 1e-8.
        weight_decay: Decoupled weight decay of AdamW.
        max_grad_norm: Largest gradient norm; a longer gradient is scaled down to it. 0 turns clipping off.
        steps_taken: Number of steps that the optimizer has taken so far.
        step_learning_rate: The learning rate of the coming step by itself; `None` where it is `learning_rate`.
    """

    kind: OptimizerKind
    learning_rate: float
    beta1: float | None = None
    beta2: float | None = None
    eps: float | None = None
    weight_decay: float = 0.0
    max_grad_norm: float = 0.0
    steps_taken: int = 0
    step_learning_rate: float | None = None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The step, and the run's number of steps.

    Attributes:
        step: Optimizer step, counted from 0.
        max_steps: Optimizer steps of the whole run.
        iteration: Number of earlier uses of this rollout; 0 is on policy.
        seed: The run's seed; derive every random draw from it and `step`.
    """

    step: int = 0
    max_steps: int = 1
    iteration: int = 0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The sampler's settings, and the temperature of the loss. Without `max_completion_length` the limit is T.

    Attributes:
        sampling_temperature: Temperature of sampling: divisor of the logits.
        sampling_top_k: The sampler's top-k, in tokens; 0 turns it off.
        sampling_top_p: The sampler's top-p, a probability; 1 turns it off.
        loss_temperature: Temperature of `logps`: divisor of the logits.
        max_completion_length: Limit on completion length in tokens; at least T.
    """

    sampling_temperature: float = 1.0
    sampling_top_k: int = 0
    sampling_top_p: float = 1.0
    loss_temperature: float = 1.0
    max_completion_length: int | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """The whole batch of one optimizer step.

    It is never a micro-batch: what a component decides must not depend on how a trainer splits its work.

    B completions, T tokens of the longest one, V vocabulary, D hidden width, K top tokens. Groups are consecutive:
    completions `g*G .. (g+1)*G` answer one prompt, where G is `group_size`. Where `completion_mask` is 0, values are
    finite and mean nothing. `advantages` may also be `[B]`, one number per completion. `advantages`, `rewards` and
    `truncated` are zeros where they are not given.

    Arrays are borrowed: a component reads them where they lie. Do not change them while a component is called. These
    arrays are copied, once, when the batch is made:

    * `[B, T]` and `[B]` arrays on a GPU, because components read them in host memory
    * arrays in host memory with gaps or another order (strides)
    * ids that are neither int32 nor uint32, and masks that are neither bytes nor booleans
    * float64, float16 and bfloat16 arrays in host memory, which become float32

    Attributes:
        completion_ids: `[B, T]`, integers: ids of the sampled tokens.
        completion_mask: `[B, T]`: 1 for a token that the policy drew, up to and including the end token; 0 for padding.
            Zeros may also stand between ones, at tokens that others wrote into the completion, such as the answer of an
            environment.
        logps: `[B, T]`, nats: log-probability of each token under the current policy at `loss_temperature`.
        advantages: `[B, T]`, reward units: advantage of each token; zeros while the advantage estimator runs.
        truncated: `[B]`: 1 where the length limit cut the completion off.
        rewards: `[B]`, reward units: reward of each completion.
        old_logps: `[B, T]`, nats: log-probability of each token under the policy that sampled the completions.
        ref_logps: `[B, T]`, nats: log-probability of each token under the reference model, from which training started.
        entropy: `[B, T]`, nats: entropy of the current policy over the full vocabulary.
        group_size: Completions per prompt.
        loss: The objective's losses and derivatives, for masks that read them.
        rollout_context: How the completions were sampled.
        last_layer: Features and logits of the last layer.
        optimizer: The optimizer of the coming step.
        optimizer_state: The last layer's weight and moments.
        progress: The step, and the run's number of steps.
        sampling: The sampler's settings.
        reduction: Rule that reduces losses to one number: `completion_mean` (TRL's `grpo`), `fixed_length` (`dr_grpo`),
            `token_mean` (`bnpo`, `dapo`) or `completion_sum` (`luspo`).
        denominator: Tokens that the reduction counts after masking: those that are `kept`, or the `original` ones.
        stream: The CUDA stream on which arrays on a device are ready and components work, such as
            `torch.cuda.current_stream().cuda_stream`. Without it, this is the default stream. The per-thread default
            stream (2) counts as the default stream, which waits for those of all threads.

    Raises:
        TypeError: An argument is not an array.
        ValueError: An argument has a wrong shape, type, device or number. The message says what it must be.
    """

    completion_ids: Array
    completion_mask: Array
    logps: Array
    advantages: Array | None = None
    _: dataclasses.KW_ONLY
    truncated: Array | None = None
    rewards: Array | None = None
    old_logps: Array | None = None
    ref_logps: Array | None = None
    entropy: Array | None = None
    group_size: int = 1
    loss: Losses | None = None
    rollout_context: RolloutContext | None = None
    last_layer: LastLayer | None = None
    optimizer: Optimizer | None = None
    optimizer_state: OptimizerState | None = None
    progress: Progress = Progress()
    sampling: Sampling = Sampling()
    reduction: Reduction = "completion_mean"
    denominator: Denominator = "kept"
    stream: int | None = None
    #: A batch that was read from a file, whose rollout context has texts that no argument gives.
    _recorded: NativeBatch | None = field(default=None)

    def __post_init__(self) -> None:
        # A batch that no component could read is refused now.
        _ = self._native

    @cached_property
    def _native(self) -> NativeBatch:
        return self._recorded or NativeBatch(flat(self))

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        batch, tokens = self._native.shape
        return batch, tokens

    @property
    def inputs(self) -> frozenset[str]:
        """Names of the optional inputs that the batch holds, as in `Mask.inputs`."""
        return frozenset(self._native.inputs)

    @property
    def copies(self) -> dict[str, int]:
        """Number of copied bytes for each array that was copied. The other arrays are read where they lie."""
        given = {name for name, value in flat(self).items() if value is not None}
        return {name: copied for name, _, copied in self._native.slots() if copied and name in given}

    def replace(self, **changes: Any) -> Batch:
        """Another batch with these arguments in place of its own."""
        return dataclasses.replace(self, _recorded=None, **changes)

    def __repr__(self) -> str:
        batch, tokens = self.shape
        held = "".join(f", {name}" for name in sorted(self.inputs))
        return f"Batch({batch} completions of {tokens} tokens, step {self.progress.step}{held})"


#: The nested classes of a batch, by attribute. No two of them have a field of the same name.
GROUPS: dict[str, type[Any]] = {
    "loss": Losses,
    "rollout_context": RolloutContext,
    "last_layer": LastLayer,
    "optimizer_state": OptimizerState,
    "progress": Progress,
    "sampling": Sampling,
}


def flat(batch: Batch) -> dict[str, Any]:
    """The arguments of a batch and of its nested classes, by name; the optimizer is a dict."""
    fields = {each.name: getattr(batch, each.name) for each in dataclasses.fields(batch) if each.name != "_recorded"}
    for group, kind in (GROUPS | {"optimizer": Optimizer}).items():
        held = fields.pop(group)
        if not isinstance(held, kind if group in ("progress", "sampling") else kind | None):
            raise TypeError(f"`{group}` is {held!r} (it must be a `capo_rl.{kind.__name__}`)")
        own = vars(held) if held is not None else {}
        fields |= {group: own or None} if kind is Optimizer else own
    return fields


def nested(fields: Mapping[str, Any], recorded: NativeBatch | None = None) -> Batch:
    """The batch of the arguments that `flat` returns. A nested class without any argument is left out.

    Raises:
        TypeError: A name is unknown.
    """
    own = dict(fields)
    for group, kind in GROUPS.items():
        given = {each.name: own.pop(each.name) for each in dataclasses.fields(kind) if each.name in own}
        if any(value is not None for value in given.values()):
            own[group] = kind(**given)
    if isinstance(own.get("optimizer"), Mapping):
        own["optimizer"] = Optimizer(**own["optimizer"])
    return Batch(**own, _recorded=recorded)


def load_batch(path: str | os.PathLike[str]) -> Batch:
    """Reads a batch file, such as `host train --dump-batches` writes; its arrays are numpy's.

    Raises:
        FileNotFoundError: There is no such file.
        CapoError: The file is not a batch.
    """
    recorded, fields = NativeBatch.read(os.fspath(path))
    return nested(fields, recorded)


def save_batch(path: str | os.PathLike[str], batch: Batch) -> None:
    """Writes a batch file, whole or not at all, for `replay`, `host replay` and bug reports.

    Raises:
        ValueError: An array lies on a GPU, or the batch has no optimizer.
    """
    batch._native.write(os.fspath(path))
