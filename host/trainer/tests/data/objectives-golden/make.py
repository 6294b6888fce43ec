"""Writes golden.json: advantages, losses and their gradients by TRL's own code, and REINFORCE++'s advantages by verl's.

    pip install torch trl && python make.py VERL

VERL is the unpacked wheel of verl 0.9.1, of which both advantages of REINFORCE++ are taken. Made with torch 2.9.1 and trl 1.16.0. Losses
are `GRPOTrainer._compute_loss` and `RLOOTrainer._compute_loss`, called on a trainer without a model: what it would ask a model for are
tensors of random numbers, and the gradient is by the log-probabilities. Advantages are the lines of both
trainers' `_generate_and_score_completions` that turn rewards into advantages, cut out of their source. Each case has TRL's settings, for the reader, and the table that asks this trainer for the same.
"""

import ast
import inspect
import json
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch
from trl import GRPOTrainer, RLOOTrainer
from trl.trainer import grpo_trainer, rloo_trainer

LIMIT = 9
GROUP = 3
BATCHES = {
    # Completions of many lengths, two of one token.
    "ragged": [7, 1, 4, 6, 3, 1],
    # None is padded.
    "full": [5, 5, 5],
    # One of the limit's length beside short ones.
    "long": [2, 9, 1, 3, 2, 2, 8, 1, 4],
}


class Accelerator:
    """One process that trains on the whole batch at once."""

    num_processes = 1
    sync_gradients = True
    gather = staticmethod(lambda x: x)
    reduce = staticmethod(lambda x, reduction=None: x)


def batch(lengths, drift, seed):
    """The policy has moved by about `drift` nats a token since sampling."""
    draw = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    mask = torch.tensor([[1] * n + [0] * (shape[1] - n) for n in lengths])
    normal = lambda: torch.randn(shape, generator=draw)
    logps = -0.05 - 2.5 * torch.rand(shape, generator=draw)
    advantages = torch.randn(len(lengths), generator=draw)
    arrays = {"logps": logps, "old_logps": logps + drift * normal(), "ref_logps": logps + 0.3 * normal()}
    return {"mask": mask, "advantages": advantages, **{name: values * mask for name, values in arrays.items()}}


def settings(**given):
    known = {
        "delta": None, "use_bias_correction_kl": False, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05,
        "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0,
        "steps_per_generation": 1, "loss_type": "grpo", "epsilon": 0.2, "epsilon_high": None, "beta": 0.0,
        "importance_sampling_level": "token",
    }
    assert given.keys() <= known.keys(), given
    return SimpleNamespace(**known | given)


def trainer(kind, args, logps):
    self = kind.__new__(kind)
    self.args, self.accelerator = args, Accelerator()
    self._get_per_token_logps_and_entropies = lambda *a, **k: (logps, torch.zeros_like(logps), None)
    self.model = SimpleNamespace(training=True)
    self._metrics = {"train": defaultdict(list)}
    self.loss_type, self.beta, self.importance_sampling_level = args.loss_type, args.beta, args.importance_sampling_level
    self.epsilon_low, self.epsilon_high = args.epsilon, args.epsilon if args.epsilon_high is None else args.epsilon_high
    self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
    self.use_vllm = self.aux_loss_enabled = self._entropy_bonus_enabled = False
    self.max_completion_length, self.current_gradient_accumulation_steps = LIMIT, 1
    return self


def loss(kind, data, args):
    logps = data["logps"].clone().requires_grad_()
    mask = data["mask"]
    ids = torch.zeros_like(mask)
    inputs = {
        "prompt_ids": ids, "prompt_mask": mask, "completion_ids": ids, "completion_mask": mask,
        "advantages": data["advantages"], "ref_per_token_logps": data["ref_logps"], "num_items_in_batch": mask.sum(),
        "old_per_token_logps": data["old_logps"], "old_logps": (data["old_logps"] * mask).sum(1),
    }
    self = trainer(kind, args, logps)
    value = self._compute_loss(None, inputs)
    value.backward()
    metrics = {name: values[0] for name, values in self._metrics["train"].items() if name != "entropy"}
    return {"loss": value.item(), "gradient": logps.grad.flatten().tolist(), "metrics": metrics}


