"""Compares a training step of `host` with TRL's: time, generation, start and memory, on the same models, prompts, lengths and batches.

    python against_trl.py --host ../../target/release/host [--sizes 1.5M,28M,150M] [--steps 6] [--threads 2] [--repeat 1]
    python against_trl.py --sizes 28M:16x512                     a size with other numbers of completions x tokens
    python against_trl.py --sizes 28M:16x512 --mean-length 100   completions that end at random, after 100 tokens on average
    python against_trl.py --model SmolLM2 --sizes 32x5,8x256     your own model, a Hugging Face directory: completions x tokens
    python against_trl.py --model SmolLM2 --sizes 32x4 --prompt-tokens 83
    python against_trl.py --dtype bf16                           both compute in bf16; `default` leaves the choice to each

Each run is its own process, and runs of `host` and TRL alternate. Without `--model` the weights are fresh. Models and prompts are saved once and used by both.
The algorithm is GRPO with the defaults of both, on policy, without a reference model. The whole batch is one micro-batch in TRL, and also in `host` without
`--micro-batch`. A step is everything between two optimizer steps. README.md says more.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GROUP, PROMPTS = 8, 64
# By name: settings of Qwen2, completions per step, tokens per completion.
SIZES = {"1.5M": ((128, 512, 4, 4, 2, 4096), 32, 32), "28M": ((512, 2048, 6, 8, 4, 8192), 32, 64), "150M": ((768, 3072, 13, 12, 4, 49152), 32, 64)}
NAMES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")


def extent(size):
    """Completions per step, and tokens per completion."""
    name, _, own = size.partition(":")
    return SIZES[name][1:] if name in SIZES and not own else tuple(map(int, (own or name).split("x")))


def prompt_of(first, tokens):
    """A prompt of about `tokens` tokens: a sequence to continue, after other sequences if the prompt must be long."""
    shown = [", ".join(str(11 + first + 7 * place + 100 * before) for place in range(4)) for before in range(max(1, tokens // 20))]
    return "Continue the sequence: " + "; ".join(reversed(shown)) + ","


def prepare_own(folder, options):
    """Saves a copy of the model that hardly ever ends a completion, so that both sample equally many tokens, and prompts for it."""
    shutil.copytree(options.model, folder / "model")
    end = json.loads((folder / "model/tokenizer.json").read_text())["added_tokens"][0]
    for name, ids in (("config.json", end["id"]), ("generation_config.json", end["id"]), ("tokenizer_config.json", None)):
        path = folder / "model" / name
        settings = json.loads(path.read_text()) if path.exists() else {}
        settings |= {"eos_token": end["content"]} if ids is None else {"eos_token_id": ids}
        path.write_text(json.dumps(settings))
    with open(folder / "data.jsonl", "w") as file:
        for first in range(PROMPTS):
            file.write(json.dumps({"prompt": prompt_of(first, options.prompt_tokens), "answer": str(39 + first)}) + "\n")
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder / "model").num_parameters()


def end_after(model, end, mean):
    """Changes the row of `end` in the tied embedding so that `end` is drawn once in `mean` tokens on average."""
    import torch

    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        # A vector that is added to all tokens stays in the features.
        weight += 4 * weight.std() * torch.randn(weight.shape[1])
        ids = torch.randint(3, model.config.vocab_size, (8, 64))
        features = model.model(ids).last_hidden_state.flatten(0, 1)
        others = (features @ weight.T).logsumexp(1)
        direction = features.mean(0) / features.mean(0).square().sum()
        wanted = others.mean() - torch.tensor(mean - 1.0).log()
        weight[end] = 0
        # The features' component along `direction` is 1 on average.
        weight[end] += wanted * direction


def prepare(folder, size, options):
    """Saves a model directory and a dataset, and returns the number of the model's weights."""
    if options.model:
        return prepare_own(folder, options)
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    shape = dict(zip(NAMES, SIZES[size.partition(":")[0]][0], strict=True))
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{i}": i for i in range(3, shape["vocab_size"])}
    words = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    model = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True, max_position_embeddings=1024, **ids))
    if options.mean_length:
        end_after(model, 1, options.mean_length)
    model.save_pretrained(folder / "model")
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>").save_pretrained(folder / "model")
    with open(folder / "data.jsonl", "w") as file:
        for i in range(PROMPTS):
            file.write(json.dumps({"prompt": " ".join(f"w{(7 * i + 31 * j) % 1000 + 3}" for j in range(options.prompt_tokens or 8)), "answer": str(i)}) + "\n")
    return sum(weight.numel() for weight in model.parameters())


