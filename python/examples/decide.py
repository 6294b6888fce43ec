"""Decides over recorded batches: which tokens would a mask keep out of the backward pass, and which would it have mattered for?

    python python/examples/decide.py [--fisher-threshold 1e-3] [BATCH ...]

Batches are files of ``host train --dump-batches`` or ``capo_rl.save_batch``; without any, those of a reference case of
the repository.
"""

import argparse
from pathlib import Path

import capo_rl
import numpy as np

CASE = Path(__file__).parents[2] / "tests/data/replay/paper-token-adam"


def main() -> None:
    parser = argparse.ArgumentParser(description="decides over recorded batches")
    parser.add_argument("--fisher-threshold", type=float, default=1e-3)
    parser.add_argument("--hessian-threshold", type=float, default=3e-2)
    parser.add_argument("batches", nargs="*", type=Path, metavar="BATCH")
    arguments = parser.parse_args()
    mask = capo_rl.Mask(
        "capo.curvature", fisher_threshold=arguments.fisher_threshold, hessian_threshold=arguments.hessian_threshold
    )
    for path in arguments.batches or sorted(CASE.glob("batch-*")):
        batch = capo_rl.load_batch(path)
        token_mask, records = mask(batch)
        # A trainer takes its step here, with the loss of the tokens that are kept.
        mask.step_end(batch, token_mask, taken=bool(token_mask.any()))
        tokens, kept = int(np.sum(batch.completion_mask)), int(token_mask.sum())
        completion, token = np.unravel_index(np.argmax(records["capo.curvature/m_f"]), token_mask.shape)
        print(
            f"step {batch.progress.step}: {tokens - kept} of {tokens} tokens rejected; the policy would move most by token {token} of "
            f"completion {completion}, m_F {records['capo.curvature/m_f'][completion, token]:.2e}"
        )


if __name__ == "__main__":
    main()
