"""The curvature mask's step at token level with Adam in plain torch, to compare the speed of capo-core with.

    python token_adam_torch.py --variant dense
    python token_adam_torch.py --variant lean
    python token_adam_torch.py --variant compiled

README.md says what is computed, and how to compare the numbers with `host replay`.

Letters: B completions, T tokens, N = B T, K top tokens, D width, V vocabulary, R rows.
"""

import argparse
import json
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

# Waiting threads that spin lose their turn on a busy machine. The variable must be set before the import.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor
from torch.nn import functional

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
VOCABULARY = 151_936
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@dataclass
class Batch:
    """A step as the mask sees it. Every position has a token."""

    hidden: Tensor  # [B, T, D], f32 or bf16; everything is computed in f32
    topk_ids: Tensor  # [B, T, K], distinct within a token
    topk_logits: Tensor  # [B, T, K], descending
    action: Tensor  # [B, T]: index of the sampled token among the K
    advantages: Tensor  # [B, T]

    def to(self, device, dtype):
        rest = (self.topk_ids, self.topk_logits, self.action, self.advantages)
        return Batch(self.hidden.to(device, dtype), *(tensor.to(device) for tensor in rest))

    def policy(self):
        """Probabilities `pi`, and `u = e_a - pi`, `[B, T, K]` each."""
        pi = torch.softmax(self.topk_logits, -1)
        u = pi.neg()
        u.scatter_add_(-1, self.action[..., None], torch.ones_like(u[..., :1]))
        return pi, u


@dataclass
class Moments:
    """Adam's moments of the rows that had a gradient. Slot 0 stays zero and stands for all other rows."""

    slots: Tensor  # [V]: where a row's moments are
    mean: Tensor  # [1 + R, D]
    square: Tensor  # [1 + R, D]
    steps: int = 0

    @classmethod
    def empty(cls, width, device):
        mean, square = torch.zeros(2, 1, width, device=device)
        return cls(torch.zeros(VOCABULARY, dtype=torch.int64, device=device), mean, square)

    def corrected(self):
        """The bias-corrected factors of the next step's gradient, of its square, and of the old moments."""
        unbias1, unbias2 = 1 - BETA1 ** (self.steps + 1), 1 - BETA2 ** (self.steps + 1)
        old = self.mean * (BETA1 / unbias1), self.square * (BETA2 / unbias2)
        return (1 - BETA1) / unbias1, (1 - BETA2) / unbias2, *old

    def step(self, rows, gradient):
        """The moments after a step with `gradient` `[rows, D]` for the ids `rows`. The gradient of all other rows is 0."""
        new = rows[self.slots[rows] == 0]
        slots, grow = self.slots.clone(), self.mean.new_zeros(len(new), self.mean.shape[1])
        slots[new] = torch.arange(len(self.mean), len(self.mean) + len(new), device=rows.device)
        mean, square = torch.cat([self.mean, grow]), torch.cat([self.square, grow])
        at = slots[rows]
        mean[at] = mean[at].mul_(BETA1).add_(gradient, alpha=1 - BETA1)
        square[at] = square[at].mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        return Moments(slots, mean, square, self.steps + 1)


def shifts(pi, u, v, advantages, learning_rate):
    """`m_F` and `m_H` from a token's projections `v = D h` over its top tokens; `[..., K]` to `[...]`."""
    s = (u * v).sum(-1)
    centred = v - (pi * v).sum(-1, keepdim=True)
    q = (pi * centred * centred).sum(-1)
    half = 0.5 * learning_rate**2
    return half * s * s, learning_rate * advantages * s + half * advantages * (s * s - q)


def row_means(sums, counts):
    """The ids that occur, and the mean gradient of each, from counts and sums over `[V]` in order of id."""
    rows = counts.nonzero()[:, 0]
    return rows, sums.div_(counts[rows, None])


