"""The batch of one optimizer step."""

from __future__ import annotations

import os
from typing import Any, Mapping, Optional, Protocol, runtime_checkable

from . import _native


@runtime_checkable
class Array(Protocol):
    """Anything that speaks DLPack: arrays of torch, numpy, cupy, jax."""

    def __dlpack__(self, **arguments: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class Batch:
    """The whole batch of one optimizer step, never a micro-batch: what a component decides must not depend on how a trainer splits its work.

    B completions, T tokens of the longest one, V vocabulary, D hidden width, K top tokens. Groups are consecutive: completions ``g*G .. (g+1)*G`` answer
    one prompt, where G is ``group_size``. What is 0 in ``completion_mask`` is padding; its values are finite and mean nothing.

    Arrays are borrowed: they are read where they lie, when a component is called, so leave them alone until its call is back. What is copied, once, when the
    batch is made:

    * ``[B, T]`` and ``[B]`` arrays that lie on a GPU: components read them in host memory
    * arrays in host memory with gaps or another order (strides)
    * integers that are neither int32 nor uint32 in ``completion_ids`` and ``topk_ids``; other masks than of bytes or booleans
    * float64, float16 and bfloat16 in host memory, which become float32

    The large arrays (``hidden``, ``topk_ids``, ``topk_logits``, ``logsumexp``, ``action_logits``; ``weight``, ``exp_avg``, ``exp_avg_sq``) lie together in host
    memory or on one CUDA device, there contiguous, ids as int32 or uint32.

    completion_ids: ``[B, T]``, integers: the sampled tokens.
    completion_mask: ``[B, T]``: 1 for tokens of the completion, up to and including the end token.
    logps: ``[B, T]``, nats: log-probability of each token under the current policy at ``loss_temperature``.
    advantages: ``[B, T]``, or ``[B]`` for one number per completion; zeros without it.
    rewards: ``[B]``; zeros without it.
    truncated: ``[B]``: 1 where the length limit cut the completion off; zeros without it.
    old_logps, ref_logps: ``[B, T]``, nats: the same as ``logps`` when the completions were sampled, and under the reference model.
    entropy: ``[B, T]``, nats: of the current policy.
    losses, dloss_dlogp: ``[B, T]``: the objective's loss per token before reduction, and its derivative by ``logps``.
    sampler_logps: ``[B, T]``, nats: what the sampler itself drew with, such as vLLM's; ``age``: optimizer steps since then.
    sampler_topk_ids, sampler_topk_logps: ``[B, T, K]``: the sampler's most likely tokens, most likely first, and their log-probabilities.
    hidden: ``[B, T, D]``: the feature that made the logits from which the token was drawn.
    topk_ids, topk_logits: ``[B, T, K]``: the K largest raw logits, largest first, with their ids.
    logsumexp: ``[B, T]``: over the full vocabulary, of logits divided by ``loss_temperature``.
    action_logits: ``[B, T]``: raw logit of the sampled token.
    vocab_size: V.
    weight, exp_avg, exp_avg_sq: ``[V, D]``: the last layer's weight, and Adam's moments of it.
    optimizer: the one of the coming step, as in ``dict(kind="adamw", learning_rate=1e-6)``; ``kind`` is ``sgd``, ``adam``, ``adamw`` or
        ``adamw_kept_and_rejected``, and ``beta1``, ``beta2``, ``eps``, ``weight_decay``, ``max_grad_norm`` (0 is off) and ``steps_taken`` may follow, with torch's defaults.
        Masks and weights need it, but for those whose ``traits`` have ``NO_OPTIMIZER``.
    step, max_steps: the optimizer's step, from 0, and how many the run has.
    iteration: how often this rollout was used before; 0 is on policy.
    seed: the run's; random choices of components follow from it and ``step``.
    sampling_temperature, sampling_top_k, sampling_top_p: the sampler's; 0 and 1 are off.
    loss_temperature: what logits are divided by in ``logps``.
    reduction: how losses become one number: ``completion_mean`` (TRL's ``grpo``), ``fixed_length`` (``dr_grpo``), ``token_mean`` (``bnpo``, ``dapo``) or
        ``completion_sum`` (``luspo``).
    denominator: what the reduction counts after masking: ``kept`` tokens or the ``original`` ones.
    max_completion_length: the limit, tokens; T without it.
    stream: the CUDA stream on which arrays on a device are ready and components work, as ``torch.cuda.current_stream().cuda_stream``; without it the default
        stream. The per-thread default stream (2) is taken as the default one, which waits for those of all threads.

    Each argument is an attribute too; one that was not given is ``None``.

    Raises ``TypeError`` for what is no array, ``ValueError`` for a wrong shape, type, device or number: which argument, what it is, what it must be.
    """

    def __init__(
        self,
        completion_ids: Array,
        completion_mask: Array,
        logps: Array,
        advantages: Optional[Array] = None,
        *,
        group_size: int = 1,
        rewards: Optional[Array] = None,
        truncated: Optional[Array] = None,
        old_logps: Optional[Array] = None,
        ref_logps: Optional[Array] = None,
        entropy: Optional[Array] = None,
        losses: Optional[Array] = None,
        dloss_dlogp: Optional[Array] = None,
        sampler_logps: Optional[Array] = None,
        sampler_topk_ids: Optional[Array] = None,
        sampler_topk_logps: Optional[Array] = None,
        age: Optional[int] = None,
        hidden: Optional[Array] = None,
        topk_ids: Optional[Array] = None,
        topk_logits: Optional[Array] = None,
        logsumexp: Optional[Array] = None,
        action_logits: Optional[Array] = None,
        vocab_size: Optional[int] = None,
        weight: Optional[Array] = None,
        exp_avg: Optional[Array] = None,
        exp_avg_sq: Optional[Array] = None,
        optimizer: Optional[Mapping[str, Any]] = None,
        step: int = 0,
        max_steps: int = 1,
        iteration: int = 0,
        seed: int = 0,
        sampling_temperature: float = 1.0,
        sampling_top_k: int = 0,
        sampling_top_p: float = 1.0,
        loss_temperature: float = 1.0,
        reduction: str = "completion_mean",
        denominator: str = "kept",
        max_completion_length: Optional[int] = None,
        stream: Optional[int] = None,
    ) -> None:
        fields = {name: value for name, value in locals().items() if name != "self"}
        self._native = _native.Batch(fields)
        self._fields: dict[str, Any] = fields

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        batch, tokens = self._native.shape
        return batch, tokens

    @property
    def inputs(self) -> frozenset[str]:
        """Which optional inputs it holds, by the names of ``Mask.inputs``."""
        return frozenset(self._native.inputs)

    @property
    def copies(self) -> dict[str, int]:
        """Which of the arrays that were given were copied, and how many bytes each took; the others are read where they lie."""
        given = {name for name, value in self._fields.items() if value is not None}
        return {name: copied for name, _, copied in self._native.slots() if copied and name in given}

    def replace(self, **changes: Any) -> "Batch":
        """Another batch with these arguments in place of its own."""
        return Batch(**{**self._fields, **changes})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in Batch.__init__.__annotations__:
            raise AttributeError(f"`Batch` has no `{name}`")
        return self._fields.get(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._fields]

    def __repr__(self) -> str:
        batch, tokens = self.shape
        held = "".join(f", {name}" for name in sorted(self.inputs))
        return f"Batch({batch} completions of {tokens} tokens, step {self.step}{held})"


def load_batch(path: "str | os.PathLike[str]") -> Batch:
    """Reads a batch file, such as ``host train --dump-batches`` writes; its arrays are numpy's.

    Raises ``FileNotFoundError``, and ``CapoError`` for a file that is no batch.
    """
    batch = Batch.__new__(Batch)
    batch._native, batch._fields = _native.Batch.read(os.fspath(path))
    return batch


def save_batch(path: "str | os.PathLike[str]", batch: Batch) -> None:
    """Writes a batch file, whole or not at all: for ``replay``, ``host replay`` and reports of errors.

    Raises ``ValueError`` for a batch whose arrays lie on a GPU, or that knows no optimizer.
    """
    batch._native.write(os.fspath(path))
