"""Factors of the gradient against losses with masks and weights that are applied by hand."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from capo_rl._decision import gradient_factor, scale_gradient  # noqa: E402

SHAPE = (5, 7)


def arrays():
    generator = torch.Generator().manual_seed(3)
    mask = (torch.arange(7)[None] < torch.tensor([7, 4, 1, 6, 2])[:, None]).to(torch.uint8)
    # One completion loses all its tokens.
    token_mask = mask * (torch.rand(SHAPE, generator=generator) > 0.3).to(torch.uint8) * torch.tensor([1, 1, 0, 1, 1], dtype=torch.uint8)[:, None]
    weights = token_mask * torch.rand(SHAPE, generator=generator)
    logps = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    slopes = torch.randn(SHAPE, generator=generator, dtype=torch.float64)
    return mask, token_mask, weights, logps, slopes


def reduced(losses, counted, reduction):
    if reduction == "completion_mean":
        return (losses.sum(1) / counted.sum(1).clamp(min=1)).mean()
    return losses.sum() / (counted.sum() if reduction == "token_mean" else 5 * 7)


@pytest.mark.parametrize("reduction", ["completion_mean", "token_mean", "fixed_length", "completion_sum"])
@pytest.mark.parametrize("denominator", ["kept", "original"])
def test_factors_equal_masked_losses(reduction, denominator):
    mask, token_mask, weights, logps, slopes = arrays()
    by_hand, hooked, rest = (logps.clone().requires_grad_() for _ in range(3))
    reduced(weights * slopes * by_hand**2, token_mask if denominator == "kept" else mask, reduction).backward()
    factor = gradient_factor(mask, token_mask, weights, reduction, denominator)
    for leaf, multiplied in ((hooked, factor), (rest, 1 - factor)):
        value = leaf * 1
        scale_gradient(value, multiplied)
        reduced(mask * slopes * value**2, mask, reduction).backward()
    assert (hooked.grad - by_hand.grad).abs().max() < 1e-7
    whole = logps.clone().requires_grad_()
    reduced(mask * slopes * whole**2, mask, reduction).backward()
    assert (hooked.grad + rest.grad - whole.grad).abs().max() < 1e-12, "what was kept and what was rejected are the whole"


def test_dropped_tokens_have_no_gradient():
    leaf = torch.tensor([1.0, 0.0], requires_grad=True)
    value = leaf * 1
    scale_gradient(value, torch.tensor([1.0, 0.0]))
    value.log().sum().backward()
    assert leaf.grad.tolist() == [1.0, 0.0]
