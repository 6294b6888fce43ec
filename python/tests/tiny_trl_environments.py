"""Two steps of `GRPOTrainer` or `CapoGRPOTrainer` on a tiny random model. Completions have several turns, which depend on what the model reads.

    python tiny_trl_environments.py

There is a run for each loop and way. The file LOOP-WAY has weights, numbers, the rows that TRL trains on, the turns of the model and the masks' decisions;
LOOP-WAY.STEP.safetensors has the batch that masks saw. The loops are TRL's loop with `tools`, TRL's loop with `environment_factory`, and a `rollout_func`
that returns an `env_mask`.
"""

import hashlib
import json
import os
from pathlib import Path

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import capo_rl
import capo_rl.trl
import torch
import trl
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from conftest import ROOT

LOOPS = ("tools", "environment", "rollout")
# The mask's mode and threshold. The trainer of `unmasked` has no mask, and that of `stock` is TRL's own.
WAYS = {"stock": None, "unmasked": None, "ahead": ("ahead", False), "inflight": ("inflight", False), "masked": ("ahead", 1.25e-3)}


def tokenizer():
    """The byte tokenizer of the chat templates' tests, with TRL's template for Qwen3."""
    file = ROOT / "host/data/tests/data/chat-golden/tokenizer.json"
    made = PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = (Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()
    return made


def policy(vocabulary):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=vocabulary, max_position_embeddings=4096, tie_word_embeddings=False, **sizes))


def multiply(a: int, b: int) -> int:
    """Multiplies two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    if a == 3:
        raise ValueError("three is too many")
    return a * b


class Game:
    """An environment for TRL, whose methods are tools, and which has its own reward."""

    def reset(self, **_):
        self.calls = 0
        return "It is your turn."

    def get_reward(self):
        return self.calls / 4

    def multiply(self, a: int, b: int) -> int:
        """Multiplies two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        self.calls += 1
        return multiply(a, b)


def turn(prefix, place):
    """The model's turn after `prefix`: a tool call or an answer. One turn in eight is cut off."""
    digest = hashlib.sha256(bytes(str((prefix, place)), "utf8")).digest()
    a, b = digest[0] % 5, digest[1] % 97
    if digest[2] % 3:
        text = f'<tool_call>\n{{"name": "{"multiply" if digest[3] % 4 else "divide"}", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'
    else:
        text = f"It is {a * b}."
    return text + "<|im_end|>" * (digest[4] % 8 > 0)


# The rows that TRL trains on, by rollout; and the turns of the model, each with the tokens before it.
ROWS, TURNS = [], []
decide = capo_rl.trl.decide


def says(trainer, prefix, place):
    """The tokens of a turn."""
    ids = trainer.processing_class(turn(prefix, place), add_special_tokens=False)["input_ids"]
    TURNS.append((list(prefix), ids))
    return ids


class Scripted:
    """Generates the scripted turns."""

    def _generate_single_turn(self, prompt_ids, *_, **__):
        return [says(self, prefix, place) for place, prefix in enumerate(prompt_ids)], None

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        ROWS.append({name: output[name].clone() for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask")})
        return output


def rollouts(prompts, trainer):
    """Three turns of the model with observations between them. `env_mask` is 1 on the model's tokens."""
    found = {"prompt_ids": [], "completion_ids": [], "logprobs": None, "env_mask": []}
    texts = trainer.processing_class
    ids = lambda text: texts(text, add_special_tokens=False)["input_ids"]
    for place, prompt in enumerate(prompts):
        start = texts.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        row, mask = [], []
        for number in range(1 + place % 3):
            seen = ids(f"\n<|im_start|>user\nNow {number}.<|im_end|>\n<|im_start|>assistant\n") if number else []
            said = says(trainer, [*start, *row, *seen], place)
            row, mask = row + seen + said, mask + [0] * len(seen) + [1] * len(said)
        found["prompt_ids"].append(start)
        found["completion_ids"].append(row)
        found["env_mask"].append(mask)
    return found


class Stock(Scripted, trl.GRPOTrainer):
    pass


class Capo(Scripted, capo_rl.trl.CapoGRPOTrainer):
    pass


def reward(completions, **_):
    return [sum(len(message.get("content") or "") for message in messages) % 7 / 7 for messages in completions]


def train(loop, way):
    out = f"{loop}-{way}"
    ROWS.clear()
    TURNS.clear()
    texts = tokenizer()
    config = trl.GRPOConfig(
        output_dir=f"{out}-run",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=420,
        learning_rate=1e-3,
        max_steps=2,
        loss_type="grpo",
        chat_template_kwargs={"enable_thinking": False},
        max_tool_calling_iterations=3,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        lr_scheduler_type="constant",
        beta=0.0,
        seed=1,
        disable_tqdm=True,
    )
    prompts = [[{"role": "user", "content": f"What is {a} times {a + 1}?"}] for a in range(16)]
    loops = {"tools": {"tools": [multiply]}, "environment": {"environment_factory": Game}, "rollout": {"rollout_func": rollouts}}
    seen = []

    def recorded(batch, *args):
        decision = decide(batch, *args)
        capo_rl.save_batch(f"{out}.{len(seen)}.safetensors", batch)
        seen.append({"token_mask": decision.token_mask, "mask": decision.mask, "records": decision.records})
        return decision

    capo_rl.trl.decide = recorded
    more = {}
    if WAYS[way]:
        mode, threshold = WAYS[way]
        more = {"mode": mode, "masks": capo_rl.Mask("capo.curvature", fisher_threshold=threshold, hessian_threshold=False, threads=1)}
    trainer = (Stock if way == "stock" else Capo)(
        model=policy(len(texts)),
        reward_funcs=[] if loop == "environment" else reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=texts,
        **loops[loop],
        **more,
    )
    trainer.train()
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    torch.save({"weights": weights, "log": json.dumps(trainer.state.log_history), "rows": ROWS, "turns": TURNS, "seen": seen}, out)


def main():
    torch.set_num_threads(1)
    for loop in LOOPS:
        for way in WAYS:
            train(loop, way)


main()
