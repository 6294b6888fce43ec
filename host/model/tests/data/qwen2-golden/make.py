"""Makes the golden data in this folder with Hugging Face transformers and torch on the CPU.

    pip install torch transformers safetensors numpy && python make.py

Made with torch 2.15.0 and transformers 5.23.0. For an untied and a tied checkpoint of a small random Qwen2:
`NAME/config.json`, `NAME/model.safetensors`, and in `golden.json` under NAME: logits of two left-padded sequences, and
for every weight the gradient of `sum(seed * logp)` as its norm and its product with `cos(0.37 i)`. Under `adamw`: five
clipped steps on the tied checkpoint with made-up gradients. Under `schedules`: learning rates. Under `sampling`: the
token ids that survive temperature, top-k and top-p.
"""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, get_scheduler
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

HERE = Path(__file__).parent
IDS = [[0, 0, 0, 7, 21, 46, 3, 12, 30, 5, 41], [0, 11, 2, 33, 47, 19, 19, 8, 1, 25, 36]]
STARTS = [3, 1]
PROMPT_LEN = 6
LOSS_TEMPERATURE = 0.9


def checkpoint(tied):
    torch.manual_seed(int(tied))
    config = Qwen2Config(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=1,
    )
    model = Qwen2ForCausalLM(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.copy_(1.0 + 0.2 * torch.randn_like(weight))
            else:
                weight.normal_(0.0, 0.25)
    directory = HERE / ("tied" if tied else "untied")
    directory.mkdir(exist_ok=True)
    save_file({n: w.detach().contiguous() for n, w in model.named_parameters()}, directory / "model.safetensors")
    # The layout of transformers 4, which every release reads. `rope_parameters` of release 5 has its own test.
    written = json.loads(config.to_json_string())
    written["rope_theta"] = written.pop("rope_parameters")["rope_theta"]
    written["architectures"] = ["Qwen2ForCausalLM"]
    (directory / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    return model


def probe(tensor):
    flat = tensor.detach().double().flatten()
    wave = torch.cos(0.37 * torch.arange(len(flat), dtype=torch.float64))
    return {"norm": flat.norm().item(), "dot": (flat @ wave).item()}


def seed(row, token):
    return math.sin(1.0 + 2.0 * row + 0.7 * token)


def golden(model):
    ids, starts = torch.tensor(IDS), torch.tensor(STARTS)
    positions = torch.arange(ids.shape[1]) - starts[:, None]
    mask = (positions >= 0).long()
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions.clamp(min=0)).logits
    logp = torch.log_softmax(logits[:, PROMPT_LEN - 1 : -1] / LOSS_TEMPERATURE, -1)
    logp = logp.gather(-1, ids[:, PROMPT_LEN:, None]).squeeze(-1)
    seeds = torch.tensor([[seed(r, t) for t in range(logp.shape[1])] for r in range(2)])
    (seeds * logp).sum().backward()
    return {
        "logits": logits.flatten().tolist(),
        "logps": logp.flatten().tolist(),
        "gradients": {name: probe(weight.grad) for name, weight in model.named_parameters()},
    }


def adamw(model):
    parameters = dict(sorted(model.named_parameters()))
    decayed = set(Trainer.get_decay_parameter_names(None, model))
    groups = [
        {"params": [w for n, w in parameters.items() if n in decayed], "weight_decay": 0.1},
        {"params": [w for n, w in parameters.items() if n not in decayed], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=5)
    norms = []
    for step in range(5):
        for number, weight in enumerate(parameters.values()):
            index = torch.arange(weight.numel(), dtype=torch.float64)
            grad = 0.01 * (step + 1) * torch.sin(0.1 * index + step + number)
            weight.grad = grad.float().reshape(weight.shape)
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), 0.5).item())
        optimizer.step()
        scheduler.step()
    state = optimizer.state
    return {
        "norms": norms,
        "weights": {name: probe(weight) for name, weight in parameters.items()},
        "exp_avg": {name: probe(state[weight]["exp_avg"]) for name, weight in parameters.items()},
        "exp_avg_sq": {name: probe(state[weight]["exp_avg_sq"]) for name, weight in parameters.items()},
        "q_proj_bias": parameters["model.layers.1.self_attn.q_proj.bias"].tolist(),
    }


def schedules():
    rates = {}
    for kind in ["linear", "cosine", "constant", "constant_with_warmup"]:
        for warmup_ratio in [0.0, 0.25]:
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
            scheduler = get_scheduler(kind, optimizer, math.ceil(warmup_ratio * 10), 10)
            values = []
            for _ in range(12):
                values.append(scheduler.get_last_lr()[0])
                optimizer.step()
                scheduler.step()
            rates[f"{kind}/{warmup_ratio}"] = values
    return rates


def sampling():
    logits = [2.0 * math.sin(0.9 * i) for i in range(12)]
    cases = []
    for temperature, top_k, top_p in [(1.0, 5, 1.0), (0.7, 0, 0.8), (1.3, 6, 0.6), (0.5, 4, 0.95), (1.0, 0, 0.05)]:
        scores = TemperatureLogitsWarper(temperature)(None, torch.tensor([logits]))
        if top_k > 0:
            scores = TopKLogitsWarper(top_k)(None, scores)
        if top_p < 1.0:
            scores = TopPLogitsWarper(top_p)(None, scores)
        kept = [i for i, score in enumerate(scores[0].tolist()) if score > -math.inf]
        cases.append({"temperature": temperature, "top_k": top_k, "top_p": top_p, "kept": kept})
    return {"logits": logits, "cases": cases}


def main():
    untied, tied = checkpoint(False), checkpoint(True)
    data = {
        "ids": IDS,
        "starts": STARTS,
        "prompt_len": PROMPT_LEN,
        "loss_temperature": LOSS_TEMPERATURE,
        "untied": golden(untied),
        "tied": golden(tied),
        "adamw": adamw(tied),
        "schedules": schedules(),
        "sampling": sampling(),
    }
    (HERE / "golden.json").write_text(json.dumps(data, indent=1) + "\n")


main()
