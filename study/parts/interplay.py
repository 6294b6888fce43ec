"""The governor together with other settings: each setting with and without it, at the best learning rate and at thirty times that rate."""

import subprocess

# Completions per step, and steps.
BATCH, STEPS = 48, 75
# Multiples of the best rate.
MULTIPLES = (1, 30)
# Rollouts for four steps each, sampled in bf16.
OFF_POLICY = {"train.steps_per_generation": 4, "rollout.dtype": "bf16"}
BOTH = {"train.second_moment": "kept_and_rejected"}
FOUND_BOUND = {"recipe": "capo-soft", "weight.0.fisher_threshold": "auto"}
# By setting: the plugins besides the governor, the settings, and the best rate of `grpo` with them on seeds 1 to 3.
SETTINGS = {
    "nothing else": ((), {}, 3e-5),
    "no clipping": ((), {"train.max_grad_norm": 0}, 3e-5),
    "KL penalty, `beta` 0.04": ((), {"objective.beta": 0.04}, 3e-5),
    "warm-up of 10%, cosine": ((), {"train.lr_scheduler_type": "cosine", "train.warmup_ratio": 0.1}, 3e-5),
    "4 iterations a rollout": ((), {"train.num_iterations": 4}, 3e-5),
    "4 steps a rollout, sampled in bf16": ((), OFF_POLICY, 3e-5),
    "the same, with `icepop`": (("masks",), {"recipe": "icepop"} | OFF_POLICY, 3e-5),
    "bf16": ((), {"train.dtype": "bf16"}, 3e-5),
    "adapter": ((), {"model.use_peft": "true"}, 3e-4),
    "`capo`": (("capo",), {"recipe": "capo"}, 3e-5),
    "`capo`, both moments": (("capo",), {"recipe": "capo"} | BOTH, 3e-5),
    "`capo-soft`": (("capo",), {"recipe": "capo-soft"}, 3e-5),
    "`capo-soft`, bound `auto`": (("capo",), FOUND_BOUND, 3e-5),
    "calculator": ((), {}, 1e-4),
}
# The setting that is another task, with several turns: configs/calculator.
CALCULATOR = "calculator"


def arguments(setting, is_governed):
    """Arguments of `host train`; `--set` comes last."""
    plugins, sets, _ = SETTINGS[setting]
    plugins = [*plugins, *(["governor"] if is_governed else [])]
    words = [word for name in plugins for word in ("--plugin", f"lib{name}.so")]
    if is_governed:
        words += ["--step-control", "governor.kl"]
    if plugins and "recipe" not in sets:
        sets = {"recipe": "grpo"} | sets
    return words + [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]


def runs():
    """(setting, is_governed, rate) of every cell."""
    for setting, (_, _, best) in SETTINGS.items():
        yield from ((setting, is_governed, best * multiple) for is_governed in (False, True) for multiple in MULTIPLES)


def arm(setting, is_governed):
    return f"{setting}, governed" if is_governed else setting


def prepare(folder, host, root):
    """Makes the calculator's base model in `folder`."""
    if not (folder / "base").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([host, "sft", "--config", root / "configs/calculator/base.toml", "--output-dir", folder / "base"], check=True)
