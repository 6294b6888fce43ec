#!/usr/bin/env python3
"""Writes tests/data/datasets: small datasets in the forms of `datasets`, pyarrow and the Hub. Needs `datasets` 5.2 and pyarrow.

The problems are made up. Run it from anywhere; it replaces the folder.
"""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict

OUT = Path(__file__).resolve().parent.parent / "tests/data/datasets"

GSM8K = [
    {
        "question": f"Ada has {a} pens and buys {b} more. How many has she?",
        "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b:,}",
    }
    for a, b in [(3, 4), (10, 7), (999, 1), (25, 30), (8, 8), (1200, 34)]
]

MATH = [
    {
        "problem": f"What is $\\frac{{{n}}}{{{d}}} + 1$?",
        "level": f"Level {1 + i % 5}",
        "type": "Algebra" if i % 2 == 0 else "Geometry",
        "solution": f"We have $\\frac{{{n}}}{{{d}}} + \\frac{{{d}}}{{{d}}} = \\boxed{{\\frac{{{n + d}}}{{{d}}}}}$.",
    }
    for i, (n, d) in enumerate([(1, 2), (2, 3), (5, 7), (1, 4), (3, 8), (2, 9)])
]

VERL = [
    {
        "data_source": "made_up",
        "prompt": [{"role": "user", "content": f"What is {a}+{b}? The last line is `Answer: N`."}],
        "reward_model": {"ground_truth": str(a + b), "style": "rule"},
        "extra_info": {"index": a, "split": None},
    }
    for a, b in [(1, 2), (30, 4), (5, 6)]
]


def arithmetic(first: int, count: int) -> list[dict]:
    """Rows that the embedded model can read."""
    return [{"prompt": f"{first + i}+{100 + i}=", "answer": first + 100 + 2 * i, "level": i % 3} for i in range(count)]


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    gsm8k, math, verl = (Dataset.from_list(rows) for rows in (GSM8K, MATH, VERL))
    # The layout of the Hub's cache: snapshots of a dataset with two configurations.
    snapshot = OUT / "hub/datasets--made-up--gsm8k/snapshots/0123456789abcdef"
    for config in ("main", "socratic"):
        (snapshot / config).mkdir(parents=True)
        for split, rows in (("train", gsm8k), ("test", gsm8k.select(range(2)))):
            rows.to_parquet(snapshot / config / f"{split}-00000-of-00001.parquet")
    (OUT / "hub/datasets--made-up--gsm8k/refs").mkdir()
    (OUT / "hub/datasets--made-up--gsm8k/refs/main").write_text("0123456789abcdef")
    # All codecs, and a nested column.
    for codec in ("none", "snappy", "gzip", "lz4", "zstd"):
        pq.write_table(pa.Table.from_pylist(MATH), OUT / f"math-{codec}.parquet", compression=codec, row_group_size=4)
    verl.to_parquet(OUT / "verl.parquet")
    # Values without a form in JSON: a time with a zone, and a number of more than 64 bits.
    times = pa.table(
        {
            "prompt": ["1+1=", "2+2="],
            "created": pa.array([0, 1], pa.timestamp("us", "UTC")),
            "answer": pa.array([10**29 + 7, 4], pa.decimal128(38, 0)),
        }
    )
    pq.write_table(times, OUT / "times.parquet")
    # Arrow: the stream format that `datasets` caches, and the file format, compressed and not.
    table = math.data.table.combine_chunks()
    for name, writer, options in (
        ("stream", pa.ipc.new_stream, None),
        ("file", pa.ipc.new_file, None),
        ("lz4", pa.ipc.new_file, "lz4"),
        ("zstd", pa.ipc.new_stream, "zstd"),
    ):
        with writer(
            str(OUT / f"math-{name}.arrow"), table.schema, options=pa.ipc.IpcWriteOptions(compression=options)
        ) as out:
            out.write_table(table.replace_schema_metadata(None), max_chunksize=4)
    # `save_to_disk` of splits, and of one dataset in shards.
    splits = {"train": Dataset.from_list(arithmetic(200, 24)), "test": Dataset.from_list(arithmetic(500, 8))}
    DatasetDict(splits).save_to_disk(OUT / "saved")
    splits["train"].save_to_disk(OUT / "sharded", num_shards=3)
    # The expected contents of all samples.
    (OUT / "expected.json").write_text(
        json.dumps({"gsm8k": GSM8K, "math": MATH, "verl": VERL, "train": arithmetic(200, 24)}, indent=1)
    )


if __name__ == "__main__":
    main()