class Dense:
    """Computes one gradient per token and top token, `[c, T, K, D]`, for c completions at a time."""

    def __init__(self, chunk):
        self.chunk = chunk

    @staticmethod
    def gradients(hidden, advantages, u, part):
        return (advantages[part, :, None] * u[part])[..., None] * hidden[part, :, None, :].float()

    def parts(self, batch):
        return (slice(b, b + self.chunk) for b in range(0, len(batch.hidden), self.chunk))

    def assess(self, batch, moments, learning_rate):
        (pi, u), (new1, new2, mean, square) = batch.policy(), moments.corrected()
        found = []
        for part in self.parts(batch):
            slots = moments.slots[batch.topk_ids[part]]
            gradient = self.gradients(batch.hidden, batch.advantages, u, part)
            direction = (mean[slots] + new1 * gradient) / ((square[slots] + new2 * gradient**2).sqrt() + EPS)
            v = (direction * batch.hidden[part, :, None, :].float()).sum(-1)
            found.append(shifts(pi[part], u[part], v, batch.advantages[part], learning_rate))
        return [torch.cat(parts) for parts in zip(*found)]

    def commit(self, batch, moments, token_mask):
        _, u = batch.policy()
        counts = torch.bincount(batch.topk_ids[token_mask].flatten(), minlength=VOCABULARY)
        # A rejected token adds zeros, to the first row if its own row does not occur.
        order = (counts.bool().cumsum(0) - 1).clamp_(min=0)
        sums = moments.mean.new_zeros(int(order[-1]) + 1, batch.hidden.shape[-1])
        for part in self.parts(batch):
            gradient = self.gradients(batch.hidden, batch.advantages * token_mask, u, part)
            sums.index_add_(0, order[batch.topk_ids[part]].flatten(), gradient.flatten(0, 2))
        return moments.step(*row_means(sums, counts))


class Lean:
    """Computes few tokens at a time, which fit into the cache, and sums rows as bags of embeddings, without gradients of single tokens."""

    def __init__(self, chunk):
        self.chunk = chunk

    def assess(self, batch, moments, learning_rate):
        pi, u = batch.policy()
        h, slots = batch.hidden.flatten(0, 1), moments.slots[batch.topk_ids].flatten(0, 1)
        coefficients = (batch.advantages[..., None] * u).flatten(0, 1)
        v = self.projections(h, coefficients, slots, *moments.corrected())
        return shifts(pi, u, v.view_as(pi), batch.advantages, learning_rate)

    def projections(self, h, coefficients, slots, *corrected):
        """`v = D h` of N tokens, `[N, K]`."""
        parts = (slice(n, n + self.chunk) for n in range(0, len(h), self.chunk))
        return torch.cat([self.part(h[part].float(), coefficients[part], slots[part], *corrected) for part in parts])

    @staticmethod
    def part(h, coefficients, slots, new1, new2, mean, square):
        """`v = D h` of n tokens, with two buffers `[n K, D]` that are changed in place."""
        n, k = slots.shape
        above = mean.index_select(0, slots.flatten()).view(n, k, -1)
        below = square.index_select(0, slots.flatten()).view(n, k, -1)
        above.addcmul_((new1 * coefficients)[..., None], h[:, None, :])
        below.addcmul_((new2 * coefficients * coefficients)[..., None], (h * h)[:, None, :])
        return torch.bmm(above.div_(below.sqrt_().add_(EPS)), h[..., None])[..., 0]

    def commit(self, batch, moments, token_mask):
        _, u = batch.policy()
        ids = batch.topk_ids[token_mask]
        coefficients = (batch.advantages[..., None] * u)[token_mask]
        order = torch.argsort(ids.flatten(), stable=True)
        counts = torch.bincount(ids.flatten(), minlength=VOCABULARY)
        ends = counts[counts > 0].cumsum(0)
        sums = functional.embedding_bag(
            order // ids.shape[1], batch.hidden[token_mask].float(), ends - counts[counts > 0], mode="sum", per_sample_weights=coefficients.flatten()[order]
        )
        return moments.step(*row_means(sums, counts))


@torch.compile
def fused(h, coefficients, slots, new1, new2, mean, square):
    """`v = D h` of N tokens, `[N, K]`, as one loop of the compiler, which writes no buffer of `[N, K, D]`."""
    h = h.float()
    gradient = coefficients[..., None] * h[:, None, :]
    direction = (mean[slots] + new1 * gradient) / ((square[slots] + new2 * gradient**2).sqrt() + EPS)
    return (direction * h[:, None, :]).sum(-1)


class Compiled(Lean):
    """`Lean` with the projections from `torch.compile`, which needs a C++ compiler; the first step compiles."""

    def projections(self, h, coefficients, slots, new1, new2, mean, square):
        return fused(h, coefficients, slots, mean.new_tensor(new1), mean.new_tensor(new2), mean, square)


def policy_gradient_inputs(args, generator, b, t):
    """Random features, logits and advantages. All tokens of a completion have the same advantage."""
    hidden = args.scale * torch.randn(b, t, args.width, generator=generator)
    logits = (args.spread * torch.randn(b, t, args.k, generator=generator)).sort(-1, descending=True).values
    return hidden, logits, torch.randn(b, 1, generator=generator).expand(b, t).contiguous()


