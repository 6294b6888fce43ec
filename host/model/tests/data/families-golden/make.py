"""Makes the checkpoints in this folder, and the numbers that Hugging Face transformers computes with them on the CPU.

    pip install torch transformers peft safetensors && python make.py

Made with torch 2.9.1 and transformers 5.23.0. Every folder is a tiny random checkpoint. Together they have every
family and every switch of a decoder at least once. `golden.safetensors` in each folder has, in f32, `logits` `[2, 11, 24]`
of two left-padded sequences, `logps` `[2, 5]` at temperature 0.9, and the gradient of `sum(seed * logps)` by every weight,
under the weight's name. `scores.json` has log-probabilities at temperature 1 of ragged rows, each computed alone.
`python make.py --padding` makes only `padding.json`. It has one clipped step of torch's AdamW, where the token that ends a turn
is `pad_token_id` and occurs in every prompt: the norm of the gradient, and for each weight after the step its norm and its
product with `cos(0.37 i)`. It was made with torch 2.15.0 and peft 0.21.2.

`python make.py --check DIR` checks that the checkpoints in DIR, which the trainer's test `model_families` saves into
`target/tmp/families`, give the same logits.
"""

import json
import math
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
IDS = [[0, 0, 0, 7, 21, 16, 3, 12, 20, 5, 11], [0, 11, 2, 23, 17, 19, 19, 8, 1, 15, 6]]
STARTS = [3, 1]
PROMPT_LEN = 6
LOSS_TEMPERATURE = 0.9
ROWS = [(3, 4), (1, 1), (7, 2), (2, 0), (1, 9), (5, 5), (12, 1)]

SMALL = {
    "vocab_size": 24,
    "hidden_size": 12,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.02,
    "use_cache": True,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}

# Configurations as transformers 4 and 5 write them; those with `rope_scaling` are from release 4. `dtype` is the dtype of
# the file, `shards` the number of files.
CHECKPOINTS = {
    # Llama 2: as many key heads as query heads, so the file leaves out their number; `linear` scaling, under its old name.
    "llama2": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_key_value_heads": None,
        "rope_theta": 100.0,
        "rope_scaling": {"type": "linear", "factor": 2.5},
        "pretraining_tp": 1,
    },
    # Llama 3.2: tied, explicit heads, several end tokens, `llama3`.
    "llama3": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "eos_token_id": [1, 2],
        "rope_theta": 100.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        "dtype": "bfloat16",
    },
    # All biases that a Llama may have.
    "llama-biased": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 50.0},
        "dtype": "float16",
    },
    # Mistral without a window, as transformers 5 writes it.
    "mistral": {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "num_attention_heads": 3,
        "head_dim": 6,
        "sliding_window": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    },
    # Qwen2.5 with the `yarn` that its model card proposes.
    "qwen2-yarn": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "num_attention_heads": 1,
        "tie_word_embeddings": True,
        "rope_theta": 100.0,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        "use_sliding_window": False,
        "sliding_window": 32,
        "max_window_layers": 2,
        "dtype": "bfloat16",
    },
    # Qwen3: norms of queries and keys, explicit heads, tied.
    "qwen3": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 8,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "rope_theta": 1000.0,
        "rope_scaling": None,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 2,
    },
    # Qwen3 with biases in three shards, and a `yarn` with all of its settings.
    "qwen3-biased": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 8,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 200.0,
            "factor": 6.0,
            "original_max_position_embeddings": 12,
            "beta_fast": 2.0,
            "beta_slow": 0.25,
            "mscale": 0.8,
            "mscale_all_dim": 0.3,
            "truncate": False,
        },
        "shards": 3,
    },
}


