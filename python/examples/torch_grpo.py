"""GRPO in a loop of plain torch: a model of transformers, a mask, a weight and a governed step.

    pip install './python[torch]' transformers && python python/examples/torch_grpo.py [STEPS]

The model is the one that comes with ``host``: it adds numbers of three digits and forgets carries, so it is right about
every second time. The learning rate is ten times too high for plain AdamW; the step control finds in 30 steps how much
of each one to take.
"""

import math
import random
import sys
from pathlib import Path

import capo_rl
import torch
from capo_rl.torch import Governed, kl_divergence
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

MODEL = Path(__file__).parents[2] / "host/assets/tiny-arithmetic"
PROMPTS, GROUP, TOKENS, RATE, SEED = 6, 8, 24, 1e-3, 0


def main(steps):
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    numbers, draws = random.Random(SEED), torch.Generator().manual_seed(SEED)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(MODEL / "tokenizer.json"), pad_token="<pad>", eos_token="<eos>"
    )
    model = Qwen2ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    mask = capo_rl.Mask("masks.probability-floor", min_probability=0.01)
    weight = capo_rl.Weight("capo.curvature-weight")
    old, right = {}, []

    def measure(fraction):
        """The KL divergence of the step, on a share of the completions that is drawn anew each time."""
        rows = torch.randperm(PROMPTS * GROUP, generator=draws)[: math.ceil(fraction * PROMPTS * GROUP)]
        new = model(old["ids"][rows]).logits[:, old["places"]]
        return kl_divergence(old["logits"][rows], new)[old["mask"][rows]].mean()

    optimizer = Governed(
        torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0), "governor.kl", measure, model=model
    )
    for step in range(steps):
        # Sample a group of completions for each prompt, and reward those that end in the right sum.
        pairs = [(numbers.randint(100, 999), numbers.randint(100, 999)) for _ in range(PROMPTS)]
        pairs = [pair for pair in pairs for _ in range(GROUP)]
        prompts = tokenizer([f"{a}+{b}=" for a, b in pairs], return_tensors="pt").input_ids
        ids = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=TOKENS, do_sample=True, top_k=0
        )
        start = prompts.shape[1]
        completions = ids[:, start:]
        ends = (completions == tokenizer.eos_token_id).int()
        tokens = ends.cumsum(1) == ends
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        rewards = torch.tensor(
            [float(text.rpartition("=")[2] == str(a + b)) for text, (a, b) in zip(texts, pairs, strict=True)]
        )
        groups = rewards.view(PROMPTS, GROUP)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1)

        # The forward pass that trains, and what the components read of it.
        places = slice(start - 1, ids.shape[1] - 1)
        output = model(ids, output_hidden_states=True)
        logits = output.logits[:, places]
        everything = logits.log_softmax(-1)
        logps = everything.gather(-1, completions[..., None])[..., 0]
        seen, top = logits.detach(), logits.detach().topk(logits.shape[-1])
        last_layer = capo_rl.LastLayer(
            hidden=output.hidden_states[-1][:, places].detach(),
            topk_ids=top.indices,
            topk_logits=top.values,
            logsumexp=seen.logsumexp(-1),
            action_logits=seen.gather(-1, completions[..., None])[..., 0],
            vocab_size=logits.shape[-1],
        )
        by_token = -advantages[:, None] * tokens
        batch = capo_rl.Batch(
            completions,
            tokens,
            logps.detach().where(tokens, 0.0),
            advantages,
            group_size=GROUP,
            rewards=rewards,
            loss=capo_rl.Losses(losses=by_token, dloss_dlogp=by_token),
            last_layer=last_layer,
            optimizer=capo_rl.Optimizer("adamw", RATE, max_grad_norm=1.0, steps_taken=step),
            progress=capo_rl.Progress(step=step, max_steps=steps),
        )
        decision = capo_rl.decide(batch, mask, weight)

        # GRPO's loss on policy: what was dropped is left out of a completion's mean, and the others count as they
        # weigh.
        kept, counts = torch.from_numpy(decision.token_mask), torch.from_numpy(decision.weights)
        ratio = (logps - logps.detach()).exp()
        loss = -((ratio * advantages[:, None] * counts).sum(1) / kept.sum(1).clamp(min=1)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        old.update(ids=ids, places=places, logits=seen, mask=tokens)
        optimizer.step(batch=batch, weights=counts)
        capo_rl.step_end(batch, decision, mask, weight)
        right.append(float(rewards.mean()))
        if step % 10 == 9 or step == steps - 1:
            scale, kl = (optimizer.records[f"governor.kl/{name}"] for name in ("scale", "kl"))
            dropped = 1 - kept.sum() / tokens.sum()
            print(
                f"step {step + 1:3}  right {sum(right[-10:]) / len(right[-10:]):.0%}  dropped {dropped:.1%}  KL of the whole step {kl:.1e}  taken {scale:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
