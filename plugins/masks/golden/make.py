"""Makes golden.json beside this file: what the public implementations decide on random batches.

    pip install torch==2.9.1 && python make.py SOURCES

SOURCES holds the sources as their projects publish them, each in a folder of its own:

    verl-0.9.1   trl-1.16.0             the unpacked wheels
    prime-rl     559b44772              github.com/PrimeIntellect-ai/prime-rl
    slime        624b824a8              github.com/THUDM/slime
    RL           7ea279abf              github.com/NVIDIA-NeMo/RL
    AReaL        4aef98d8d              github.com/inclusionAI/AReaL
    Stable-RL    c6af1d119              github.com/sail-sg/Stable-RL
    AR-Lopti     cbeb33337              github.com/zhyang2226/AR-Lopti

Functions are read out of their files and run as they are, without the packages around them, so that neither GPUs nor engines are
needed; what they decide is taken from their own variables when they return. Nothing of them is written here: the file that comes out
holds the batches, the decisions and the derivatives alone. `clip_cov` draws with torch, so its cases say which tokens may go and how many.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
from sources import (
    areal,
    correction,
    lopti,
    losses,
    mis,
    opsm,
    prime,
    slime,
    stable,
    stable_masks,
    trl,
    trl_ratio,
    variables,
)

HERE = Path(__file__).parent
COMPLETIONS, TOKENS, GROUP = 6, 10, 2
VOCABULARY, TOP = 5, 2


class Config(dict):
    """Settings by attribute or by `get`."""

    __getattr__ = dict.get


def batch(seed):
    """Padding, a group without advantages, most ratios near 1 and some extreme."""
    draw = torch.Generator().manual_seed(seed)
    shape = (COMPLETIONS, TOKENS)
    normal = lambda: torch.randn(shape, generator=draw)
    uniform = lambda: torch.rand(shape, generator=draw)
    old = -(uniform() * 3.0) ** 2 - 1e-3
    away = lambda logps: torch.where(uniform() < 0.2, normal() * 1.5, normal() * 0.05) + logps
    near = lambda logps: -away(logps).abs() - 1e-4
    sampler, logps = near(old), near(old)
    sampler[0, 1], sampler[3, 2] = -30.0, -1e-4
    old[3, 2] = -26.0
    advantages = torch.randn((COMPLETIONS, 1), generator=draw).expand(shape).clone()
    advantages[2 : 2 + GROUP] = 0.0
    lengths = torch.tensor([TOKENS, 4, 7, TOKENS, 1, 8])
    mask = (torch.arange(TOKENS) < lengths[:, None]).int()
    arrays = {"logps": logps, "old_logps": old, "sampler_logps": sampler, "advantages": advantages, "entropy": uniform() * 3}
    # Padding is 0, as a trainer leaves it; four digits, so that the file is small.
    rounded = {name: (array * 1e4).round() / 1e4 * mask for name, array in arrays.items()}
    logits = torch.randn((*shape, VOCABULARY), generator=draw) * 2
    # Another policy's most likely tokens, as an engine returns them.
    other = torch.where(uniform()[..., None] < 0.5, logits, logits + torch.randn(logits.shape, generator=draw))
    top_logps, top_ids = other.log_softmax(-1).topk(TOP)
    digits = lambda array: (array * 1e4).round() / 1e4 * mask[..., None]
    layer = {"logits": digits(logits), "top_ids": top_ids * mask[..., None], "top_logps": digits(top_logps)}
    return SimpleNamespace(**rounded, **layer, mask=mask, lengths=lengths.tolist())


def rows(batch, array):
    return [array[b, : batch.lengths[b]] for b in range(COMPLETIONS)]


def dppo(kind, low, high, against):
    def run(batch):
        config = Config(clip_ratio=0.2, clip_ratio_low=low, clip_ratio_high=high, global_batch_info={})
        function = getattr(losses, f"compute_policy_loss_{kind}")
        arguments = (getattr(batch, against), batch.logps, batch.advantages, batch.mask)
        return variables(function, *arguments, config=config)["valid_mask"]

    return run


def dppo_top_k(kind, low, high):
    def run(batch):
        kl, tv = stable.compute_topk_kl(batch.logits, batch.top_ids.long(), batch.top_logps)
        config = Config(clip_ratio=0.2, clip_ratio_low=low, clip_ratio_high=high)
        logps = {"rollout_log_prob": batch.sampler_logps, "old_log_prob": batch.old_logps, "log_prob": batch.logps}
        arrays = logps | {"advantages": batch.advantages, "response_mask": batch.mask, "topk_kl": kl, "topk_tv": tv}
        return stable_masks._compute_token_mask_for_policy_loss(**arrays, config=config, loss_mode=kind)

    return run


def prime_rl(function, config):
    def run(batch):
        keep = torch.zeros(COMPLETIONS, TOKENS)
        for b, length in enumerate(batch.lengths):
            names = ("trainer_logprobs", "logps"), ("inference_logprobs", "sampler_logps"), ("advantages", "advantages")
            inputs = {name: getattr(batch, array)[b, :length] for name, array in names}
            inputs = SimpleNamespace(**inputs, loss_mask=torch.ones(length, dtype=torch.bool), loss_weights=None)
            keep[b, :length] = variables(getattr(prime, function), inputs, config)["keep_mask"]
        return keep

    return run


def icepop(low, high):
    def run(batch):
        flat = variables(
            slime.icepop_function,
            SimpleNamespace(tis_clip_low=low, tis_clip=high),
            pg_loss=torch.ones(sum(batch.lengths)),
            train_log_probs=rows(batch, batch.old_logps),
            rollout_log_probs=rows(batch, batch.sampler_logps),
            loss_masks=None,
        )["ice_weight"]
        weights = torch.zeros(COMPLETIONS, TOKENS)
        weights[batch.mask.bool()] = flat
        return weights

    return run


def slime_mis(**settings):
    args = {"tis_lower_bound": None, "tis_upper_bound": 2.0, "tis_level": "token", "tis_mode": "truncate", "use_tis": True}
    args |= {"use_rs": True, "rs_veto_threshold": None, "tis_batch_normalize": False} | settings

    def run(batch):
        arrays = {"train_log_probs": batch.old_logps, "rollout_log_probs": batch.sampler_logps, "loss_masks": batch.mask}
        lists = {name: rows(batch, array) for name, array in arrays.items()}
        _, masks, _ = mis.compute_mis_weights(SimpleNamespace(**args), **lists)
        keep = torch.zeros(COMPLETIONS, TOKENS)
        keep[batch.mask.bool()] = torch.cat(masks)
        return keep

    return run


def rejection(name, threshold, of="logps"):
    return lambda batch: correction.compute_rollout_rejection_mask(
        getattr(batch, of) - batch.sampler_logps, batch.mask, name, threshold
    )[0]


def correction_weights(level, threshold, normalize=False):
    return lambda batch: correction.compute_rollout_correction_weights(
        batch.old_logps - batch.sampler_logps, batch.mask, level, threshold, normalize
    )[0]


def off_policy(threshold):
    return lambda batch: trl.get_off_policy_mask(
        batch.advantages[:, :1], batch.logps, batch.sampler_logps, batch.mask, threshold
    ).expand_as(batch.mask)


def opsm_mask(threshold):
    def run(batch):
        arrays = (batch.logps, batch.old_logps, batch.advantages, batch.mask)
        flat, _ = opsm.compute_opsm_mask(SimpleNamespace(opsm_delta=threshold), *(rows(batch, array) for array in arrays))
        keep = torch.zeros(COMPLETIONS, TOKENS)
        keep[batch.mask.bool()] = flat
        return keep

    return run


def high_entropy(share):
    one = SimpleNamespace(pad_across_processes=lambda values, **_: values, gather=lambda values: values)
    trainer = SimpleNamespace(accelerator=one)
    return lambda batch: trl.get_high_entropy_mask(trainer, batch.entropy, batch.mask, 1 - share)


def covariance(kind, **policy_loss):
    def run(batch):
        settings = {f"{kind}_ratio": None, "clip_cov_lb": None, "clip_cov_ub": None, "ppo_kl_coef": 1.0} | policy_loss
        config = Config(clip_ratio=0.2, policy_loss=Config(settings), global_batch_info={})
        function = getattr(losses, f"compute_policy_loss_{kind}")
        return variables(function, batch.old_logps, batch.logps, batch.advantages, batch.mask, config=config)

    return run


def clip_cov(**settings):
    return lambda batch: covariance("clip_cov", **settings)(batch)["corr"]


def kl_cov(share):
    def run(batch):
        keep = batch.mask.clone().flatten()
        keep[covariance("kl_cov", kl_cov_ratio=share)(batch)["large_cov_idxs"]] = 0
        return keep.view_as(batch.mask)

    return run


def reweighting(alpha):
    """On advantages of 1, where the reweighted advantage is the weight."""
    one = torch.ones(COMPLETIONS, TOKENS)
    return lambda batch: lopti.compute_reweight_advantage(one, batch.old_logps, "both_linear_normal", alpha, 1 - alpha, 1.0)


def m2po(threshold):
    return lambda batch: areal._apply_m2po_masking(batch.sampler_logps, batch.old_logps, batch.mask.bool(), threshold)


def slope(loss):
    """The derivative of a source's reduced loss by each token's log-probability."""

    def run(batch):
        moving = SimpleNamespace(**vars(batch) | {"logps": batch.logps.clone().requires_grad_()})
        loss(moving).backward()
        return moving.logps.grad

    return run


def verl_loss(name, old_logps, mode, weights=None):
    def run(batch):
        # The dual clip is no part of the published recipe.
        limit = {"clip_ratio_c": 1e9} if name == "vanilla" else {}
        config = Config(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, global_batch_info={}, **limit)
        old = getattr(batch, old_logps)
        weigh = {"rollout_is_weights": weights(batch)} if weights else {}
        function = getattr(losses, f"compute_policy_loss_{name}")
        return function(old, batch.logps, batch.advantages, batch.mask, mode, config, **weigh)[0]

    return run


def prime_rl_loss(batch):
    """Without its penalty on the distance to the sampler, which is no part of the mask."""
    config = SimpleNamespace(ipo_threshold=0.1, adv_tau=1.0, kl_tau=0.0)
    inputs = {"trainer_logprobs": batch.logps, "inference_logprobs": batch.sampler_logps, "advantages": batch.advantages}
    inputs = SimpleNamespace(**inputs, loss_mask=batch.mask.bool(), loss_weights=None)
    return prime.ipo_loss_fn(inputs, config).loss / batch.mask.sum()


def trl_loss(off_policy_mask_threshold=None, top_entropy_quantile=1.0, mask_truncated_completions=False, loss_type="grpo", **sampling):
    """`sampling` has what follows `vllm_importance_sampling_` in a setting's name. Completions as long as the batch are cut off."""

    def run(batch):
        off = {"aux_loss_enabled": False, "beta": 0.0, "_entropy_bonus_enabled": False}
        settings = {"loss_type": loss_type, "importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.2}
        settings |= {"off_policy_mask_threshold": off_policy_mask_threshold, "top_entropy_quantile": top_entropy_quantile}
        trainer = MagicMock(**off, **settings, use_vllm=bool(sampling), vllm_importance_sampling_correction=bool(sampling))
        trainer.accelerator.num_processes, trainer.current_gradient_accumulation_steps, trainer.args.delta = 1, 1, None
        trainer._get_per_token_logps_and_entropies = lambda *_, **__: (batch.logps, batch.entropy, None)
        trainer.get_off_policy_mask = trl.get_off_policy_mask
        trainer.get_high_entropy_mask = lambda *_: high_entropy(top_entropy_quantile)(batch)
        mask = batch.mask
        if mask_truncated_completions:
            mask = mask * (torch.tensor(batch.lengths) < TOKENS)[:, None]
        ids = torch.zeros(COMPLETIONS, TOKENS, dtype=torch.long)
        inputs = {"prompt_ids": ids, "prompt_mask": mask, "completion_ids": ids, "completion_mask": mask}
        inputs |= {"old_per_token_logps": batch.old_logps, "sampling_per_token_logps": batch.sampler_logps}
        inputs |= {"advantages": batch.advantages[:, 0], "num_items_in_batch": mask.sum()}
        if sampling:
            limits = sampling.get("clip_min"), sampling.get("clip_max", 3.0)
            inputs["importance_sampling_ratio"] = trl_ratio(batch, sampling["mode"], *limits)
        return trl._compute_loss(trainer, None, inputs)

    return run


PRIME_DPPO = SimpleNamespace(dppo_mask_low=0.1, dppo_mask_high=0.05, adv_tau=1.0, kl_tau=1e-3)
PRIME_IPO = SimpleNamespace(ipo_threshold=0.1, adv_tau=1.0, kl_tau=1e-3)
MASKS = [
    ("masks.dppo-tv", {"policies": "trainer/old"}, "verl dppo_tv", dppo("dppo_tv", 0.2, 0.2, "old_logps")),
    ("masks.dppo-tv", {"clip_ratio_low": 0.02, "clip_ratio_high": 0.05}, "verl dppo_tv", dppo("dppo_tv", 0.02, 0.05, "sampler_logps")),
    ("masks.dppo-tv", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.05}, "prime-rl default", prime_rl("default_loss_fn", PRIME_DPPO)),
    ("masks.dppo-kl", {"policies": "trainer/old"}, "verl dppo_kl", dppo("dppo_kl", 0.2, 0.2, "old_logps")),
    ("masks.dppo-kl", {"clip_ratio_low": 0.002, "clip_ratio_high": 0.05}, "verl dppo_kl", dppo("dppo_kl", 0.002, 0.05, "sampler_logps")),
    ("masks.dppo-topk-tv", {"clip_ratio": 0.05}, "Stable-RL dppo_topk_tv", dppo_top_k("dppo_topk_tv", 0.05, 0.05)),
    ("masks.dppo-topk-kl", {"clip_ratio_low": 0.001, "clip_ratio_high": 0.1}, "Stable-RL dppo_topk_kl", dppo_top_k("dppo_topk_kl", 0.001, 0.1)),
    ("masks.ipo", {}, "prime-rl ipo", prime_rl("ipo_loss_fn", PRIME_IPO)),
    ("masks.icepop", {}, "slime icepop", lambda batch: icepop(0.5, 5.0)(batch) > 0),
    ("masks.icepop", {"alpha": 0.9, "beta": 1.1}, "slime icepop", lambda batch: icepop(0.9, 1.1)(batch) > 0),
    ("masks.mis", {}, "TRL sequence_mask", lambda batch: trl_ratio(batch, "sequence_mask", None, 3.0) > 0),
    ("masks.mis", {"level": "token", "clip_min": 0.8, "clip_max": 1.3}, "TRL token_mask", lambda batch: trl_ratio(batch, "token_mask", 0.8, 1.3) > 0),
    ("masks.mis", {"level": "geometric", "clip_min": 0.9, "clip_max": 1.2}, "slime geometric", slime_mis(rs_level="geometric", rs_lower_bound=0.9, rs_upper_bound=1.2)),
    ("masks.mis", {"level": "sequence", "clip_min": 0.5, "clip_max": 2.0, "veto_threshold": 0.1}, "slime sequence with veto", slime_mis(rs_level="sequence", rs_lower_bound=0.5, rs_upper_bound=2.0, rs_veto_threshold=0.1)),
    ("masks.trm", {}, "verl seq_mean_k3", rejection("seq_mean_k3", 0.01)),
    ("masks.trm", {"rollout_rs": "seq_max_k3", "rollout_rs_threshold": 0.5}, "verl seq_max_k3", rejection("seq_max_k3", 0.5)),
    ("masks.trm", {"rollout_rs": "seq_max_k2", "rollout_rs_threshold": 0.5}, "verl seq_max_k2", rejection("seq_max_k2", 0.5)),
    ("masks.trm", {"rollout_rs": "seq_sum_k2", "rollout_rs_threshold": 0.5}, "verl seq_sum_k2", rejection("seq_sum_k2", 0.5)),
    ("masks.trm", {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": 3.0}, "verl seq_sum_k1", rejection("seq_sum_k1", 3.0)),
    ("masks.trm", {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": 1.1, "rollout_rs_threshold_lower": 0.95, "policies": "old/sampler"}, "verl seq_mean_k1", rejection("seq_mean_k1", "0.95_1.1", "old_logps")),
    ("masks.trm", {"rollout_rs": "seq_mean_k2", "rollout_rs_threshold": 0.1}, "verl seq_mean_k2", rejection("seq_mean_k2", 0.1)),
    ("masks.trm", {"rollout_rs": "seq_sum_k3", "rollout_rs_threshold": 0.8}, "verl seq_sum_k3", rejection("seq_sum_k3", 0.8)),
    ("masks.trm", {"rollout_rs": "token_k1", "rollout_rs_threshold": 1.05}, "verl token_k1", rejection("token_k1", 1.05)),
    ("masks.trm", {"rollout_rs": "token_k2", "rollout_rs_threshold": 0.01}, "verl token_k2", rejection("token_k2", 0.01)),
    ("masks.trm", {"rollout_rs": "token_k3", "rollout_rs_threshold": 0.003}, "verl token_k3", rejection("token_k3", 0.003)),
    ("masks.off-policy-sequence", {"off_policy_mask_threshold": 0.01}, "TRL", off_policy(0.01)),
    ("masks.off-policy-sequence", {"off_policy_mask_threshold": 1e-4, "policies": "trainer/old"}, "slime opsm", opsm_mask(1e-4)),
    ("masks.kl-cov", {}, "verl kl_cov", kl_cov(0.0002)),
    ("masks.kl-cov", {"kl_cov_ratio": 0.1}, "verl kl_cov", kl_cov(0.1)),
    ("masks.clip-cov", {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.2}, "verl clip_cov, all candidates", clip_cov(clip_cov_ratio=1.0, clip_cov_lb=0.2)),
    ("masks.m2po", {}, "AReaL", m2po(0.04)),
    ("masks.m2po", {"m2_threshold": 0.5}, "AReaL", m2po(0.5)),
    ("masks.entropy-quantile", {}, "TRL", high_entropy(0.2)),
    ("masks.entropy-quantile", {"top_entropy_quantile": 0.55}, "TRL", high_entropy(0.55)),
]
WEIGHTS = [
    ("masks.tis", {}, "verl token", correction_weights("token", 2.0)),
    ("masks.tis", {"rollout_is": "sequence"}, "verl sequence", correction_weights("sequence", 2.0)),
    ("masks.tis", {"rollout_is_batch_normalize": True}, "verl token, normalized", correction_weights("token", 2.0, True)),
    ("masks.tis", {"rollout_is": "sequence", "rollout_is_batch_normalize": True}, "verl sequence, normalized", correction_weights("sequence", 2.0, True)),
    ("masks.tis", {"rollout_is_threshold": 5.0, "rollout_is_threshold_lower": 0.5}, "verl IcePop", correction_weights("token", "0.5_5.0")),
    ("masks.tis", {"rollout_is_threshold": 5.0, "rollout_is_threshold_lower": 0.5}, "slime IcePop", icepop(0.5, 5.0)),
    ("masks.tis", {"rollout_is_threshold": 3.0}, "TRL token_truncate", lambda batch: trl_ratio(batch, "token_truncate", None, 3.0)),
    ("masks.tis", {"rollout_is": "sequence", "rollout_is_threshold": 3.0}, "TRL sequence_truncate", lambda batch: trl_ratio(batch, "sequence_truncate", None, 3.0)),
    ("masks.tis", {"rollout_is_threshold": 1.3, "rollout_is_threshold_lower": 0.8, "mode": "truncate"}, "TRL token_truncate", lambda batch: trl_ratio(batch, "token_truncate", 0.8, 1.3)),
    ("masks.tis", {"rollout_is_threshold": 1.3, "mode": "mask"}, "TRL token_mask", lambda batch: trl_ratio(batch, "token_mask", None, 1.3)),
    ("masks.tis", {"rollout_is": "sequence", "rollout_is_threshold": 3.0, "mode": "mask"}, "TRL sequence_mask", lambda batch: trl_ratio(batch, "sequence_mask", None, 3.0)),
    ("masks.low-probability", {}, "AR-Lopti", reweighting(0.3)),
    ("masks.low-probability", {"alpha": 1.0}, "AR-Lopti", reweighting(1.0)),
]
RECIPES = [
    ("dppo", "verl dppo_tv", slope(verl_loss("dppo_tv", "sampler_logps", "token-mean"))),
    ("dppo-kl", "verl dppo_kl", slope(verl_loss("dppo_kl", "sampler_logps", "token-mean"))),
    ("ipo", "prime-rl ipo", slope(prime_rl_loss)),
    ("icepop", "verl, rollout_is_threshold 0.5_5.0", slope(verl_loss("vanilla", "old_logps", "seq-mean-token-mean", correction_weights("token", "0.5_5.0")))),
    ("deepseek-v3.2", "TRL, off_policy_mask_threshold 0.5", slope(trl_loss(off_policy_mask_threshold=0.5))),
]
# TRL's settings as `host` takes them, each in `[train]`.
ORIGINAL = {"mask_denominator": "original"}
SAMPLING = "vllm_importance_sampling_"
SETTINGS = [
    ({"mask_truncated_completions": True}, {}),
    ({"top_entropy_quantile": 0.55}, ORIGINAL),
    ({"off_policy_mask_threshold": 0.01}, ORIGINAL),
    ({SAMPLING + "mode": "token_truncate", SAMPLING + "clip_max": 1.3, SAMPLING + "clip_min": 0.8}, {}),
    ({SAMPLING + "mode": "token_mask", SAMPLING + "clip_max": 1.3, SAMPLING + "clip_min": 0.8}, ORIGINAL),
    ({SAMPLING + "mode": "token_mask"}, ORIGINAL),
    ({SAMPLING + "mode": "sequence_truncate", SAMPLING + "clip_max": 1.3}, {}),
    ({SAMPLING + "mode": "sequence_mask", SAMPLING + "clip_min": 0.5}, ORIGINAL),
    ({"top_entropy_quantile": 0.55, "off_policy_mask_threshold": 0.01, SAMPLING + "mode": "sequence_truncate"}, ORIGINAL),
]


def settings_slope(trl_settings):
    return slope(trl_loss(**{name.removeprefix(SAMPLING): value for name, value in trl_settings.items()}))


def main():
    torch.set_num_threads(1)
    batches = [batch(seed) for seed in (1, 2, 3)]
    tidy = lambda array: [round(value, 4) or 0 for value in array.flatten().tolist()]
    names = ("logps", "old_logps", "sampler_logps", "advantages", "entropy", "logits", "top_ids", "top_logps")
    arrays = [{"lengths": each.lengths} | {name: tidy(getattr(each, name)) for name in names} for each in batches]
    keeps = lambda run: ["".join(str(int(k)) for k in (run(each).float() * each.mask).flatten().tolist()) for each in batches]
    weights = lambda run: [[float(f"{w:.8g}") for w in (run(each) * each.mask).flatten().tolist()] for each in batches]
    golden = {
        "completions": COMPLETIONS,
        "tokens": TOKENS,
        "group_size": GROUP,
        "top": TOP,
        "batches": arrays,
        "masks": [{"id": i, "table": t, "source": s, "keep": keeps(run)} for i, t, s, run in MASKS],
        "weights": [{"id": i, "table": t, "source": s, "weights": weights(run)} for i, t, s, run in WEIGHTS],
        "recipes": [{"recipe": name, "source": s, "slopes": weights(run)} for name, s, run in RECIPES],
        "settings": [{"train": trl | own, "slopes": weights(settings_slope(trl))} for trl, own in SETTINGS],
    }
    lines = lambda items: "[\n" + ",\n".join(json.dumps(item) for item in items) + "\n]"
    parts = [f"{json.dumps(key)}: {lines(value) if isinstance(value, list) else value}" for key, value in golden.items()]
    (HERE / "golden.json").write_text("{" + ",\n".join(parts) + "}\n")
    for case in golden["masks"]:
        kept = sum(keep.count("1") for keep in case["keep"])
        print(f"{kept:4} of {sum(sum(each.lengths) for each in batches)} kept  {case['id']:28} {case['source']}  {case['table']}")


main()