def with_trl(options):
    """Runs TRL's steps in this process, and prints their times."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(options.threads)
    rows, tokens = extent(options.sizes)
    folder = Path(options.folder)
    # AutoTokenizer drops the pre-tokenizer of a qwen2 model's tokenizer.json.
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    steps, generating = [], [0.0, 0]

    class Timed(GRPOTrainer):
        def _generate(self, *args, **kwargs):
            started = time.perf_counter()
            generated = super()._generate(*args, **kwargs)
            generating[0] += time.perf_counter() - started
            generating[1] += sum(map(len, generated[1]))
            return generated

    class Clock(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            steps.append((time.time(), *generating))

    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype="float32"),
        processing_class=tokenizer,
        reward_funcs=lambda completions, answer, **_: [float(text.split()[-1:] == [f"w{one}"]) for text, one in zip(completions, answer)],
        train_dataset=Dataset.from_json(str(folder / "data.jsonl"), cache_dir=str(folder / "cache")),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=str(folder / "out"),
            use_cpu=True,
            **({} if options.dtype == "default" else {"bf16": options.dtype == "bf16"}),
            per_device_train_batch_size=rows,
            num_generations=GROUP,
            max_completion_length=tokens,
            learning_rate=1e-6,
            max_steps=options.steps,
            beta=0.0,
            gradient_checkpointing=False,
            report_to=[],
            disable_tqdm=True,
            logging_steps=1000,
            save_strategy="no",
        ),
    )
    trainer.train()
    print("RESULT " + json.dumps(steps))


def with_host(options, folder, size):
    """Runs `host`'s steps, and reads their times from its metrics."""
    rows, tokens = extent(size)
    micro = options.micro_batch or rows
    config = f"""
[model]
model_name_or_path = "{folder}/model"
[data]
dataset_name = "{folder}/data.jsonl"
max_prompt_length = {max(32, 2 * (options.prompt_tokens or 0))}
[rollout]
num_generations = {GROUP}
max_completion_length = {tokens}
[train]
per_device_train_batch_size = {micro}
gradient_accumulation_steps = {rows // micro}
learning_rate = 1e-6
max_steps = {options.steps}
{"" if options.dtype == "default" else f'dtype = "{options.dtype}"'}
{options.train}
[[reward]]
use = "exact_match"
"""
    (folder / "run.toml").write_text(config)
    command = [options.host, "train", "--config", folder / "run.toml", "--output-dir", folder / "run"]
    return command, folder / "run/metrics.jsonl"


def touch(gigabytes):
    """Uses this much memory once. On a virtual machine the first use of a page can cost ten times as much as later uses, which only the first run would pay."""
    subprocess.run([sys.executable, "-c", f"b'1' * {int(gigabytes * 1e9)}"], check=True)


def watched(command, environment):
    """Runs the command, and returns its lines of output, each with the seconds since its start, and its peak memory in GB."""
    began = time.time()
    process = subprocess.Popen([str(word) for word in command], env=environment, stdout=subprocess.PIPE, text=True)
    lines = [(time.time() - began, line) for line in process.stdout]
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[0]} ended with {status}")
    return lines, began, usage.ru_maxrss * 1024 / 1e9


