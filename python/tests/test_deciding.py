"""Masks in order, then weights in order, each on the tokens that the earlier ones kept: in `decide`, in TRL, and in ``host replay``."""

import subprocess
import sys
from pathlib import Path

import capo_rl
import numpy as np
import pytest

from conftest import CASES, NOT_FINITE, WEIGHTS, batches, mask_of, replayed_weights

#: The first weight's factor is at most e^20.
HUGE = [{"rollout_is_threshold": 1e9}] * 5


def batch(log_ratio=None):
    """Four completions of up to eight tokens. The trainer's log-probabilities exceed the sampler's by `log_ratio`."""
    random = np.random.default_rng(0)
    mask = np.arange(8) < np.array([8, 5, 8, 6])[:, None]
    old, sampler = (np.where(mask, np.log(random.uniform(0.5, 0.55, (4, 8))), 0).astype(np.float32) for _ in range(2))
    if log_ratio is not None:
        old, sampler = np.where(mask, -0.1, 0).astype(np.float32), np.where(mask, -0.1 - log_ratio, 0).astype(np.float32)
    advantages = random.normal(size=4).astype(np.float32)
    context = capo_rl.RolloutContext(sampler_logps=sampler)
    optimizer = capo_rl.Optimizer("adamw", learning_rate=1e-3)
    ids = random.integers(3, 30, (4, 8))
    return capo_rl.Batch(ids, mask, old, advantages, group_size=4, rewards=advantages, old_logps=old, rollout_context=context, optimizer=optimizer)


def made(components):
    return [capo_rl.Weight("masks.tis", **keys) for keys in components]


def test_a_later_weight_sees_the_kept_tokens_as_in_host(host, tmp_path):
    of, file = batch(), tmp_path / "batch.safetensors"
    capo_rl.save_batch(file, of)
    ended, expected = replayed_weights(host, tmp_path, file, WEIGHTS)
    assert ended.returncode == 0, ended.stderr
    token_mask, weights, records = capo_rl.decide(of, weights=made(WEIGHTS))
    assert token_mask.tobytes() == expected["token_mask"].tobytes() and weights.tobytes() == expected["weights"].tobytes()
    # The formula in numpy.
    ratio = np.exp(of.old_logps - of.rollout_context.sampler_logps)
    first = np.where((ratio < 0.95) | (ratio > 1.05), 0, ratio) * of.completion_mask
    left, second = first > 0, np.minimum(ratio, 2)
    assert 0 < left.sum() < of.completion_mask.sum() and np.array_equal(token_mask, left)
    assert weights == pytest.approx(first * second / second[left].mean(), rel=1e-6)
    tokens = of.completion_mask.sum()
    assert records == {"masks.tis/mean": pytest.approx(first.sum() / tokens), "masks.tis#2/mean": pytest.approx(1.0)}, "over the tokens that reached each"


def test_masks_and_weights_see_the_tokens_that_earlier_ones_kept():
    of = batch()
    ratio = lambda low, high: capo_rl.Mask("masks.ratio-range", low=low, high=high, policies="old/sampler")
    token_mask, weights, records = capo_rl.decide(of, [ratio(0.95, 1e3), ratio(1e-3, 1.05)], capo_rl.Weight("masks.tis", rollout_is_batch_normalize=True))
    by_hand, _ = ratio(0.95, 1.05)(of)
    assert np.array_equal(token_mask, by_hand) and weights[token_mask == 1].mean() == pytest.approx(1) and not weights[token_mask == 0].any()
    rates = records["masks.ratio-range/rejection_rate"], records["masks.ratio-range#2/rejection_rate"]
    assert min(rates) > 0 and sum(rates) == pytest.approx(1 - token_mask.sum() / of.completion_mask.sum()), "each of its own tokens"
    token_mask, weights, records = capo_rl.decide(of)
    assert np.array_equal(token_mask, of.completion_mask) and np.array_equal(weights, of.completion_mask) and not records


