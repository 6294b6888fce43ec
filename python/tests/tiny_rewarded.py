"""A step of TRL's own `GRPOTrainer` on the embedded model of ``host``, with plugins as rewards. Half of the completions are right, and half are long. Prints TRL's log of the step."""

import json
import os

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

from capo_rl import Reward
from capo_rl.trl import reward_func
from datasets import Dataset
from transformers import PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from conftest import ROOT

MODEL = str(ROOT / "host/assets/tiny-arithmetic")
tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{MODEL}/tokenizer.json", pad_token="<pad>", eos_token="<eos>")


def rollouts(prompts, trainer):
    texts = ["100+100=200" + "=200" * (place % 2) if place < 4 else "100+100=201" + "=201" * (place % 2) for place, _ in enumerate(prompts)]
    ids = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    return {"prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts], "completion_ids": ids, "logprobs": None}


args = GRPOConfig(
    output_dir="run", per_device_train_batch_size=8, num_generations=4, max_completion_length=24, max_steps=1, logging_steps=1, report_to=[], use_cpu=True, bf16=False,
    save_strategy="no", disable_tqdm=True,
)  # fmt: skip
trainer = GRPOTrainer(
    model=MODEL,
    processing_class=tokenizer,
    args=args,
    train_dataset=Dataset.from_dict({"prompt": ["100+100="] * 8, "sum": [200] * 8}),
    rollout_func=rollouts,
    reward_funcs=[reward_func("exact_match", answer="sum"), reward_func(Reward("soft_overlong", soft_punish_cache=2, max_completion_len=14), answer=None)],
)
trainer.train()
print(json.dumps(trainer.state.log_history[0]))
