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
        #: The place of each response token among all tokens of the batch.
        self.tokens = ((ends - self.lengths)[:, None] + steps)[self.inside]
        self.responses = ids.values()[self.tokens.to(ids.values().device)]

    def of(self, field: Tensor) -> Tensor:
        """The values of a field at response tokens, flat."""
        if field.is_nested:
            return field.values()
        return field[:, : self.inside.shape[1]][self.inside.to(field.device)]

    def of_outputs(self, output: Tensor) -> Tensor:
        """A model's outputs for response tokens: each output belongs to the token after it."""
        return output.values()[(self.tokens - 1).to(output.device)]

    def of_features(self, hidden: Tensor) -> Tensor:
        """The backbone's features for response tokens, of `[1, N, D]` without padding or `[b, longest, D]` with it."""
        if hidden.shape[0] == 1:
            packed = hidden[0]
        else:
            packed = hidden[(torch.arange(hidden.shape[1])[None] < self.sequences[:, None]).to(hidden.device)]
        return packed[(self.tokens - 1).to(hidden.device)]

    def padded(self, flat: Tensor) -> Tensor:
        """Flat tokens as `[b, T, ...]`, with zeros behind each row's tokens."""
        array = flat.new_zeros(*self.inside.shape, *flat.shape[1:])
        array[self.inside.to(flat.device)] = flat
        return array

    def to_outputs(self, array: Tensor) -> Tensor:
        """An array `[b, T]` over response tokens in the order of a model's outputs, flat; 1 for those of prompts."""
        flat = array.new_ones(int(self.sequences.sum()))
        flat[(self.tokens - 1).to(array.device)] = array[:, : self.inside.shape[1]][self.inside.to(array.device)]
        return flat

    def sums(self, field: Tensor) -> Tensor:
        """The sum of a field over each row."""
        return self.padded(self.of(field).float()).sum(1)

    def truncated(self, ends: list[int]) -> Tensor:
        """1 where a response's last token is not one of `ends`; zeros if `ends` is empty."""
        if not ends:
            return torch.zeros(len(self.lengths), dtype=torch.uint8)
        last = self.responses.cpu()[self.lengths.cumsum(0) - 1]
        return (~torch.isin(last, torch.tensor(ends, dtype=last.dtype)) | (self.lengths == 0)).to(torch.uint8)

    def keys(self, data: TensorDict) -> tuple[Tensor, Tensor]:
        """Two hashes for each row: of its prompt, and of its ids and advantages."""
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
    """The order of rows by prompt, then by contents: it does not depend on ranks."""
    by_content = contents.argsort(stable=True)
    return by_content[prompts[by_content].argsort(stable=True)]


def places(numbers: Tensor, rank: int) -> Tensor:
    """The places of a rank's rows, in the rank's own order."""
    own = (numbers >> 32 == rank).nonzero()[:, 0]
    return own[numbers[own].argsort()]
