"""A few steps of `CapoGRPOTrainer` on a tiny random model. Completions depend only on the prompt's place in the rollout.

    python tiny_trl.py OUT [KEY=VALUE ...]      torchrun --nproc_per_node 2 tiny_trl.py OUT ...

It writes the weights, the numbers of each step and the masks' states to OUT.RANK.
"""

import hashlib
import json
import os
import sys

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import capo_rl
import torch
from capo_rl._step import whole
from capo_rl.trl import CapoGRPOTrainer, find_rate
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig

from conftest import MISBEHAVE, WEIGHTS

VOCABULARY, EOS, OTHER_EOS = 32, 1, 5
MASK = {"fisher_threshold": 7e-4, "hessian_threshold": False, "threads": 1}


def options(words):
    chosen = {"steps": 4, "rows": 8, "accumulate": 1, "generations": 4, "per_rollout": 0, "rollouts": 0, "loss": "grpo", "denominator": "", "masks": "capo"}
    chosen |= {
        "weights": "",
        "controls": "",
        "lr": 1e-3,
        "resume": "",
        "save": 0,
        "folder": "run",
        "lora": 0,
        "mode": "auto",
        "exchange": "arrays",
        "second_moment": "kept",
        "fsdp": 0,
        "optim": "adamw_torch",
        "bf16": 0,
        "dtype": "float32",
        "ends": "",
        "metrics": "all",
        "find": 0,
        "iterations": 1,
        "quantile": 1.0,
        "batches": "",
    }
    for word in words:
        name, _, value = word.partition("=")
        chosen[name] = type(chosen[name])(value)
    return chosen


def recorded(decide, batches, decisions):
    """`decide`, but it also writes each batch to a file and appends the decision to `decisions`."""

    def told(batch, *args):
        decision = decide(batch, *args)
        capo_rl.save_batch(f"{batches}.{len(decisions)}.safetensors", batch)
        decisions.append((decision.token_mask, decision.weights))
        return decision

    return told


class Loose(capo_rl.StepControl):
    """A step control that leaves the whole step, and records the use of the rollout in each call."""

    told = []

    def __call__(self, batch, *others):
        self.told.append(batch.progress.iteration)
        return super().__call__(batch, *others)


def tokenizer():
    words = {"<pad>": 0, "<eos>": EOS, "<unk>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    whole = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=whole, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def policy():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    special = {"pad_token_id": 0, "eos_token_id": EOS, "bos_token_id": None}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, max_position_embeddings=64, tie_word_embeddings=False, **sizes, **special))


def sharded(folder):
    """The same policy, sharded as transformers shards it with FSDP2 when it loads it."""
    import torch.distributed as dist
    from transformers.distributed import DistributedConfig

    if dist.get_rank() == 0:
        policy().save_pretrained(folder)
    dist.barrier()
    return Qwen2ForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(fsdp_size=dist.get_world_size()), dtype=torch.float32)


def reward(completions, **_):
    return [sum(word in ("w3", "w4", "w5") for word in text.split()) / 4 for text in completions]


def rollouts(prompts, trainer, size, ends=()):
    """Completions that follow from the prompt, the step, and the place in the rollout or in a group of ``size``; of four tokens where ``ends`` are given."""
    first, texts = trainer.accelerator.process_index * len(prompts), trainer.processing_class
    found = {"prompt_ids": [], "completion_ids": [], "logprobs": None}
    for place, prompt in enumerate(prompts, first):
        digest = hashlib.sha256(f"{prompt} {place % size if size else place} {trainer.state.global_step}".encode()).digest()
        found["prompt_ids"].append(texts(prompt)["input_ids"])
        found["completion_ids"].append([3 + digest[1 + i] % (4 if digest[30] % 2 else 29) for i in range(3 + digest[0] % 8)] + [EOS])
        if ends:
            found["completion_ids"][-1] = [7, 8, *ends[place % len(ends)]]
    return found


# The last two tokens of completions. Two tokens may end a completion, and a completion that was cut off has one inside.
ENDS = {"": (), "several": ([6, EOS], [6, OTHER_EOS], [6, OTHER_EOS], [EOS, 6])}


