"""`CapoGRPOTrainer` with steps that break off or are not finite, and with optimizers of several rates or of other kinds; the trainer after `find_rate`."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("trl", reason="trl is not installed")

from capo_rl import CapoWarning, Mask, StepControl  # noqa: E402
from capo_rl.trl import CapoGRPOTrainer, find_rate  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import TrainerCallback  # noqa: E402
from trl import GRPOConfig  # noqa: E402

from tiny_trl import MASK, policy, reward, rollouts, tokenizer  # noqa: E402


def curvature():
    return [Mask("capo.curvature", **MASK)]


@pytest.fixture
def trainer(tmp_path):
    """Makes a trainer with the tiny policy. Settings that `GRPOConfig` has go to it, and all others to the trainer."""

    def make(**given):
        settings = {"output_dir": str(tmp_path), "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 12, "max_steps": 4}
        settings |= {"learning_rate": 1e-3, "logging_steps": 1, "report_to": [], "use_cpu": True, "bf16": False, "lr_scheduler_type": "constant"}
        settings |= {"beta": 0.0, "seed": 1, "disable_tqdm": True, "save_strategy": "no"}
        own = {"model": policy(), "rollout_func": lambda prompts, trainer: rollouts(prompts, trainer, 0), "component_metrics": "all"}
        for name, value in given.items():
            (settings if name in GRPOConfig.__dataclass_fields__ else own)[name] = value
        prompts = Dataset.from_dict({"prompt": [f"w{3 + i % 20} w{(7 * i) % 25 + 4}" for i in range(24)]})
        return CapoGRPOTrainer(reward_funcs=reward, args=GRPOConfig(**settings), train_dataset=prompts, processing_class=tokenizer(), **own)

    return make


def told(trainer, name):
    return [line[f"capo/{name}"] for line in trainer.state.log_history if f"capo/{name}" in line]


def test_masks_judge_by_the_rate_of_the_heads_group(trainer):
    found = []
    for place in (0, 1):
        model = policy()
        groups = [{"params": [each for each in model.parameters() if each is not model.lm_head.weight], "lr": 1e-4}]
        groups.insert(place, {"params": [model.lm_head.weight], "lr": 1e-2})
        run = trainer(model=model, optimizers=(torch.optim.AdamW(groups, weight_decay=0.0), None), masks=curvature(), max_steps=2)
        run.train()
        found.append((told(run, "rejected_tokens"), told(run, "capo.curvature/m_f/mean")))
    assert found[0] == found[1] and min(found[0][1]) > 1e-3


def test_leaves_out_steps_with_gradients_that_are_not_finite(trainer):
    class Breaks(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            if state.global_step == 1:
                model.lm_head.weight.grad[0, 0] = float("nan")

    run = trainer(step_controls=["governor.kl"])
    run.callback_handler.callbacks.insert(0, Breaks())
    with pytest.warns(CapoWarning, match="a gradient is not finite, so this step is left out"):
        run.train()
    assert told(run, "skipped") == [0, 1, 0, 0] and len(told(run, "governor.kl/kl")) == 3
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())


@pytest.mark.parametrize("second_moment", ["kept", "kept_and_rejected"])
def test_a_step_that_breaks_off_leaves_nothing_to_the_next(trainer, second_moment):
    class Breaks(TrainerCallback):
        fresh = True

        def on_substep_end(self, args, state, control, **kwargs):
            if self.fresh and state.global_step == 1:
                self.fresh = False
                raise KeyboardInterrupt

    run = trainer(masks=curvature(), callbacks=[Breaks()], second_moment=second_moment, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    parts, before = [], run._before_step

    def counted():
        parts.append(len(run._capo_step.parts))
        before()

    run._before_step = counted
    run.train()
    assert parts == [2] * 4


def test_fully_masked_completions_reject_nothing(trainer):
    def cut(prompts, trainer):
        found = rollouts(prompts, trainer, 0)
        return found | {"completion_ids": [[7, 8, 9] for _ in prompts]}

    run = trainer(masks=curvature(), rollout_func=cut, mask_truncated_completions=True, max_steps=1)
    run.train()
    assert told(run, "rejection_rate") == [0] and told(run, "skipped") == [1]


def test_measures_steps_on_completions_that_are_not_masked(trainer):
    """TRL masks completions that were cut off. On these alone, every step would measure 0."""

    def cut(prompts, trainer):
        found = rollouts(prompts, trainer, 0)
        return found | {"completion_ids": [ids if place % 8 == 5 else [7, 8, 9] for place, ids in enumerate(found["completion_ids"])]}

    control = StepControl("governor.kl", target=1e-6, fraction=0.125)
    run = trainer(step_controls=[control], rollout_func=cut, mask_truncated_completions=True, max_steps=3)
    run.train()
    assert min(told(run, "governor.kl/kl")) > 1e-6 and max(told(run, "governor.kl/scale")) < 1


def test_a_search_restores_the_arguments(trainer):
    run = trainer(step_controls=["governor.kl"], max_steps=4, lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr": 1e-7}, warmup_steps=2)
    args, before = run.args, vars(run.args).copy()
    rate = find_rate(run)
    assert rate and run.state.global_step == 25 and run.args is args and vars(args) == before
    assert {line["learning_rate"] for line in run.state.log_history if "learning_rate" in line} == {1e-3}
    with pytest.raises(ValueError, match="the trainer has a scheduler already"):
        find_rate(run)
    with pytest.raises(ValueError, match='with no `target` but "auto"'):
        find_rate(trainer(step_controls=[StepControl("governor.kl", target=1e-5)]))


def test_a_search_works_with_any_optimizer(trainer):
    assert 1e-6 < find_rate(trainer(step_controls=["governor.kl"], learning_rate=1e-1, optim="adafactor")) <= 1e-1


def test_refuses_contradictory_settings_when_the_trainer_is_made(trainer):
    known = "`capo.curvature` needs to know the optimizer, and Adafactor is none of SGD, Adam, AdamW"
    with pytest.raises(ValueError, match=f'{known} \\(use optim="adamw_torch"\\)'):
        trainer(masks=curvature(), optim="adafactor")
    trainer(masks=["masks.truncated"], optim="adafactor")
    with pytest.raises(ValueError, match="`governor.last-layer` reads losses, which TRL does not show: it is for `host` and `Governed`"):
        trainer(step_controls=["governor.last-layer"])
