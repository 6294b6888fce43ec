"""The cost of a mask in TRL: a step with and without one, with the paper's arithmetic in plain torch, alone and on two ranks.

    python python/benches/trl_step.py [--steps 8] [--rows 32] [--tokens 64] [--threads 2]
    python python/benches/trl_step.py --device cuda --layers 10 --width 1024 --rows 64 --tokens 128

Each arm is a process of its own, one after another; prints a table. A model of 25 million parameters with fresh
weights (the second line: 125 million, and bf16), real generation by transformers. On a GPU there is one rank.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

# Name, ranks, keys.
ARMS = [
    ("TRL alone", 1, {}),
    ("`capo.curvature`, ahead", 1, {"mask": "capo", "mode": "ahead"}),
    ("`capo.curvature`, in flight", 1, {"mask": "capo", "mode": "inflight"}),
    ("the same in plain torch, in flight", 1, {"mask": "torch", "mode": "inflight"}),
    ("in flight, `second_moment`", 1, {"mask": "capo", "mode": "inflight", "second_moment": "kept_and_rejected"}),
    ("TRL alone, 2 ranks", 2, {}),
    ("`capo.curvature`, ahead, 2 ranks", 2, {"mask": "capo", "mode": "ahead"}),
    ("`capo.curvature`, in flight, 2 ranks", 2, {"mask": "capo", "mode": "inflight"}),
]
LIMITS = {"fisher_threshold": 1.0, "hessian_threshold": 6e-4}


def arm(options, keys):
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import capo_rl
    import torch
    from capo_rl.trl import CapoGRPOTrainer
    from datasets import Dataset
    from in_torch import InTorch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ranks = int(os.environ.get("WORLD_SIZE", 1))
    threads = max(1, options.threads // ranks)
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    words = Tokenizer(
        models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, 8192)}, unk_token="<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    heads = options.width // 64
    shape = {
        "hidden_size": options.width,
        "intermediate_size": options.width * 11 // 4,
        "num_hidden_layers": options.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
    }
    cuda = options.device == "cuda"
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    policy = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=8192, tie_word_embeddings=True, max_position_embeddings=512, **shape, **ids)
    )
    generating = [0.0]

    class Timed(GRPOTrainer):
        def _generate(self, *args, **kwargs):
            started = time.perf_counter()
            try:
                return super()._generate(*args, **kwargs)
            finally:
                generating[0] += time.perf_counter() - started

    class TimedCapo(Timed, CapoGRPOTrainer):
        pass

    times = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            times.append((time.perf_counter(), generating[0]))

    more = {name: value for name, value in keys.items() if name != "mask"}
    if keys:
        more["masks"] = [
            InTorch(**LIMITS) if keys["mask"] == "torch" else capo_rl.Mask("capo.curvature", threads=threads, **LIMITS)
        ]
    trainer = (TimedCapo if keys else Timed)(
        model=policy,
        processing_class=tokenizer,
        reward_funcs=lambda completion_ids, **_: [sum(token % 7 == 0 for token in row) / 10 for row in completion_ids],
        train_dataset=Dataset.from_dict({"prompt": [f"w{3 + i} w{100 + 7 * i} w{200 + i}" for i in range(64)]}),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=options.rows // ranks,
            num_generations=8,
            max_completion_length=options.tokens,
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            max_steps=options.steps + 2,
            save_strategy="no",
            logging_steps=1,
            report_to=[],
            use_cpu=not cuda,
            bf16=cuda,
            disable_tqdm=True,
            ddp_backend="gloo" if ranks > 1 else None,
        ),
        callbacks=[Clock()],
        **more,
    )
    trainer.train()
    if trainer.accelerator.process_index:
        return
    # The first two steps warm up.
    (start, generated_before), (end, generated_after) = times[1], times[-1]
    count, log = len(times) - 2, trainer.state.log_history[2:-1]
    mean = lambda name: sum(line.get(name, 0.0) for line in log) / len(log)
    print(
        json.dumps(
            {
                "parameters": sum(p.numel() for p in policy.parameters()),
                "step": (end - start) / count,
                "generation": (generated_after - generated_before) / count,
                "mask": mean("capo/seconds"),
                "again": mean("capo/second_pass_seconds"),
                "rejected": mean("capo/rejection_rate"),
                "bytes": mean("capo/bytes_gathered"),
                "memory": torch.cuda.max_memory_allocated() / 2**30
                if cuda
                else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            }
        )
    )


def main():
    parser = argparse.ArgumentParser()
    sizes = {"steps": 8, "rows": 32, "tokens": 64, "threads": 2, "layers": 7, "width": 512}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--one-rank", action="store_true", help="leave the arms of two ranks out, as on a GPU")
    parser.add_argument("--arm", help="(one arm, as JSON; what the processes are started with)")
    options = parser.parse_args()
    if options.arm:
        return arm(options, json.loads(options.arm))
    plain = {}
    print(
        "| | step, s | without generation, s | more than TRL alone, of a step | in the components, s | rejected | from other ranks, MB a step | peak memory, GB |"
    )
    print("|---|---|---|---|---|---|---|---|")
    alone = options.one_rank or options.device == "cuda"
    for name, ranks, keys in (arm for arm in ARMS if arm[1] == 1 or not alone):
        python = [sys.executable, "-W", "ignore"] + (
            ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)] if ranks > 1 else []
        )
        own = [f"--{key}={getattr(options, key)}" for key in (*sizes, "device")]
        ended = subprocess.run([*python, __file__, *own, "--arm", json.dumps(keys)], capture_output=True, text=True)
        if ended.returncode:
            sys.exit(ended.stderr)
        found = json.loads(next(line for line in ended.stdout.splitlines() if line.startswith('{"parameters"')))
        plain.setdefault(ranks, found["step"] if not keys else None)
        cells = [f"{found['step']:.3f}", f"{found['step'] - found['generation']:.3f}"]
        if keys:
            cells += [
                f"{found['step'] / plain[ranks] - 1:+.1%}",
                f"{found['mask']:.3f}",
                f"{found['rejected']:.1%}",
                f"{found['bytes'] / 1e6:.1f}",
            ]
        else:
            cells += [""] * 4
        print(f"| {name} | " + " | ".join([*cells, f"{found['memory']:.2f}"]) + " |", flush=True)
    print(
        f"\n{found['parameters'] / 1e6:.1f}M parameters, {options.rows} completions of up to {options.tokens} tokens, {options.threads} threads in all, {options.device}."
    )


main()
