"""Makes the adapters in this folder, and the numbers that PEFT computes with them on the CPU.

    pip install torch transformers peft safetensors && cd host/model && python tests/data/lora-golden/make.py

Made with torch 2.9.1, transformers 5.23.0 and PEFT 0.21.2. Every folder is an adapter of a checkpoint of `families-golden`, with random
A and B, as `PeftModel.save_pretrained` writes it; the name of its base is a path from the crate's folder. `golden.safetensors` in each
folder has, in f32, `logits` `[2, 11, 24]` of the two left-padded sequences of `families-golden`, `logps` `[2, 5]` at temperature 0.9, the
gradient of `sum(seed * logps)` by every factor, under the factor's name, and every weight after `merge_and_unload`, under `merged.` and
the weight's name.

`python tests/data/lora-golden/make.py --check DIR` checks that the files that the trainer's test `model_lora` saves into `target/tmp/lora` give
the same logits: the adapters with their bases, and the merged checkpoints.
"""

import json
import math
import shutil
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent
BASES = Path("tests/data/families-golden")
IDS = [[0, 0, 0, 7, 21, 16, 3, 12, 20, 5, 11], [0, 11, 2, 23, 17, 19, 19, 8, 1, 15, 6]]
STARTS = [3, 1]
PROMPT_LEN = 6
LOSS_TEMPERATURE = 0.9

# Adapters with different modules, with both ways to scale, and with targets in all forms: PEFT's default, a list, `all-linear`, an expression.
ADAPTERS = {
    "llama3": {"r": 3, "lora_alpha": 5},
    "qwen2-yarn": {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": "all-linear"},
    "llama-biased": {"r": 2, "lora_alpha": 8, "target_modules": ["k_proj", "o_proj", "1.mlp.down_proj"], "lora_dropout": 0.1},
    "qwen3": {"r": 1, "lora_alpha": 3, "target_modules": r"model\.layers\.1\.(self_attn\.q_proj|mlp\.(gate|up)_proj)"},
}


def base(name):
    return AutoModelForCausalLM.from_pretrained(BASES / name, dtype=torch.float32, attn_implementation="eager").eval()


def logits(model):
    ids, starts = torch.tensor(IDS), torch.tensor(STARTS)
    positions = torch.arange(ids.shape[1]) - starts[:, None]
    mask = (positions >= 0).long()
    return model(input_ids=ids, attention_mask=mask, position_ids=positions.clamp(min=0)).logits


def plain(name):
    return name.removeprefix("base_model.model.").replace(".default.weight", ".weight")


def golden(model):
    for name, weight in model.named_parameters():
        weight.requires_grad_("lora_" in name)
    out = logits(model)
    ids = torch.tensor(IDS)
    logps = torch.log_softmax(out[:, PROMPT_LEN - 1 : -1] / LOSS_TEMPERATURE, -1)
    logps = logps.gather(-1, ids[:, PROMPT_LEN:, None]).squeeze(-1)
    seeds = torch.tensor([[math.sin(1.0 + 2.0 * r + 0.7 * t) for t in range(logps.shape[1])] for r in range(2)])
    (seeds * logps).sum().backward()
    gradients = {plain(n): w.grad.contiguous() for n, w in model.named_parameters() if w.grad is not None}
    return {"logits": out.detach().contiguous(), "logps": logps.detach().contiguous(), **gradients}


def make():
    for number, (name, settings) in enumerate(ADAPTERS.items()):
        torch.manual_seed(100 + number)
        model = get_peft_model(base(name), LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
        with torch.no_grad():
            for weight_name, weight in model.named_parameters():
                if "lora_" in weight_name:
                    weight.normal_(0.0, 0.4)
        shutil.rmtree(HERE / name, ignore_errors=True)
        model.save_pretrained(HERE / name)
        (HERE / name / "README.md").unlink()
        # PEFT has a set here, whose order changes from run to run.
        config = json.loads((HERE / name / "adapter_config.json").read_text())
        if isinstance(config["target_modules"], list):
            config["target_modules"].sort()
        (HERE / name / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        numbers = golden(model)
        moved = (logits(base(name)) - numbers["logits"]).abs().max().item()
        merged = model.merge_and_unload()
        numbers.update({f"merged.{n}": w.detach().contiguous() for n, w in merged.named_parameters()})
        save_file(numbers, HERE / name / "golden.safetensors")
        print(f"{name}: {len(numbers)} tensors; the adapter moves logits by {moved:.3f}")


@torch.no_grad()
def check(saved):
    for name in ADAPTERS:
        expected = load_file(HERE / name / "golden.safetensors")["logits"]
        ours = logits(PeftModel.from_pretrained(base(name), saved / name).eval())
        theirs = logits(PeftModel.from_pretrained(base(name), HERE / name).eval())
        merged = logits(AutoModelForCausalLM.from_pretrained(saved / f"{name}-merged", dtype=torch.float32, attn_implementation="eager").eval())
        difference, of_merged = (ours - expected).abs().max().item(), (merged - expected).abs().max().item()
        print(f"{name}: {'equal' if torch.equal(ours, theirs) else 'DIFFERENT'} logits, {difference:.1e} from the golden ones, merged {of_merged:.1e}")


if sys.argv[1:2] == ["--check"]:
    check(Path(sys.argv[2]))
else:
    make()
