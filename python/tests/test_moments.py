"""Moments that bitsandbytes keeps in 8 bits, and steps that are governed with them, against torch's; and the warning for an optimizer without moments."""

import capo_rl
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from capo_rl._layer import optimizer_state  # noqa: E402
from capo_rl._moments import adam_moments  # noqa: E402
from capo_rl._proposal import Proposal, groups_of  # noqa: E402
from capo_rl.torch import Governed, kl_divergence  # noqa: E402


def trained(make, steps):
    """A layer of 73 x 100 weights after steps with `auto`: the scales, the last step, and the state of the layer. 7,300 is not a multiple of 256."""
    torch.manual_seed(0)
    weight, inputs, labels = torch.nn.Parameter(torch.randn(73, 100) / 10), torch.randn(64, 100), torch.arange(64)
    inner, before, scales = make([weight]), [], []
    control = capo_rl.StepControl("governor.kl", target="auto")
    optimizer = Governed(inner, control, measure=lambda _: kl_divergence(before[-1], inputs @ weight.T).mean())
    for _ in range(steps):
        logits = inputs @ weight.T
        before.append(logits.detach())
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, labels).backward()
        proposal = Proposal(inner, groups_of(inner, None), alignment=True)
        optimizer.step()
        scales.append(optimizer.records["governor.kl/scale"])
    return scales, proposal, optimizer_state(inner, weight)


def test_moments_in_8_bits_agree_with_torchs():
    """The alignment compares the gradients with the moments, the estimate squares the changes with them, and masks read the head's moments."""
    optim = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed").optim
    scales, proposal, state = trained(lambda weights: torch.optim.AdamW(weights, lr=1e-2), 15)
    scales_8, proposal_8, state_8 = trained(lambda weights: optim.AdamW(weights, lr=1e-2, optim_bits=8, min_8bit_size=1024), 15)
    assert scales_8 == pytest.approx(scales, rel=0.01)
    assert proposal_8.alignment() == pytest.approx(proposal.alignment(), abs=0.01)
    assert proposal_8.fisher() == pytest.approx(proposal.fisher(), rel=0.05)
    for name in ("exp_avg", "exp_avg_sq"):
        assert (state_8[name] - state[name]).norm() < 0.05 * state[name].norm(), name


def test_warns_of_optimizers_without_moments():
    with pytest.warns(capo_rl.CapoWarning, match="steps are not compared"):
        scales, proposal, _ = trained(lambda weights: torch.optim.Adagrad(weights, lr=1e-2), 3)
    assert proposal.alignment() is None and len(scales) == 3
    assert adam_moments({"sum": torch.ones(2)}, {"betas": (0.9, 0.99)}) is None
