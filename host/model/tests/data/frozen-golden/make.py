"""Makes the checkpoints in this folder, and the numbers that Hugging Face transformers computes with them on the CPU.

    pip install torch transformers safetensors && python make.py

Made with torch 2.9.1 and transformers 5.23.0. Every folder is a tiny random checkpoint of a model that scores
texts, as `save_pretrained` writes it. `scores.json` has the logits of ragged rows of ids, computed as one padded batch. The ids
are those of the trainer's embedded tokenizer, which has 15 tokens; 0 is the padding.
"""

import json
import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

HERE = Path(__file__).parent
PAD = 0
ROWS = [(3, 4), (1, 1), (7, 2), (1, 9), (5, 5), (12, 1)]

SMALL = {
    "vocab_size": 15,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": PAD,
}
ROPE = {"rope_type": "default", "rope_theta": 100.0}
ENCODER = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"} | {"num_labels": 1}

# Models that score texts: decoders, then encoders.
DECODERS = {
    "llama-score": {"model_type": "llama", "num_labels": 1, "rope_parameters": ROPE},
    "mistral-score": {"model_type": "mistral", "num_labels": 1, "sliding_window": None, "rope_parameters": ROPE},
    "qwen2-score": {"model_type": "qwen2", "num_labels": 1, "tie_word_embeddings": True, "rope_parameters": ROPE},
    "qwen3-score": {
        "model_type": "qwen3",
        "head_dim": 8,
        "id2label": {0: "bad", 1: "fair", 2: "good"},
        "label2id": {"bad": 0, "fair": 1, "good": 2},
        "rope_parameters": ROPE,
    },
}
ENCODERS = {
    "bert-score": {"model_type": "bert", "hidden_act": "gelu", "type_vocab_size": 2},
    "deberta-v2-score": {
        "model_type": "deberta-v2",
        "hidden_act": "gelu",
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_buckets": 4,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "max_relative_positions": -1,
        "position_biased_input": False,
        "pooler_dropout": 0.0,
        "pooler_hidden_act": "gelu",
    },
    "modernbert-score": {
        "model_type": "modernbert",
        "num_hidden_layers": 3,
        "cls_token_id": None,
        "sep_token_id": None,
        "global_attn_every_n_layers": 2,
        "local_attention": 4,
        "classifier_pooling": "mean",
    },
    "xlm-roberta-score": {"model_type": "xlm-roberta", "hidden_act": "gelu", "type_vocab_size": 1},
}


def make(number, name, changes):
    torch.manual_seed(number)
    settings = {**(ENCODER if name in ENCODERS else SMALL), **changes}
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if "norm" in weight_name.lower() and not weight_name.endswith("bias"):
                weight.add_(0.2 * torch.randn_like(weight))
            else:
                weight.normal_(0.0, 0.3)
    directory = HERE / name
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    return AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def rows():
    ids = [2 + (5 * i * i + 3 * i) % 13 for i in range(200)]
    for prompt, completion in ROWS:
        row, ids = ids[: prompt + completion], ids[prompt + completion :]
        yield row[:prompt], row[prompt:]


def scores(model):
    # The last row ends with padding.
    texts = [prompt + completion for prompt, completion in rows()] + [[5, 6, 7, PAD]]
    width = max(len(text) for text in texts)
    ids = torch.tensor([text + [PAD] * (width - len(text)) for text in texts])
    mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    found = model(input_ids=ids, attention_mask=mask).logits
    return [{"ids": text, "scores": row.tolist()} for text, row in zip(texts, found)]


def write(path, rows):
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


with torch.no_grad():
    for number, (name, changes) in enumerate((DECODERS | ENCODERS).items()):
        model = make(100 + number, name, changes)
        write(HERE / name / "scores.json", scores(model))
