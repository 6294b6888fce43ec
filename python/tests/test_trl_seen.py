"""What components are told of TRL's step, where TRL itself drops tokens or uses a rollout several times."""

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
        # Both uses are in one step, so the policy is the one that sampled.
        ("accumulate=2 rollouts=2", [0, 0, 0, 0]),
    ],
)
def test_how_often_a_rollout_was_used_before(folder, words, uses):
    assert launch(folder, "uses", "masks=", "controls=loose", "iterations=2", *words.split())["iterations"] == uses