def main():
    out, chosen = sys.argv[1], options(sys.argv[2:])
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    config = GRPOConfig(
        output_dir=chosen["folder"],
        per_device_train_batch_size=chosen["rows"] // chosen["accumulate"] // ranks,
        gradient_accumulation_steps=chosen["accumulate"],
        steps_per_generation=chosen["per_rollout"] * chosen["accumulate"] or chosen["rollouts"] and chosen["accumulate"] // chosen["rollouts"] or None,
        num_generations=chosen["generations"],
        max_completion_length=12,
        learning_rate=chosen["lr"],
        max_steps=chosen["steps"],
        loss_type=chosen["loss"],
        importance_sampling_level="sequence" if chosen["loss"] == "luspo" else "token",
        save_strategy="steps" if chosen["save"] else "no",
        save_steps=chosen["save"] or 500,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=bool(chosen["bf16"]),
        lr_scheduler_type="constant",
        beta=0.0,
        seed=1,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        ddp_backend="gloo" if ranks > 1 else None,
        optim=chosen["optim"],
        num_iterations=chosen["iterations"],
        top_entropy_quantile=chosen["quantile"],
    )
    prompts = [f"w{3 + i % 20} w{(7 * i) % 25 + 4}" for i in range(24)]
    masks = {
        "": [],
        "capo": [capo_rl.Mask("capo.curvature", **MASK)],
        "several": [capo_rl.Mask("masks.entropy-quantile", top_entropy_quantile=0.8), capo_rl.Mask("capo.curvature", **MASK), "masks.icepop"],
        "rate": [
            capo_rl.Mask("capo.curvature", optimizer="sgd", target_rejection_rate=0.2, threads=1),
            capo_rl.Mask("masks.probability-floor", target_rejection_rate=0.1),
        ],
        "host": [capo_rl.Mask("capo.curvature", moments="host", **MASK)],
        "floor": [capo_rl.Mask("masks.probability-floor", min_probability=0.029)],
        "none": [capo_rl.Mask("capo.curvature", fisher_threshold=False, hessian_threshold=False, threads=1)],
        "truncated": [capo_rl.Mask("masks.truncated")],
        "all": [capo_rl.Mask("masks.probability-floor", min_probability=1.0)],
    }[chosen["masks"]]
    weights = {
        "": [],
        "capo": ["capo.curvature-weight"],
        "tis": ["masks.tis"],
        "left": [capo_rl.Weight("masks.tis", policies="trainer/old", **keys) for keys in WEIGHTS],
        "huge": [capo_rl.Weight("misbehave.weight", plugin=MISBEHAVE, sin="huge") for _ in range(2)] if chosen["weights"] == "huge" else [],
    }[chosen["weights"]]
    half = {"target": 1e-5, "fraction": 0.5}
    controls = {
        "": [],
        "kl": [capo_rl.StepControl("governor.kl", **half)],
        "third": [capo_rl.StepControl("governor.kl", every=3, **half)],
        "auto": ["governor.kl"],
        "loose": [Loose("governor.kl", target=1e9)],
    }[chosen["controls"]]
    more = {}
    if chosen["lora"]:
        from peft import LoraConfig

        more["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    model = sharded(f"{chosen['folder']}-policy") if chosen["fsdp"] else policy().to(getattr(torch, chosen["dtype"]))
    if chosen["ends"]:
        model.generation_config.eos_token_id = [EOS, OTHER_EOS]
    trainer = CapoGRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer(),
        rollout_func=lambda prompts, trainer: rollouts(prompts, trainer, chosen["rollouts"] and chosen["generations"], ENDS[chosen["ends"]]),
        masks=masks,
        weights=weights,
        step_controls=controls,
        mask_denominator=chosen["denominator"] or None,
        mode=chosen["mode"],
        exchange=chosen["exchange"],
        second_moment=chosen["second_moment"],
        component_metrics=chosen["metrics"],
        **more,
    )
    decisions = []
    if chosen["batches"]:
        capo_rl.trl.decide = recorded(capo_rl.trl.decide, chosen["batches"], decisions)
    found = find_rate(trainer) if chosen["find"] else None
    if not chosen["find"]:
        trainer.train(resume_from_checkpoint=chosen["resume"] or None)
    model = trainer.accelerator.unwrap_model(trainer.model)
    numbers = [
        {name: value for name, value in line.items() if name.startswith("capo/") or name in ("grad_norm", "completions/clipped_ratio")}
        for line in trainer.state.log_history
    ]
    saved = {
        "weights": {name: whole(value.detach()).clone() for name, value in model.state_dict().items()},
        "numbers": json.dumps(numbers),
        "states": [each.state_dict()["state"] for each in trainer._components()],
        "found": found,
        "iterations": Loose.told,
        "decisions": decisions,
        "losses": [line.get("loss") for line in trainer.state.log_history],
    }
    torch.save(saved, f"{out}.{trainer.accelerator.process_index}")


if __name__ == "__main__":
    main()
