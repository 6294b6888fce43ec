"""What a step control is told of a step's gradient in TRL: its norm is that of the loss whose weights `governor.kl` counts with."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("trl", reason="trl is not installed")

from capo_rl import _control  # noqa: E402

from test_trl_broken import trainer  # noqa: E402, F401


def factors(batch, weights):
    """`[B, T]`: the derivative of the reduced loss of −A log p by each token's log-probability, as plugins/governor/src/slope.rs has it."""
    mask, advantages = torch.as_tensor(batch.completion_mask).float(), torch.as_tensor(batch.advantages)
    counted = mask * (weights != 0) if batch.denominator == "kept" else mask
    divisors = {
        "completion_mean": len(mask) * counted.sum(1, keepdim=True).clamp(min=1),
        "fixed_length": torch.tensor(len(mask) * batch.sampling.max_completion_length),
        "token_mean": counted.sum(),
        "completion_sum": torch.tensor(len(mask)),
    }
    return -advantages * weights * mask / divisors[batch.reduction]


def logps_of(run, inputs):
    """`[B, T]` of the micro-batches' rows, with their tokens."""
    for part in inputs:
        tokens = torch.cat([part["prompt_ids"], part["completion_ids"]], 1)
        attention = torch.cat([part["prompt_mask"], part["completion_mask"]], 1)
        logps, *_ = run._get_per_token_logps_and_entropies(run.model, tokens, attention, part["completion_ids"].shape[1])
        yield from zip(part["completion_ids"] * part["completion_mask"], part["advantages"], logps, strict=True)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "bnpo", "dapo"])
@pytest.mark.parametrize("clip", [1.0, 0.01])
def test_the_gradients_norm_is_that_of_the_reduced_loss(trainer, loss, clip, monkeypatch):  # noqa: F811
    seen, inputs, controlled = [], [], _control.controlled

    def watched(controls, proposal, batch, weights):
        seen.append((proposal.gradient_norm(), batch, torch.as_tensor(weights), inputs.copy(), {**proposal._before}))
        inputs.clear()
        return controlled(controls, proposal, batch, weights)

    monkeypatch.setattr(_control, "controlled", watched)
    run = trainer(step_controls=["governor.kl"], loss_type=loss, max_grad_norm=clip, max_steps=2)
    compute = run._compute_loss
    run._compute_loss = lambda model, part: inputs.append(part) or compute(model, part)
    run.train()
    assert len(seen) == 2
    for norm, batch, weights, parts, before in seen:
        for parameter, value in before.items():
            parameter.data.copy_(value)
        run.model.zero_grad()
        factor, ids = factors(batch, weights), torch.as_tensor(batch.completion_ids).long() * torch.as_tensor(batch.completion_mask)
        reduced = torch.zeros(())
        for tokens, advantage, logps in logps_of(run, parts):
            of = range(len(ids))
            row = next(b for b in of if torch.equal(ids[b, : len(tokens)], tokens) and torch.isclose(torch.as_tensor(batch.advantages)[b, 0], advantage))
            reduced = reduced + (factor[row, : len(tokens)] * logps).sum()
        reduced.backward()
        assert norm == pytest.approx(
            math.hypot(*(float(parameter.grad.norm()) for parameter in run.model.parameters() if parameter.grad is not None)), rel=1e-4
        )