def test_refuses_weights_that_are_not_finite_as_host_does(host, tmp_path):
    of, file = batch(log_ratio=30.0), tmp_path / "batch.safetensors"
    capo_rl.save_batch(file, of)
    ended, _ = replayed_weights(host, tmp_path, file, HUGE)
    with pytest.raises(capo_rl.CapoError) as raised:
        capo_rl.decide(of, weights=made(HUGE))
    assert str(raised.value) == "the weights of completion 0, token 0 multiply to more than 3.4028235e38 (lower one of them)"
    assert ended.returncode == 2 and str(raised.value) in ended.stderr
    _, weights, _ = capo_rl.decide(of, weights=made(HUGE[:4]))
    assert np.isfinite(weights).all() and weights.max() > 1e34


def test_trl_refuses_a_product_that_is_not_finite(tmp_path):
    pytest.importorskip("trl", reason="trl is not installed")
    words = ["masks=", "weights=huge", "steps=1"]
    ended = subprocess.run([sys.executable, Path(__file__).with_name("tiny_trl.py"), "run", *words], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 1 and f"capo_rl.CapoError: the weights of completion 0, token 0 {NOT_FINITE}" in ended.stderr, ended.stderr[-3000:]


def test_the_end_of_a_step_reaches_masks_and_weights(tmp_path):
    """`step_end` tells each component what it would be told by its own method."""
    file = batches(CASES[0])[0]
    together, alone, of = mask_of(CASES[0]), mask_of(CASES[0]), capo_rl.load_batch(file)
    decision = capo_rl.decide(of, together)
    assert capo_rl.step_end(of, decision, together) == {}
    token_mask, _ = alone(of)
    alone.step_end(of, token_mask)
    assert np.array_equal(token_mask, decision.token_mask) and together.state_dict() == alone.state_dict()
    assert together.state_dict() != mask_of(CASES[0]).state_dict(), "it learned of the step"
    with pytest.raises(ValueError, match="`weights` has shape"):
        capo_rl.step_end(of, decision._replace(weights=np.ones((1, 1), np.float32)), together)


def test_makes_components_once_and_checks_their_kind():
    weight = capo_rl.Weight("masks.tis")
    with pytest.raises(ValueError, match="component `masks.tis` is given twice \\(make one for each place\\)"):
        capo_rl.decide(batch(), weights=[weight, weight])
    with pytest.raises(TypeError, match="`masks.tis` is an id \\(make `Weight\\('masks.tis'\\)` once, and give it at each step\\)"):
        capo_rl.decide(batch(), weights=["masks.tis"])
    with pytest.raises(ValueError, match="Weight\\('masks.tis'\\) is no Mask"):
        capo_rl.decide(batch(), [capo_rl.Weight("masks.tis")])
    with pytest.raises(ValueError, match="component `masks.tis` asks for ROLLOUT_CONTEXT, which the batch does not hold"):
        capo_rl.decide(batch().replace(rollout_context=None), weights=capo_rl.Weight("masks.tis"))


def test_trl_applies_weights_as_host_does(host, tmp_path):
    pytest.importorskip("trl", reason="trl is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    words = ["masks=", "weights=left", "iterations=2", "steps=2", "lr=1e-1", f"batches={tmp_path / 'seen'}"]
    ended = subprocess.run([sys.executable, Path(__file__).with_name("tiny_trl.py"), "run", *words], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    decisions = torch.load(tmp_path / "run.0", weights_only=False)["decisions"]
    dropped = 0
    for number, (token_mask, weights) in enumerate(decisions):
        file = tmp_path / f"seen.{number}.safetensors"
        ended, expected = replayed_weights(host, tmp_path, file, [keys | {"policies": "trainer/old"} for keys in WEIGHTS])
        assert ended.returncode == 0, ended.stderr
        assert np.array_equal(token_mask.numpy(), expected["token_mask"]) and weights.numpy().tobytes() == expected["weights"].tobytes(), number
        dropped += int((capo_rl.load_batch(file).completion_mask - expected["token_mask"]).sum())
    assert len(decisions) == 2 and dropped > 0, "else it shows nothing"
