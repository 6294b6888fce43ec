"""Generation and training of a Qwen2 model in torch and transformers, to compare the speed of `host train` with.

    python train_torch.py --model runs/capo-seed42/checkpoints/step-000200 --device cuda --dtype bf16

The weights and prompts are random, and every completion has the same length. Generation is `generate` with sampling. A training step is a forward pass, the
policy gradient's loss over the completions, a backward pass, clipping and AdamW. README.md says more.

Letters: B completions, P prompt tokens, T completion tokens.
"""

import argparse
import os
import time
from contextlib import nullcontext

# Waiting threads that spin lose their turn on a busy machine. The variable must be set before the import.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM


def shape(args):
    """The model's configuration, from a checkpoint or from the command line."""
    if args.model:
        return Qwen2Config.from_pretrained(args.model)
    return Qwen2Config(
        vocab_size=args.vocab,
        hidden_size=args.width,
        intermediate_size=4 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.heads,
        max_position_embeddings=args.prompt_tokens + args.new_tokens,
        tie_word_embeddings=True,
    )


def settle(device):
    if device != "cpu":
        torch.cuda.synchronize()


def fastest(args, work):
    """Seconds of the fastest of several calls, after one call to warm up."""
    times = []
    for _ in range(args.repeat + 1):
        settle(args.device)
        start = time.perf_counter()
        work()
        settle(args.device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


@torch.no_grad()
def generate(args, model, prompts):
    """Samples completions that never end early, `[B, P + T]`."""
    options = {"do_sample": True, "temperature": args.temperature, "top_k": 0, "pad_token_id": 0, "eos_token_id": None}
    ones = torch.ones_like(prompts)
    return model.generate(prompts, attention_mask=ones, max_new_tokens=args.new_tokens, use_cache=True, **options)


def loss(model, tokens, prompt_tokens, advantages):
    """The policy gradient's loss: minus the mean of advantage times log-probability over completion tokens."""
    logits = model(tokens[:, :-1], logits_to_keep=tokens.shape[1] - prompt_tokens, use_cache=False).logits
    actions = tokens[:, prompt_tokens:, None]
    logps = logits.float().log_softmax(-1).gather(-1, actions)[..., 0]
    return -(advantages[:, None] * logps).mean()


def step(args, model, optimizer, tokens, advantages):
    """Forward and backward in parts of `--micro-batch` completions, then AdamW."""
    autocast = torch.autocast(args.device, torch.bfloat16) if args.dtype == "bf16" else nullcontext()
    for part in range(0, len(tokens), args.micro_batch):
        rows = slice(part, part + args.micro_batch)
        with autocast:
            share = len(tokens[rows]) / len(tokens)
            (share * loss(model, tokens[rows], args.prompt_tokens, advantages[rows])).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def measure(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.micro_batch = args.micro_batch or args.completions
    model = Qwen2ForCausalLM(shape(args)).to(args.device)
    model.generation_config.eos_token_id = None
    size = (args.completions, args.prompt_tokens)
    prompts = torch.randint(model.config.vocab_size, size, device=args.device)
    advantages = torch.randn(args.completions, device=args.device)
    count = sum(weight.numel() for weight in model.parameters())
    print(
        f"{count:,} parameters, {args.completions} x ({args.prompt_tokens} + {args.new_tokens}) tokens, {args.dtype}, {args.device}, torch {torch.__version__}",
        flush=True,
    )
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    sampler = Qwen2ForCausalLM(model.config).to(args.device, dtype).eval()
    sampler.generation_config.eos_token_id = None
    seconds = fastest(args, lambda sampler=sampler: generate(args, sampler, prompts))
    print(f"  generation {args.completions * args.new_tokens / seconds:12.0f} completion tokens/s", flush=True)
    tokens = generate(args, sampler, prompts)
    assert tokens.shape == (args.completions, args.prompt_tokens + args.new_tokens), "a completion ended early"
    del sampler
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0, fused=args.device != "cpu")
    seconds = fastest(args, lambda: step(args, model, optimizer, tokens, advantages))
    print(f"  training   {tokens.numel() / seconds:12.0f} prompt and completion tokens/s", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description="Generation and training of a Qwen2 model in torch and transformers.")
    parser.add_argument("--model", metavar="DIR", help="a folder with `config.json`; without it, the shape below")
    for name, default in [("layers", 12), ("width", 768), ("heads", 12), ("vocab", 32_000)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in [("completions", 48), ("prompt-tokens", 8), ("new-tokens", 24), ("repeat", 3)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--micro-batch", type=int, help="completions per backward pass; all by default")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    measure(arguments())
