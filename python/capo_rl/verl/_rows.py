"""The rows of a batch of verl, nested or padded, as flat tokens of responses and as padded arrays."""

from __future__ import annotations

import hashlib

import torch
from tensordict import TensorDict
from torch import Tensor


class Rows:
    """Which tokens of a batch are responses.

    `input_ids` is nested, prompt and response in a row; other fields are nested or padded on the right.
    """

    def __init__(self, data: TensorDict) -> None:
        ids = data["input_ids"]
        self.lengths = _lengths(data)
        self.sequences = ids.offsets().diff().cpu()
        ends = self.sequences.cumsum(0)
        steps = torch.arange(int(self.lengths.max()))[None]
        self.inside = steps < self.lengths[:, None]
        #: Of each token of a response, where it stands among all tokens of the batch.
        self.tokens = ((ends - self.lengths)[:, None] + steps)[self.inside]
        self.responses = ids.values()[self.tokens.to(ids.values().device)]

    def of(self, field: Tensor) -> Tensor:
        """A field per response token, flat."""
        if field.is_nested:
            return field.values()
        return field[:, : self.inside.shape[1]][self.inside.to(field.device)]

    def of_outputs(self, output: Tensor) -> Tensor:
        """Of a model's output per token, which belongs to the token after, those of responses."""
        return output.values()[(self.tokens - 1).to(output.device)]

    def of_features(self, hidden: Tensor) -> Tensor:
        """The same of the backbone's features: `[1, N, D]` without padding, `[b, longest, D]` with it."""
        if hidden.shape[0] == 1:
            packed = hidden[0]
        else:
            packed = hidden[(torch.arange(hidden.shape[1])[None] < self.sequences[:, None]).to(hidden.device)]
        return packed[(self.tokens - 1).to(hidden.device)]

    def padded(self, flat: Tensor) -> Tensor:
        """`[b, T, ...]` of flat tokens, zeros behind them."""
        array = flat.new_zeros(*self.inside.shape, *flat.shape[1:])
        array[self.inside.to(flat.device)] = flat
        return array

    def to_outputs(self, array: Tensor) -> Tensor:
        """Of an array `[b, T]` per response token, what belongs to a model's outputs, flat; 1 for those of prompts."""
        flat = array.new_ones(int(self.sequences.sum()))
        flat[(self.tokens - 1).to(array.device)] = array[:, : self.inside.shape[1]][self.inside.to(array.device)]
        return flat

    def sums(self, field: Tensor) -> Tensor:
        """One number a row."""
        return self.padded(self.of(field).float()).sum(1)

    def truncated(self, ends: list[int]) -> Tensor:
        """1 where a response's last token is none of those that end one; zeros where no such is known."""
        if not ends:
            return torch.zeros(len(self.lengths), dtype=torch.uint8)
        last = self.responses.cpu()[self.lengths.cumsum(0) - 1]
        return (~torch.isin(last, torch.tensor(ends, dtype=last.dtype)) | (self.lengths == 0)).to(torch.uint8)

    def keys(self, data: TensorDict) -> tuple[Tensor, Tensor]:
        """Two numbers a row that follow from what is in it: of its prompt, and of all of it."""
        ids, advantages = data["input_ids"].values().cpu(), self.of(data["advantages"]).float().cpu()
        prompts, contents = [], []
        parts = zip(
            ids.split(self.sequences.tolist()),
            advantages.split(self.lengths.tolist()),
            self.lengths.tolist(),
            strict=True,
        )
        for row, given, length in parts:
            prompts.append(_digest(row[: len(row) - length]))
            contents.append(_digest(row, given))
        return torch.tensor(prompts), torch.tensor(contents)


def _lengths(data: TensorDict) -> Tensor:
    responses = data["responses"]
    if responses.is_nested:
        lengths: Tensor = responses.offsets().diff()
    else:
        lengths = data["attention_mask"][:, -responses.shape[1] :].sum(1)
    return lengths.cpu()


def _digest(*arrays: Tensor) -> int:
    data = b"".join(array.contiguous().numpy().tobytes() for array in arrays)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def order(prompts: Tensor, contents: Tensor) -> Tensor:
    """Rows by prompt, then by what else is in them: the same for any number of ranks, and for any order of theirs."""
    by_content = contents.argsort(stable=True)
    return by_content[prompts[by_content].argsort(stable=True)]


def places(numbers: Tensor, rank: int) -> Tensor:
    """Where the rows of a rank are, in its own order."""
    own = (numbers >> 32 == rank).nonzero()[:, 0]
    return own[numbers[own].argsort()]
