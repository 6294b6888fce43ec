"""What components learn about a step of TRL in which TRL itself drops tokens or uses a rollout several times."""

from types import SimpleNamespace

import pytest

from test_trl import launch, torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("seen")


@pytest.mark.parametrize(
    ("words", "uses"),
    [
        ("", [0, 1, 0, 1]),
        ("accumulate=2", [0, 1, 0, 1]),
        ("accumulate=2 per_rollout=2", [0, 0, 1, 1]),
        ("accumulate=2 mode=ahead", [0, 1, 0, 1]),
        # Both uses are in one step, so the policy is still the one that sampled.
        ("accumulate=2 rollouts=2", [0, 0, 0, 0]),
    ],
)
def test_components_see_earlier_uses_of_a_rollout(folder, words, uses):
    assert launch(folder, "uses", "masks=", "controls=loose", "iterations=2", *words.split())["iterations"] == uses


def test_a_second_pass_uses_the_entropy_threshold_of_the_first(folder):
    """Then the kept and the rejected gradients add up to TRL's gradient without a mask."""
    options = ("quantile=0.5", "steps=1", "ends=several")
    both = launch(folder, "both", "masks=truncated", "second_moment=kept_and_rejected", *options)["numbers"][0]
    plain = launch(folder, "plain", "masks=", *options)["numbers"][0]
    assert both["capo/rejection_rate"] == 0.25 and both["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("loss", ["grpo", "vespo"])
def test_components_see_trls_corrected_advantages(loss):
    """VESPO's weights contain the correction."""
    from capo_rl._trl_batch import Seen

    trainer = SimpleNamespace(loss_type=loss, processing_class=SimpleNamespace(pad_token_id=0, eos_token_id=1))
    ids, logps = torch.tensor([[3, 1], [4, 5]]), torch.zeros(2, 2)
    inputs = {"completion_ids": ids, "completion_mask": torch.ones_like(ids), "advantages": torch.tensor([1.0, -2.0]), "capo_rows": torch.arange(2)}
    for ratio in (torch.tensor([[0.0], [0.5]]), torch.tensor([[1.0, 0.0], [0.5, 2.0]])):
        found = Seen(trainer, frozenset(), 1, None, False).arrays(inputs | {"importance_sampling_ratio": ratio}, logps, None)["advantages"]
        bare = torch.tensor([[1.0, 1.0], [-2.0, -2.0]])
        assert torch.equal(found, bare if loss == "vespo" else bare * ratio)
