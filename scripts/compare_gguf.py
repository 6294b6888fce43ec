#!/usr/bin/env python3
"""Compares the results of `host` and of Hugging Face transformers for one GGUF file, by default the one that scripts/pretrained fetches.

    pip install torch transformers accelerate gguf
    OMP_NUM_THREADS=1 scripts/compare_gguf.py [--host target/release/host] [--model FILE]

It compares ids and log-probabilities of texts with unicode and code, and greedy answers through the chat template.
Exits with 1 if an id or an answer differs, or a log-probability differs by more than 1e-4. Used with torch 2.15.0,
transformers 5.23.0 and gguf 0.19.0.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
MOST = 1e-4
# Prompts and completions.
TEXTS = [
    ("The capital of France is", " Paris, and that of Italy is Rome."),
    ("Once upon a time,", " there was a little fox who lived in the woods."),
    ("1, 2, 3, 4,", " 5, 6, 7, 8, 9, 10, 11, 12"),
    ("Question: 12 + 34 =", " 46\nQuestion: 100 - 58 = 42"),
    ("def fibonacci(n):\n", "    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n"),
    ("fn main() {\n", '    println!("{:?}", vec![1u8, 2, 3]);\n}\n'),
    ("SELECT name, COUNT(*) FROM users", " WHERE age >= 18 GROUP BY name HAVING COUNT(*) > 1;"),
    ('<html>\n  <body class="a">', "\n\t<p>&amp; more</p>\r\n  </body>\n</html>"),
    ("Die Straße war naß,", " und die Bäume grün wie eh und je."),
    ("Là où l'été s'achève,", " l'école recommence déjà, n'est-ce pas ?"),
    ("Привет, мир!", " Как твои дела сегодня?"),
    ("こんにちは", "世界。今日はいい天気ですね。"),
    ("你好，", "世界！我们一起学习吧。"),
    ("مرحبا", " بالعالم"),
    ("I'm so happy 😀", "😂👍🏽 👩‍👩‍👧 🇫🇷!"),
    ("∀x ∈ ℝ:", " x² ≥ 0 ∧ √(x²) = |x| ≠ −1 → ∎"),
    ('{"id": 7, "tags": [', '"a", "b"], "ok": true, "x": 1.5e-3}'),
    ("   three spaces", "   again,\ttabs\t\tand\n\n\nlines   "),
    ("Don't, I'll, we've, IT'S", " they'RE you'd 'quoted' “curly” — dash…"),
    ("e\u0301 o\u0308 \u00a0\u200b", "\ufeffcombining zero​width end"),
]
QUESTIONS = [
    "What is the capital of Japan?",
    "Write a Python function that reverses a string.",
    "Übersetze ins Englische: Guten Morgen, wie geht's? 😀",
    "What is 7 + 5? Answer with a number.",
]
ANSWER = 40


@torch.no_grad()
def logps(model, prompt, completion):
    out = torch.log_softmax(model(input_ids=torch.tensor([prompt + completion])).logits[0], -1)
    return [out[len(prompt) - 1 + place, token].item() for place, token in enumerate(completion)]


def host(program, *args):
    return subprocess.run([program, *args], check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default=ROOT / "target/release/host")
    parser.add_argument("--model", type=Path)
    args = parser.parse_args()
    path = args.model or Path(
        subprocess.run([ROOT / "scripts/pretrained"], check=True, capture_output=True, text=True).stdout.strip()
    )
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
    failed = []

    with tempfile.TemporaryDirectory() as folder:
        rows, scores = Path(folder, "rows.jsonl"), Path(folder, "scores.jsonl")
        # `host` gets the text and encodes it itself. Different ids would lead to different log-probabilities.
        rows.write_text(
            "".join(json.dumps({"prompt": prompt, "completion": completion}) + "\n" for prompt, completion in TEXTS)
        )
        host(args.host, "score", "--model", str(path), "--input", str(rows), "--out", str(scores))
        found = [json.loads(line)["logps"] for line in scores.read_text().splitlines()]
    worst, tokens = 0.0, 0
    for (prompt, completion), ours in zip(TEXTS, found, strict=True):
        theirs = logps(model, encode(prompt), encode(completion))
        if len(ours) != len(theirs):
            failed.append(f"{completion!r} has {len(ours)} tokens here and {len(theirs)} there")
            continue
        difference = max(abs(a - b) for a, b in zip(ours, theirs))
        worst, tokens = max(worst, difference), tokens + len(ours)
        if difference > MOST:
            failed.append(f"{completion!r} has log-probabilities that differ by {difference:.1e}")
    print(f"{len(TEXTS)} texts, {tokens} log-probabilities: they differ by {worst:.1e} at most")

    for question in QUESTIONS:
        options = ["--chat", "--temperature", "0", "--max-completion-length", str(ANSWER)]
        ours = host(args.host, "generate", "--model", str(path), *options, question).strip()
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        ids = torch.tensor([encode(chat)])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=ANSWER)
        theirs = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip()
        print(f"{question} {ours!r}")
        if ours != theirs:
            failed.append(f"the answer to {question!r} is {theirs!r} there")
    for sentence in failed:
        print(f"compare_gguf: {sentence}", file=sys.stderr)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