def draw(args, generator):
    """A batch whose top tokens follow a Zipf law over `--rows` rows, spread over the vocabulary, and the ids of these rows."""
    b, t, rows = args.completions, args.tokens, args.rows
    ids = torch.randperm(VOCABULARY, generator=generator)[:rows]
    weights = torch.arange(1, rows + 1, dtype=torch.float32) ** -1.1
    draws = [torch.multinomial(weights.expand(t, rows), args.k, generator=generator) for _ in range(b)]
    hidden, logits, advantages = policy_gradient_inputs(args, generator, b, t)
    action = torch.multinomial(torch.softmax(logits, -1).flatten(0, 1), 1, generator=generator).view(b, t)
    return Batch(hidden, ids[torch.stack(draws)], logits, action, advantages), ids


def warm_up(args, generator, ids):
    """A batch with a gradient for every second row, so that these rows have moments before the timed step."""
    top = ids[::2]
    top = top[: len(top) // args.k * args.k].view(1, -1, args.k)
    hidden, logits, advantages = policy_gradient_inputs(args, generator, *top.shape[:2])
    return Batch(hidden, top, logits, torch.zeros(top.shape[:2], dtype=torch.int64), advantages)


def between(values, share):
    """A limit halfway between two values, with `share` of the values below it."""
    values = values.flatten().sort().values
    at = min(int(share * len(values)), len(values) - 1)
    return values[max(at - 1, 0) : at + 1].mean().item()


def decide(m_f, m_h, limits):
    return (m_f < limits[0]) & (m_h.abs() < limits[1])


def timed(work):
    """The seconds that `work` takes, and its result. A GPU is idle before and after."""
    settle()
    start = time.perf_counter()
    result = work()
    settle()
    return time.perf_counter() - start, result


def settle():
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def write_batch(path, batch, args, step, learning_rate):
    """A batch file, as `host replay` reads it."""
    from safetensors.torch import save_file

    b, t = batch.action.shape
    batch = batch.to("cpu", torch.float32)

    def pick(values):
        return values.gather(-1, batch.action[..., None])[..., 0].contiguous()

    tensors = {
        "hidden": batch.hidden,
        "topk_ids": batch.topk_ids.to(torch.uint32),
        "topk_logits": batch.topk_logits,
        "completion_ids": pick(batch.topk_ids).to(torch.uint32),
        "completion_mask": torch.ones(b, t, dtype=torch.uint8),
        "action_logits": pick(batch.topk_logits),
        "logsumexp": batch.topk_logits.logsumexp(-1),
        "logps": pick(batch.topk_logits.log_softmax(-1)),
        "advantages": batch.advantages,
        "rewards": torch.zeros(b),
    }
    optimizer = {"kind": "adam", "learning_rate": learning_rate, "beta1": BETA1, "beta2": BETA2, "eps": EPS}
    scalars = {"group_size": b, "step": step, "seed": args.seed, "vocab_size": VOCABULARY, "max_completion_length": t}
    scalars |= {"sampling_temperature": 1.0, "loss_temperature": 1.0}
    scalars |= {"optimizer": json.dumps(optimizer | {"steps_taken": step})}
    save_file(tensors, path, {name: str(value) for name, value in scalars.items()})


def dump(args, variant, first, batch, moments, limits):
    """Writes batch files of the warm-up (at learning rate 0, so that every token passes), of the step, and of the same batch after it, and the
    results of the last two."""
    from safetensors.torch import save_file

    folder = Path(args.dump)
    folder.mkdir(parents=True, exist_ok=True)
    write_batch(folder / "batch-0000.safetensors", first, args, 0, 0.0)
    for step in (1, 2):
        m_f, m_h = variant.assess(batch, moments, args.learning_rate)
        token_mask = decide(m_f, m_h, limits)
        write_batch(folder / f"batch-{step:04}.safetensors", batch, args, step, args.learning_rate)
        result = {"token_mask": token_mask.to(torch.uint8), "m_f": m_f, "m_h": m_h}
        result = {name: tensor.cpu().contiguous() for name, tensor in result.items()}
        save_file(result, folder / f"expected-{step:04}.safetensors")
        moments = variant.commit(batch, moments, token_mask)
    keys = ['use = "capo.curvature"', 'semantics = "authors"', 'feature = "aligned"', 'optimizer = "adam"']
    keys += [f"fisher_threshold = {limits[0]}", f"hessian_threshold = {limits[1]}"]
    (folder / "mask.toml").write_text("\n".join(["[[mask]]", *keys, ""]))


def compare(folder, replayed):
    """The largest deviation of a replay from the results next to its batch files, relative to the largest value."""
    from safetensors.torch import load_file

    for step in (1, 2):
        expected = load_file(Path(folder) / f"expected-{step:04}.safetensors")
        found = load_file(Path(replayed) / f"batch-{step:04}.safetensors")
        different = int((expected["token_mask"] != found["token_mask"]).sum())
        line = f"step {step}: {different} of {expected['token_mask'].numel()} decisions differ"
        for name in ("m_f", "m_h"):
            worst = (expected[name] - found[f"capo.curvature/{name}"]).abs().max() / expected[name].abs().max()
            line += f", {name} by {worst:.1e}"
        print(line)


def peak():
    """Peak memory so far, GB: memory of tensors on a GPU, else the process's resident memory."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def place(args):
    if args.device == "cpu":
        return f"{args.threads} threads, {args.dtype}"
    return f"{torch.cuda.get_device_name(args.device)}, {args.dtype}"


@torch.no_grad()
def measure(args):
    torch.set_num_threads(args.threads)
    generator = torch.Generator().manual_seed(args.seed)
    batch, ids = draw(args, generator)
    first = warm_up(args, generator, ids).to(args.device, DTYPES[args.dtype])
    batch = batch.to(args.device, DTYPES[args.dtype])
    chunk = args.lean_chunk or (16 if args.device == "cpu" else 1024)
    variant = {"dense": Dense(args.chunk), "lean": Lean(chunk), "compiled": Compiled(chunk)}[args.variant]
    everything = torch.ones_like(first.action, dtype=torch.bool)
    moments = variant.commit(first, Moments.empty(args.width, args.device), everything)
    occurring, inputs = len(batch.topk_ids.unique()), peak()
    print(
        f"{args.variant}: {args.completions} x {args.tokens} tokens, K {args.k}, D {args.width}, {occurring:,} rows, "
        f"{len(moments.mean) - 1:,} with moments, {place(args)}, torch {torch.__version__}"
    )
    limits, best = None, None
    for _ in range(args.repeat):
        shift_time, (m_f, m_h) = timed(lambda: variant.assess(batch, moments, args.learning_rate))
        limits = limits or (between(m_f, 0.98), between(m_h.abs(), 0.99))
        decide_time, token_mask = timed(lambda: decide(m_f, m_h, limits))
        commit_time, _ = timed(lambda: variant.commit(batch, moments, token_mask))
        times = (shift_time + decide_time + commit_time, shift_time + decide_time, commit_time)
        print(f"  {times[0]:8.3f} s")
        best = min(best or times, times)
    print(f"best of {args.repeat}")
    for name, seconds in zip(("proposal and shifts", "moment update", "all"), (*best[1:], best[0])):
        print(f"  {name:<20} {seconds:8.3f} s")
    print(f"  {'rejected':<20} {100 * (1 - token_mask.float().mean()):8.2f} %")
    print(f"  {'peak memory':<20} {peak():8.2f} GB, of which {inputs:.2f} GB with the inputs alone")
    if args.dump:
        dump(args, variant, first, batch, moments, limits)


def arguments():
    parser = argparse.ArgumentParser(description="Token-level Adam step of the curvature mask in plain torch.")
    parser.add_argument("--variant", choices=["dense", "lean", "compiled"], default="lean")
    for name, default in [("completions", 24), ("tokens", 1024), ("k", 50), ("width", 896), ("rows", 10_000)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunk", type=int, default=1, help="completions at a time in the variant `dense`")
    parser.add_argument("--lean-chunk", type=int, help="tokens at a time in the variant `lean`; by default 16 on a CPU and 1024 on a GPU")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=list(DTYPES), default="f32", help="dtype of the features")
    parser.add_argument("--scale", type=float, default=1.0, help="scale of the features")
    parser.add_argument("--spread", type=float, default=3.0, help="spread of the logits")
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    parser.add_argument("--dump", metavar="DIR", help="write batch files and results; for small shapes")
    parser.add_argument("--compare", metavar=("DIR", "OUT"), nargs=2, help="compares a replay of dumped batch files with their results")
    return parser.parse_args()


if __name__ == "__main__":
    args = arguments()
    if args.compare:
        compare(*args.compare)
    else:
        measure(args)