def checkpoint(number, name, changes):
    torch.manual_seed(number)
    written = {**SMALL, **changes}
    dtype, shards = getattr(torch, written.pop("dtype", "float32")), written.pop("shards", 1)
    written["torch_dtype"] = str(dtype).removeprefix("torch.")
    if written["num_key_value_heads"] is None:
        del written["num_key_value_heads"]
    directory = HERE / name
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory)).float().eval()
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if "norm" in weight_name:
                weight.copy_(1.0 + 0.2 * torch.randn_like(weight))
            else:
                weight.normal_(0.0, 0.4)
            weight.copy_(weight.to(dtype).float())
    weights = {n: w.detach().to(dtype).contiguous() for n, w in model.named_parameters()}
    for old in directory.glob("model*"):
        old.unlink()
    if shards == 1:
        save_file(weights, directory / "model.safetensors")
    else:
        shard_of = {n: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, n in enumerate(weights)}
        for shard in set(shard_of.values()):
            save_file({n: w for n, w in weights.items() if shard_of[n] == shard}, directory / shard)
        index = {"metadata": {}, "weight_map": shard_of}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    if isinstance(written["eos_token_id"], list):
        generation = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 2, 5]}
        (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def load(directory):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def logits(model):
    ids, starts = torch.tensor(IDS), torch.tensor(STARTS)
    positions = torch.arange(ids.shape[1]) - starts[:, None]
    mask = (positions >= 0).long()
    return model(input_ids=ids, attention_mask=mask, position_ids=positions.clamp(min=0)).logits


def golden(model):
    out = logits(model)
    ids = torch.tensor(IDS)
    logps = torch.log_softmax(out[:, PROMPT_LEN - 1 : -1] / LOSS_TEMPERATURE, -1)
    logps = logps.gather(-1, ids[:, PROMPT_LEN:, None]).squeeze(-1)
    seeds = torch.tensor([[math.sin(1.0 + 2.0 * r + 0.7 * t) for t in range(logps.shape[1])] for r in range(2)])
    (seeds * logps).sum().backward()
    gradients = {name: weight.grad.contiguous() for name, weight in model.named_parameters()}
    return {"logits": out.detach().contiguous(), "logps": logps.detach().contiguous(), **gradients}


def rows():
    ids = [(5 * i * i + 3 * i) % 24 for i in range(200)]
    for prompt, completion in ROWS:
        row, ids = ids[: prompt + completion], ids[prompt + completion :]
        yield row[:prompt], row[prompt:]


@torch.no_grad()
def score(model, prompt, completion):
    logps = torch.log_softmax(model(input_ids=torch.tensor([prompt + completion])).logits[0], -1)
    return [logps[len(prompt) - 1 + t, token].item() for t, token in enumerate(completion)]


def make():
    scores = []
    for number, (name, changes) in enumerate(CHECKPOINTS.items()):
        checkpoint(number, name, changes)
        model = load(HERE / name)
        save_file(golden(model), HERE / name / "golden.safetensors")
        plain = {k: v for k, v in changes.items() if not k.startswith("rope")}
        if "rope_scaling" in changes or "rope_parameters" in changes:
            config = AutoConfig.from_pretrained(HERE / name)
            other = {**SMALL, **plain, "rope_theta": config.rope_parameters["rope_theta"]}
            other = AutoConfig.for_model(**{k: v for k, v in other.items() if k not in ("shards", "dtype")})
            unscaled = AutoModelForCausalLM.from_config(other, attn_implementation="eager").float().eval()
            unscaled.load_state_dict(model.state_dict())
            print(f"{name}: scaling moves logits by {(logits(unscaled) - logits(model)).abs().max().item():.3f}")
    for name in ["llama3", "qwen3"]:
        model = load(HERE / name)
        for prompt, completion in rows():
            scores.append({"model": name, "prompt_ids": prompt, "completion_ids": completion, "logps": score(model, prompt, completion)})
    (HERE / "scores.json").write_text("[\n" + ",\n".join(json.dumps(row) for row in scores) + "\n]\n")


# Two turns before the answer. Token 1 ends a turn, and is also the padding.
CHAT = [[1, 1, 1, 7, 21, 1, 3, 12, 1, 5, 11], [1, 11, 2, 1, 17, 19, 1, 8, 1, 15, 6]]


def padding():
    """`-1` counts from the end, as in torch. An adapter changes only the attention, and its base is frozen."""
    cases = []
    for name, pad, adapter in [("llama3", 1, False), ("llama-biased", 1, False), ("llama-biased", -23, False), ("llama3", None, False), ("llama3", 1, True)]:
        # The weights are bf16 in the file.
        config = AutoConfig.from_pretrained(HERE / name, pad_token_id=pad)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        model.load_state_dict(load(HERE / name).state_dict())
        if adapter:
            model = get_peft_model(model, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]))
            with torch.no_grad():
                for number, weight in enumerate(w for _, w in sorted(model.named_parameters()) if w.requires_grad):
                    weight.copy_(torch.sin(0.3 * torch.arange(weight.numel()) + number).reshape(weight.shape))
        ids, starts = torch.tensor(CHAT), torch.tensor(STARTS)
        positions = torch.arange(ids.shape[1]) - starts[:, None]
        out = model(input_ids=ids, attention_mask=(positions >= 0).long(), position_ids=positions.clamp(min=0)).logits
        logps = torch.log_softmax(out[:, PROMPT_LEN - 1 : -1] / LOSS_TEMPERATURE, -1).gather(-1, ids[:, PROMPT_LEN:, None]).squeeze(-1)
        seeds = torch.tensor([[math.sin(1.0 + 2.0 * r + 0.7 * t) for t in range(logps.shape[1])] for r in range(2)])
        (seeds * logps).sum().backward()
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        norm = torch.nn.utils.clip_grad_norm_(trained.values(), 0.5).item()
        groups = [{"params": [w for w in trained.values() if (w.dim() > 1) == decays], "weight_decay": 0.1 * decays} for decays in (True, False)]
        torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8).step()
        wave = lambda w: torch.cos(0.37 * torch.arange(w.numel(), dtype=torch.float64))
        nine = lambda value: float(f"{value:.9g}")
        probe = lambda w: {"norm": nine(w.double().norm().item()), "dot": nine((w.double().flatten() @ wave(w)).item())}
        short = lambda name: name.removeprefix("base_model.model.").replace(".default", "")
        weights = {short(name): probe(weight.detach()) for name, weight in trained.items()}
        cases.append({"model": name, "pad_token_id": pad, "adapter": adapter, "grad_norm": nine(norm), "weights": weights})
    (HERE / "padding.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


def check(saved):
    for name in CHECKPOINTS:
        expected = load_file(HERE / name / "golden.safetensors")["logits"]
        ours = logits(load(saved / name)).detach()
        theirs = logits(load(HERE / name)).detach()
        print(f"{name}: {'equal' if torch.equal(ours, theirs) else 'DIFFERENT'} logits, {(ours - expected).abs().max().item():.1e} from the golden ones")


if sys.argv[1:2] == ["--check"]:
    check(Path(sys.argv[2]))
elif sys.argv[1:2] == ["--padding"]:
    padding()
else:
    make()
    padding()
