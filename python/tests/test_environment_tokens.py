"""No mask and no weight reads the tokens of an environment, whose `completion_mask` is 0 between tokens of the model."""

import capo_rl
import numpy as np
import pytest
from capo_rl.batch import nested

OFFERED = [each for each in capo_rl.Plugins().describe()["components"] if each["point"] in ("mask", "weight")]
# Keys with which components that seldom reject drop some of these tokens, and keys that some components need.
KEYS = {
    "capo.curvature": {"fisher_threshold": 0.1},
    "drcapo.curvature": {"fisher_threshold": 0.1},
    "reincapo.curvature": {"fisher_threshold": 0.1},
    "masks.clip-cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": -1.0},
    "masks.kl-cov": {"kl_cov_ratio": 0.3},
    "masks.ratio-range": {"high": 1.1},
    "masks.probability-quantile": {"share": 0.3},
    "masks.probability-floor": {"min_probability": 0.2},
    "masks.off-policy-sequence": {"off_policy_mask_threshold": 1e-3},
    "masks.trm": {"rollout_rs_threshold": 0.05},
    "masks.mis": {"level": "token", "clip_max": 1.2},
    "masks.m2po": {"m2_threshold": 0.1},
}
ROWS, TOKENS, WIDTH, TOP, VOCABULARY = 4, 24, 8, 6, 32


def batch(mask, of_others):
    """Random numbers. Those of the model's tokens depend on the row and on the place among these tokens; `of_others` draws the rest."""
    place = np.where(mask == 1, mask.cumsum(1) - 1, 0)
    draw, other = np.random.default_rng(1), np.random.default_rng(of_others)
    row = np.arange(ROWS)[:, None]

    def of(make, shape=()):
        own, rest = make(draw, (ROWS, TOKENS, *shape)), make(other, (*mask.shape, *shape))
        return np.where((mask == 1).reshape(*mask.shape, *(1 for _ in shape)), own[row, place], rest)

    normal = lambda scale=1.0: lambda draw, shape: (scale * draw.normal(size=shape)).astype(np.float32)
    logps = of(lambda draw, shape: -draw.exponential(1.0, size=shape).astype(np.float32))
    logits = np.sort(of(normal(3), (TOP,)), axis=-1)[..., ::-1].copy()
    ids = lambda draw, shape: draw.permuted(np.broadcast_to(np.arange(VOCABULARY, dtype=np.uint32), (*shape[:2], VOCABULARY)), axis=-1)[..., :TOP]
    top = of(ids, (TOP,)).astype(np.uint32)
    return nested(
        {
            "completion_ids": top[..., 1].copy(),
            "completion_mask": mask,
            "logps": logps,
            "advantages": of(normal()),
            "old_logps": logps + of(normal(0.3)),
            "sampler_logps": logps + of(normal(0.4)),
            "entropy": of(lambda draw, shape: draw.uniform(0, 3, size=shape).astype(np.float32)),
            "hidden": of(normal(), (WIDTH,)),
            "topk_ids": top,
            "topk_logits": logits,
            "logsumexp": logits[..., 1] - logps,
            "action_logits": logits[..., 1].copy(),
            "vocab_size": VOCABULARY,
            "sampler_topk_ids": top,
            "sampler_topk_logps": (logits - logits.max(-1, keepdims=True) - 2).astype(np.float32),
            "truncated": np.array([0, 1, 0, 0], np.uint8),
            "rewards": np.array([1, 0, 0, 1], np.float32),
            "group_size": 4,
            "optimizer": {"kind": "sgd", "learning_rate": 0.1},
        }
    )


def rows_with_turns():
    """Turns of the model of many lengths with tokens of the environment between them, and a row that ends with such tokens."""
    mask = np.zeros((ROWS, TOKENS), np.uint8)
    for row, turns in enumerate([[(0, 5), (9, 14), (15, 24)], [(0, 1), (8, 20)], [(0, 12)], [(0, 3), (4, 5), (20, 22)]]):
        for start, end in turns:
            mask[row, start:end] = 1
    return mask


@pytest.mark.parametrize("offered", OFFERED, ids=[each["id"] for each in OFFERED])
def test_components_read_only_the_models_tokens(offered):
    mask = rows_with_turns()
    lengths = mask.sum(1)
    packed = (np.arange(lengths.max()) < lengths[:, None]).astype(np.uint8)
    component = {"mask": capo_rl.Mask, "weight": capo_rl.Weight}[offered["point"]]

    def decided(mask, of_others):
        """The decisions at the model's tokens, and whether all other tokens are left out."""
        values, _ = component(offered["id"], **KEYS.get(offered["id"], {}))(batch(mask, of_others))
        return values[mask == 1], values[mask == 0]

    whole, rest = decided(mask, 1)
    assert not rest.any(), "what is not the model's is not kept"
    assert np.array_equal(decided(mask, 2)[0], whole), "whatever the others wrote"
    if offered["id"] != "masks.random":
        assert np.allclose(decided(packed, 1)[0], whole, rtol=1e-5), "as if they had written nothing"
    if offered["point"] == "mask":
        assert 0 < whole.sum() < len(whole), whole.mean()