def once(options, folder, size, who):
    """Seconds per step, generated tokens per second, seconds to the end of the first step, peak memory in GB, tokens per completion."""
    rows, _ = extent(size)
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(options.threads), "RAYON_NUM_THREADS": str(options.threads)}
    environment |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    touch(options.touch)
    if who == "host":
        command, metrics = with_host(options, folder, size)
        told, _, peak = watched(command, environment)
        start = next(seconds for seconds, line in told if line.startswith("step    1 "))
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        subprocess.run(["rm", "-rf", folder / "run"], check=True)
        # Each line has a part of the step's time; the time before the first line does not count.
        steps = [line["step_time"] for line in lines][1:]
        generating = [line["timing_s/rollout"] for line in lines][1:]
        drawn = [rows * line["completions/mean_length"] for line in lines][1:]
    else:
        command = [sys.executable, __file__, "--worker", "--sizes", size, "--folder", folder, "--steps", options.steps, "--threads", options.threads]
        command += ["--dtype", options.dtype]
        told, began, peak = watched(command, environment)
        ends = json.loads(next(line for _, line in told if line.startswith("RESULT ")).removeprefix("RESULT "))
        steps = [after[0] - before[0] for before, after in zip(ends, ends[1:])]
        generating = [after[1] - before[1] for before, after in zip(ends, ends[1:])]
        drawn = [after[2] - before[2] for before, after in zip(ends, ends[1:])]
        start = ends[0][0] - began
    # The faster of two steps counts, because the last step writes the checkpoint.
    middle = lambda numbers: sorted(numbers)[(len(numbers) - 1) // 2]
    rates = [tokens / seconds for tokens, seconds in zip(drawn, generating)]
    return middle(steps), middle(rates), start, peak, sum(drawn) / len(drawn) / rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="../../target/release/host")
    parser.add_argument("--sizes", default="1.5M,28M,150M")
    parser.add_argument("--model", help="a Hugging Face directory to train in place of fresh weights; then --sizes are `COMPLETIONSxTOKENS`")
    parser.add_argument("--dtype", choices=("f32", "bf16", "default"), default="f32", help="dtype of activations in both")
    parser.add_argument(
        "--prompt-tokens", type=int, default=0, help="tokens in each prompt, about; by default 8 without `--model`, and a short sequence with it"
    )
    parser.add_argument("--mean-length", type=float, default=0.0, help="mean length of completions that end at random; by default they hardly ever end early")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--micro-batch", type=int, help="completions per micro-batch of `host`; all by default")
    parser.add_argument("--train", default="", help="more lines of `host`'s [train]")
    parser.add_argument("--touch", type=float, default=9.0, help="GB of memory that are used once before each run; 0 uses none")
    parser.add_argument("--who", default="host,TRL")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--preparing", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return with_trl(options)
    if options.preparing:
        return print(prepare(Path(options.folder), options.preparing, options))
    print("| model | completions | | s a step | tokens generated a second | first step done after, s | peak memory, GB |")
    print("|---|---|---|---|---|---|---|")
    for size in options.sizes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            # In another process, because the memory that torch takes would count in the runs that follow.
            command = [sys.executable, __file__, *sys.argv[1:], "--preparing", size, "--folder", folder]
            count = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
            who = options.who.split(",")
            found = {name: [once(options, folder, size, name) for _ in range(options.repeat)] for name in who}
            best = {name: [min(column) if i != 1 else max(column) for i, column in enumerate(zip(*rows))] for name, rows in found.items()}
            rows, _ = extent(size)
            for name in who:
                step, rate, start, peak, length = best[name]
                print(f"| {count / 1e6:.1f}M | {rows} × {length:.0f} | {name} | {step:.3f} | {rate:.0f} | {start:.2f} | {peak:.2f} |", flush=True)
            if len(who) == 2:
                ours, theirs = best[who[0]], best[who[1]]
                ratio = [theirs[0] / ours[0], ours[1] / theirs[1], theirs[2] / ours[2], theirs[3] / ours[3]]
                print("| | | ratio | " + " | ".join(f"{one:.2f}" for one in ratio) + " |", flush=True)


if __name__ == "__main__":
    main()