# TRL's settings, and the table that stands for them: `use`, and keys as JSON.
SEQUENCE = {"importance_sampling_level": "sequence"}
KL = {"beta": 0.3}
CORRECTED = {"beta": 0.3, "use_bias_correction_kl": True}
LOSSES = [
    ({"loss_type": "grpo"}, "grpo", {}),
    ({"loss_type": "grpo", "epsilon": 0.1, "epsilon_high": 0.4}, "grpo", {"epsilon": 0.1, "epsilon_high": 0.4}),
    ({"loss_type": "grpo", "delta": 1.5}, "grpo", {"delta": 1.5}),
    ({"loss_type": "grpo", **KL}, "grpo", KL),
    ({"loss_type": "grpo", "delta": 1.5, **CORRECTED}, "grpo", {"delta": 1.5, **CORRECTED}),
    ({"loss_type": "dr_grpo", **KL}, "dr_grpo", KL),
    ({"loss_type": "bnpo"}, "bnpo", {}),
    ({"loss_type": "dapo", "epsilon_high": 0.28}, "dapo", {}),
    ({"loss_type": "dapo", "epsilon_high": 0.28, **CORRECTED}, "dapo", CORRECTED),
    ({"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4, **SEQUENCE}, "gspo", {}),
    ({"loss_type": "grpo", "epsilon": 0.1, "delta": 1.2, **SEQUENCE, **CORRECTED}, "grpo",
     {"epsilon": 0.1, "delta": 1.2, **SEQUENCE, **CORRECTED}),
    ({"loss_type": "luspo", "epsilon": 0.1, **SEQUENCE, **KL}, "luspo", {"epsilon": 0.1, "epsilon_high": 0.1, **KL}),
    ({"loss_type": "cispo", "epsilon_high": 5.0}, "cispo", {}),
    ({"loss_type": "cispo", "epsilon_high": 1.1, **CORRECTED}, "cispo", {"epsilon_high": 1.1, **CORRECTED}),
    ({"loss_type": "cispo", "epsilon_high": 1.1, **SEQUENCE}, "cispo", {"epsilon_high": 1.1, **SEQUENCE}),
    ({"loss_type": "sapo"}, "sapo", {}),
    ({"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 0.7, **CORRECTED}, "sapo",
     {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 0.7, **CORRECTED}),
    ({"loss_type": "sapo", **SEQUENCE}, "sapo", SEQUENCE),
    ({"loss_type": "vespo"}, "vespo", {}),
    ({"loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_neg": 0.5, **KL}, "vespo",
     {"vespo_k_pos": 1.0, "vespo_lambda_neg": 0.5, **KL}),
]


def cut(kind, first, last):
    """The lines of `_generate_and_score_completions` from the first that has `first` to the next that has `last`."""
    lines = inspect.getsource(kind._generate_and_score_completions).splitlines()
    start = next(n for n, line in enumerate(lines) if first in line)
    end = next(n for n, line in enumerate(lines) if n > start and last in line)
    return textwrap.dedent("\n".join(lines[start : end + 1]))


def advantages(kind, module, rewards, group, **args):
    """`rewards` `[B, R]`; settings are attributes of the trainer."""
    self = SimpleNamespace(reward_funcs=[None] * rewards.shape[1], **args)
    scope = vars(module) | {"self": self, "rewards_per_func": rewards, "device": "cpu", "num_generations": group}
    scope |= {"gather": lambda x: x} | args.get("logps", {})
    exec(cut(kind, "unscorable_mask = ", "advantages = torch.nan_to_num"), scope)
    return scope["advantages"].tolist()


def functions(path, *names, **world):
    """Functions of a file of verl's by their names, without decorators and annotations."""
    found = [node for node in ast.parse((Path(sys.argv[1]) / path).read_text()).body if getattr(node, "name", None) in names]
    for node in found:
        node.decorator_list, node.returns = [], None
        for argument in node.args.args:
            argument.annotation = None
    world = {"torch": torch, "defaultdict": defaultdict, **world}
    exec(compile(ast.Module(found, []), path, "exec"), world)
    return SimpleNamespace(**{name: world[name] for name in names})


def reinforce_plus_plus(rewards, group, logps, baseline=None, gamma=1.0, beta=0.0):
    """verl's, of each token; the distance from the reference is part of the reward, as `use_kl_in_reward` with `kl_penalty = "kl"` has it."""
    statistics = functions("verl/utils/torch_functional.py", "masked_sum", "masked_mean", "masked_var", "masked_whiten")
    name = "compute_reinforce_plus_plus_baseline_outcome_advantage" if baseline else "compute_reinforce_plus_plus_outcome_advantage"
    compute = getattr(functions("verl/trainer/ppo/core_algos.py", name, verl_F=statistics), name)
    mask = logps["completion_mask"]
    scores = torch.zeros(mask.shape)
    scores[torch.arange(len(mask)), mask.sum(1) - 1] = rewards.flatten()
    scores = (scores - beta * (logps["old_per_token_logps"] - logps["ref_per_token_logps"])) * mask
    index = [row // group for row in range(len(mask))]
    values, _ = compute(scores, mask, **({"index": index} if baseline else {"config": SimpleNamespace(gamma=gamma)}))
    return (values * mask).flatten().tolist()


def write_advantages():
    draw = torch.Generator().manual_seed(5)
    rewards = torch.rand((12, 2), generator=draw).mul(4).round().div(4)
    # A group without a difference in its sum.
    rewards[3:6] = torch.tensor([0.25, 0.5])
    one, weights = torch.tensor([1.0]), torch.tensor([1.0, 0.5])
    cases = []

    def add(trl, use, keys, values):
        cases.append({"trl": trl, "use": use, "keys": keys, "advantages": values})

    total = (rewards * weights).sum(1, keepdim=True)
    for scale, use, keys in [
        ("group", "grpo", {}), ("batch", "grpo", {"scale_rewards": "batch"}), ("none", "grpo", {"scale_rewards": "none"}),
        ("none", "dr_grpo", {}),
    ]:
        given = {"scale_rewards": scale, "multi_objective_aggregation": "sum_then_normalize"}
        add(given, use, keys, advantages(GRPOTrainer, grpo_trainer, total, GROUP, reward_weights=one, **given))
    given = {"scale_rewards": "group", "multi_objective_aggregation": "normalize_then_sum"}
    keys = {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": weights.tolist()}
    add(given, "grpo", keys, advantages(GRPOTrainer, grpo_trainer, rewards, GROUP, reward_weights=weights, **given))

    lengths = [3, 1, 2, 4, 4, 2, 1, 3, 2, 4, 1, 3]
    shape = (12, 4)
    mask = torch.tensor([[1] * n + [0] * (4 - n) for n in lengths])
    old, ref = (-3 * torch.rand(shape, generator=draw) * mask for _ in range(2))
    logps = {"old_per_token_logps": old, "ref_per_token_logps": ref, "completion_mask": mask}
    for keys in [{}, {"normalize_advantages": True}, {"reward_clip_range": [0.25, 0.75]}, {"beta": 0.05}]:
        given = {"normalize_advantages": False, "reward_clip_range": None, "beta": 0.0} | keys
        values = advantages(RLOOTrainer, rloo_trainer, total, GROUP, reward_weights=one, logps=logps, **given)
        add(given, "rloo", keys, values)
    for keys in [{}, {"gamma": 0.9}, {"gamma": 0.9, "beta": 0.05}, {"baseline": "group"}, {"baseline": "group", "beta": 0.05}]:
        values = reinforce_plus_plus(total, GROUP, logps, **keys)
        cases.append({"verl": keys, "use": "reinforce_plus_plus", "keys": keys, "token_advantages": values})
    return {
        "rewards": total.flatten().tolist(), "rewards_per_func": rewards.T.tolist(), "lengths": lengths,
        "old_logps": old.flatten().tolist(), "ref_logps": ref.flatten().tolist(), "cases": cases,
    }


def write_losses():
    batches = []
    for number, (name, lengths) in enumerate(BATCHES.items()):
        for drift in [0.0, 0.3]:
            data = batch(lengths, drift, 7 * number + 3)
            cases = [
                {"trl": trl, "use": use, "keys": keys, **loss(GRPOTrainer, data, settings(**trl))} for trl, use, keys in LOSSES
            ]
            rloo = settings(epsilon=0.2, epsilon_high=0.25)
            cases.append({
                "trl": {"trainer": "RLOOTrainer", "epsilon_high": 0.25}, "use": "rloo", "keys": {"epsilon_high": 0.25},
                **loss(RLOOTrainer, data, rloo),
            })
            arrays = {key: data[key].flatten().tolist() for key in ["advantages", "logps", "old_logps", "ref_logps"]}
            batches.append({"name": f"{name}, drift {drift}", "lengths": lengths, **arrays, "cases": cases})
    return batches


def shorten(value):
    """Nine digits hold an f32."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, list):
        return [shorten(item) for item in value]
    return {key: shorten(item) for key, item in value.items()} if isinstance(value, dict) else value


golden = {"limit": LIMIT, "group": GROUP, "advantages": write_advantages(), "losses": write_losses()}
Path(__file__).with_name("golden.json").write_text(json.dumps(shorten(golden)) + "\n")
