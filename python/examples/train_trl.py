"""TRL's GRPO under the governor, on a model so small that a CPU trains it within a minute.

    pip install './python[trl]' && python python/examples/train_trl.py

The model is fresh and its vocabulary a few words; it learns to say the ones that pay. The learning rate is ten times a
usual one: in its first six steps the governor finds how much of each step to take.
"""

import os

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from capo_rl.trl import CapoGRPOTrainer
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig

WORDS = ["<pad>", "<eos>", "<unk>", *"the a red blue green cat dog bird runs sleeps sings loudly softly".split()]
PAYS = {"bird", "sings"}


def reward(completions, **_):
    return [len(PAYS & set(text.split())) / len(PAYS) for text in completions]


def main():
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    model = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=len(WORDS), pad_token_id=0, eos_token_id=1, bos_token_id=None, **shape)
    )
    trainer = CapoGRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict(
            {"prompt": ["the red cat", "a blue dog", "the green bird", "a cat sleeps"] * 8}
        ),
        args=GRPOConfig(
            output_dir="runs/trl",
            per_device_train_batch_size=16,
            num_generations=8,
            max_completion_length=8,
            max_steps=40,
            learning_rate=1e-2,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
        step_controls=["governor.kl"],
    )
    trainer.train()
    for line in trainer.state.log_history[:-1]:
        print(f"step {line['step']:3}  reward {line['reward']:.3f}  taken {line['capo/step_control/applied']:.3f}")


if __name__ == "__main__":
    main()
