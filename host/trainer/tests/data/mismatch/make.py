#!/usr/bin/env python3
"""Writes golden.json: what TRL and verl report of the mismatch between trainer and sampler, on made-up batches.

The formulas are those of TRL 1.16 (`GRPOTrainer._generate_and_score_completions`, token modes before clipping) and of verl 0.9.1
(`compute_offpolicy_metrics`), said again in plain Python, whose numbers are 64-bit floats; masked means keep verl's 1e-8 in the
denominator. It needs nothing but the standard library:

    python3 host/trainer/tests/data/mismatch/make.py
"""

import json
import math
import pathlib
import random
import struct


def f32(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def masked_mean(values, mask):
    return sum(v * m for v, m in zip(values, mask)) / (sum(mask) + 1e-8)


def mean(values):
    return sum(values) / len(values)


def clamp(value):
    return max(-20.0, min(20.0, value))


def trl(training, sampler, mask):
    real = [(t, s) for ts, ss, ms in zip(training, sampler, mask) for t, s, m in zip(ts, ss, ms) if m]
    differences = [abs(t - s) for t, s in real]
    ratios = [math.exp(t - s) for t, s in real]
    return {
        "sampling/sampling_logp_difference/mean": mean(differences),
        "sampling/sampling_logp_difference/max": max(differences),
        "sampling/importance_sampling_ratio/min": min(ratios),
        "sampling/importance_sampling_ratio/mean": mean(ratios),
        "sampling/importance_sampling_ratio/max": max(ratios),
    }


def verl(training, sampler, mask):
    flat = lambda rows: [value for row in rows for value in row]
    all_mask = flat(mask)
    log_ratio = [t - s for t, s in zip(flat(training), flat(sampler))]
    of_training = [masked_mean(row, m) for row, m in zip(training, mask)]
    of_sampler = [masked_mean(row, m) for row, m in zip(sampler, mask)]
    diff = [s - t for t, s in zip(of_training, of_sampler)]
    width = len(mask[0])
    sums = [
        sum(x * m for x, m in zip(log_ratio[b * width : (b + 1) * width], row)) for b, row in enumerate(mask)
    ]
    values = {
        "kl": masked_mean([-x for x in log_ratio], all_mask),
        "k3_kl": masked_mean([math.exp(x) - x - 1 for x in log_ratio], all_mask),
        "training_ppl": mean([math.exp(-x) for x in of_training]),
        "training_log_ppl": mean([-x for x in of_training]),
        "rollout_ppl": mean([math.exp(-x) for x in of_sampler]),
        "rollout_log_ppl": mean([-x for x in of_sampler]),
        "log_ppl_diff": mean(diff),
        "log_ppl_abs_diff": mean([abs(x) for x in diff]),
        "log_ppl_diff_max": max(diff),
        "log_ppl_diff_min": min(diff),
        "ppl_ratio": mean([math.exp(x) for x in diff]),
        "chi2_token": masked_mean([math.exp(clamp(x)) ** 2 for x in log_ratio], all_mask) - 1,
        "chi2_seq": mean([math.exp(2 * clamp(x)) for x in sums]) - 1,
    }
    return {f"rollout_corr/{name}": value for name, value in values.items()}


def case(rng, lengths, width, noise, extreme=()):
    """Completions of `lengths` tokens; `extreme` are (completion, token, log-ratio)."""
    training, sampler, mask = [], [], []
    for length in lengths:
        row = [f32(-rng.expovariate(1.5)) for _ in range(width)]
        training.append(row)
        sampler.append([f32(min(-1e-6, t + rng.gauss(0.0, noise))) for t in row])
        mask.append([1] * length + [0] * (width - length))
    for b, t, log_ratio in extreme:
        high, low = f32(-0.125), f32(-0.125 - abs(log_ratio))
        training[b][t], sampler[b][t] = (high, low) if log_ratio > 0 else (low, high)
    expected = trl(training, sampler, mask) | verl(training, sampler, mask)
    return {"training": training, "sampler": sampler, "mask": mask, "expected": expected}


def main():
    rng = random.Random(11)
    cases = {
        "bf16-like": case(rng, [9, 4, 1, 7, 9, 2], 9, 0.01),
        "another temperature": case(rng, [5, 5, 3, 1], 5, 0.3),
        "extreme ratios": case(rng, [6, 6, 2, 6], 6, 0.1, [(0, 2, 30.0), (1, 0, -40.0), (3, 1, 12.0), (3, 2, 13.0)]),
        "one token": case(rng, [1], 3, 0.5),
    }
    same = case(rng, [4, 2], 4, 0.2)
    same["sampler"] = same["training"]
    same["expected"] = trl(same["training"], same["sampler"], same["mask"]) | verl(
        same["training"], same["sampler"], same["mask"]
    )
    cases["the same policy"] = same
    path = pathlib.Path(__file__).parent / "golden.json"
    lines = [f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
