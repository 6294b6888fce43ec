"""The cost of masks in verl at scale: bytes received and peak memory of both modes, measured; and bytes received on many ranks, by formula.

    python python/benches/verl_scale.py [--width 896] [--vocabulary 4096] [--tokens 512 4096] [--ranks 1 2 4 8]

Each arm is one step of eight completions in float32, of the tiny model of python/tests/tiny_verl.py with this width.
    Its ranks are processes on CPUs: two for lengths, then those of ``--ranks``.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

TINY = Path(__file__).parents[1] / "tests/tiny_verl.py"
ARMS = {
    "no mask": ("masks=none",),
    "ahead": ("masks=loose", "mode=ahead"),
    "in flight": ("masks=loose", "mode=inflight"),
}
K = 50
#: Bytes of a completion and of a token that every batch has: where it is from, whether it was cut off; its id, its
#: mask, its log-probability, its advantage.
COMPLETION, TOKEN = 3 * 8 + 1, 4 + 1 + 4 + 4
#: What step controls are told of a token besides: whether it was kept, and its weight.
DECISION = 1 + 4


def others(ranks):
    """The share of a sum over ranks that comes from others."""
    return (ranks - 1) / ranks


def head(ranks, vocabulary, width, bytes_):
    return vocabulary * width * bytes_ * others(ranks)


def ahead(ranks, completions, tokens, width, vocabulary, bytes_=2, k=K):
    """Bytes that a rank receives in a step of ``completions`` on all ranks, padded to ``tokens``, for a mask of the last layer."""
    k = min(k, vocabulary)
    each = TOKEN + width * bytes_ + 8 * k + 8
    return completions * (COMPLETION + tokens * each) * others(ranks) + head(ranks, vocabulary, width, bytes_)


def inflight(ranks, rows, most, width, vocabulary, bytes_=2, parts=1):
    """The same in flight: sums over ``rows`` of the head in 64 bits, their ids, of which a rank has ``most``; and nine numbers of each rank."""
    return (
        2 * 8 * parts * rows * width * others(ranks)
        + 8 * (most + 9) * (ranks - 1)
        + head(ranks, vocabulary, width, bytes_)
    )


def control(ranks, completions, tokens, width, vocabulary, gathers=2):
    """The same for step controls in flight: what a batch has in any case, and the head before and after the step, in float32, where a step is measured."""
    return completions * (COMPLETION + tokens * (TOKEN + DECISION)) * others(ranks) + gathers * head(
        ranks, vocabulary, width, 4
    )


def told(folder, ranks, words):
    """The record of one step of the first of `ranks`, and its peak memory in bytes."""
    import torch

    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    subprocess.run(
        [*launcher, TINY, "out", "steps=1", *words],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    saved = torch.load(Path(folder) / "out.0", weights_only=False)
    (line,) = json.loads(saved["numbers"])
    return line, saved["peak"]


def measured(options):
    """Bytes and memory on two ranks, for each length."""
    print("| completions of | mode | received by a rank, MB | peak memory of a rank, MB |\n|---|---|---|---|")
    sizes = [f"width={options.width}", f"vocabulary={options.vocabulary}", "rows=8", "micro=2"]
    with tempfile.TemporaryDirectory() as folder:
        for tokens in options.tokens:
            for name, words in ARMS.items():
                line, peak = told(folder, 2, [*sizes, *words, f"tokens={tokens}"])
                received = line.get("capo/bytes_gathered", [0])[0]
                print(f"| {tokens:,} tokens | {name} | {received / 1e6:.1f} | {peak / 1e6:,.0f} |", flush=True)


def over_ranks(options, rows=8, tokens=512, vocabulary=256):
    """Bytes on more ranks beside the formulas. The vocabulary is so small that a rank touches nearly all rows of the head; the formula in flight takes all."""
    print(
        "| ranks | mode | received by a rank, bytes | by the formula | peak memory of a rank, MB |\n|---|---|---|---|---|"
    )
    width = options.width
    formulas = {
        "ahead": lambda ranks: ahead(ranks, rows, tokens, width, vocabulary, 4),
        "in flight": lambda ranks: inflight(ranks, vocabulary, vocabulary, width, vocabulary, 4),
    }
    with tempfile.TemporaryDirectory() as folder:
        for ranks in options.ranks:
            for name, formula in formulas.items():
                line, peak = told(
                    folder,
                    ranks,
                    [
                        *ARMS[name],
                        f"width={width}",
                        f"vocabulary={vocabulary}",
                        f"rows={rows}",
                        f"micro={rows}",
                        f"tokens={tokens}",
                    ],
                )
                received = line.get("capo/bytes_gathered", [0])[0]
                print(f"| {ranks} | {name} | {received:,.0f} | {formula(ranks):,.0f} | {peak / 1e6:,.0f} |", flush=True)


def computed(vocabulary=151_936, each=8):
    print(
        f"\n{each} completions a GPU, bf16, V = {vocabulary:,}; GB that a rank receives in a step: ahead / in flight / step controls\n"
    )
    widths = (896, 3584, 8192)
    print(
        "| GPUs | tokens | " + " | ".join(f"D = {width:,}" for width in widths) + " |\n|---|---|" + "---|" * len(widths)
    )
    for ranks in (8, 64, 1024):
        for tokens in (1024, 8192, 32768):
            rows = min(vocabulary, ranks * each * tokens * (K + 1))
            most = min(vocabulary, each * tokens * (K + 1))
            cells = []
            for width in widths:
                sizes = (
                    ahead(ranks, ranks * each, tokens, width, vocabulary),
                    inflight(ranks, rows, most, width, vocabulary),
                )
                sizes = (*sizes, control(ranks, ranks * each, tokens, width, vocabulary))
                cells.append(" / ".join(f"{size / 1e9:,.1f}" for size in sizes))
            print(f"| {ranks:,} | {tokens:,} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--width", type=int, default=896)
    arguments.add_argument("--vocabulary", type=int, default=4096)
    arguments.add_argument("--tokens", type=int, nargs="*", default=[512, 4096])
    arguments.add_argument("--ranks", type=int, nargs="*", choices=(1, 2, 4, 8), default=[1, 2, 4, 8])
    options = arguments.parse_args()
    computed()
    measured(options)
    over_ranks(options)
