"""`capo_rl.torch.Governed`: its measurements against dense computations, the share of a step that it applies, its state, two ranks of FSDP2; and host's numbers."""

import copy
import json
import math
import struct
import subprocess
import sys
from pathlib import Path

import capo_rl
import pytest

from conftest import PLUGINS

torch = pytest.importorskip("torch", reason="torch is not installed")

from capo_rl._proposal import Proposal, groups_of  # noqa: E402
from capo_rl.torch import AdamW, Governed, kl_divergence  # noqa: E402

IDS = torch.tensor([[1, 4, 2, 7], [3, 3, 8, 0]])


class Policy(torch.nn.Module):
    """Two blocks between an embedding and a head, with the names of transformers."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = torch.nn.Embedding(11, 8)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(2)])
        self.norm, self.lm_head = torch.nn.LayerNorm(8), torch.nn.Linear(8, 11, bias=False)
        self.to(dtype)

    def forward(self, ids):
        hidden = self.embed_tokens(ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.lm_head(self.norm(hidden))


class Says:
    """A step control with fixed scales, which records its arguments."""

    def __init__(self, *scales, restores_moments=False):
        self.id, self.scales, self.restores_moments, self.seen = "says", scales, restores_moments, []
        self.inputs = frozenset()

    def __call__(self, batch, weights, groups, measure):
        self.seen.append((groups, measure.norms()))
        return list(self.scales), {}

    def state_dict(self):
        return {"component": self.id, "state": b""}


def adam(model, lr=1e-2):
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)


def run(model, optimizer, steps=3, before=lambda: None):
    for _ in range(steps):
        model(IDS).log_softmax(-1)[..., 5].sum().neg().backward()
        before()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def measured(model, **keys):
    """A governed optimizer whose measure is exact. `old` must be called before each step."""
    logits = {}

    @torch.no_grad()
    def old():
        logits["old"] = model(IDS)

    optimizer = Governed(adam(model), capo_rl.StepControl("governor.kl", **keys), lambda fraction: kl_divergence(logits["old"], model(IDS)).mean(), model=model)
    return optimizer, old


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@pytest.mark.parametrize("make", [adam, lambda model: torch.optim.SGD(model.parameters(), lr=0.1), lambda model: AdamW(model.parameters(), lr=1e-2)])
def test_a_loose_control_changes_no_bit(make):
    one, other = Policy(), Policy()
    run(one, Governed(make(one), capo_rl.StepControl("governor.kl", target=1e9), lambda fraction: 1.0))
    run(other, make(other))
    assert same(one, other) and not same(one, Policy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_reach_their_target(dtype):
    model = Policy(dtype)
    optimizer, old = measured(model, target=1e-5)
    for _ in range(3):
        before, whole = weights(model), copy.deepcopy(model)
        twin = adam(whole)
        twin.load_state_dict(copy.deepcopy(optimizer.optimizer.state_dict()))
        run(whole, twin, 1)
        with torch.no_grad():
            logits = model(IDS)
        run(model, optimizer, 1, old)
        scale = optimizer.records["governor.kl/scale"]
        assert optimizer.records["governor.kl/applied"] == optimizer.records["step_control/applied"] == scale < 0.5
        for was, full, found in zip(before, whole.parameters(), model.parameters(), strict=True):
            assert torch.allclose(found.double(), was.double() + scale * (full.double() - was.double()), rtol=torch.finfo(dtype).eps, atol=0)
        if dtype == torch.float32:
            assert 0.5e-5 < float(kl_divergence(logits, model(IDS).detach()).mean()) < 2e-5


def test_measurements_equal_dense_computations():
    model = Policy()
    optimizer = run(model, adam(model))
    groups = groups_of(optimizer, model)
    assert [(name, len(parts)) for name, parts in groups.items()] == [("embedding", 1), ("block.0", 2), ("block.1", 2), ("last_layer", 3)]
    before = dict(zip(model.parameters(), weights(model), strict=True))
    proposal = Proposal(optimizer, groups)
    run(model, optimizer, 1)
    moved = {parameter: parameter.detach().double() - before[parameter].double() for parameter in before}
    norms = [math.sqrt(sum(float(moved[parameter].square().sum()) for parameter in parts)) for parts in groups.values()]
    assert proposal.norms() == pytest.approx(norms, rel=1e-12)
    fisher = sum(float((moved[p].square() * optimizer.state[p]["exp_avg_sq"].double()).sum()) for p in moved) / (2 * (1 - 0.999**4))
    assert proposal.fisher() == pytest.approx(fisher, rel=1e-12)
    # Half of the step has a quarter of the estimate, and parts move alone.
    assert proposal.scale([0.5] * 4) == 0.5 and proposal.fisher() == pytest.approx(fisher / 4, rel=1e-4)
    left = proposal.scale([1, 0, 0.5, 0])
    assert left == pytest.approx(math.hypot(norms[0], norms[2] / 2) / math.hypot(*norms), rel=1e-4)
    assert proposal.norms()[1] == proposal.norms()[3] == 0 and same(model.layers[0], before_of(model.layers[0], before))
    with proposal.taken_back():
        assert all(torch.equal(parameter, was) for parameter, was in before.items())
    assert proposal.norms()[0] == pytest.approx(norms[0] / 2, rel=1e-4)


def before_of(layer, before):
    layer, found = copy.deepcopy(layer), [before[parameter] for parameter in layer.parameters()]
    for parameter, was in zip(layer.parameters(), found, strict=True):
        parameter.data = was
    return layer


def test_divergence_of_tiny_and_of_large_steps():
    torch.manual_seed(1)
    old, direction = torch.randn(3, 50), torch.randn(3, 50).double()
    p = old.double().softmax(-1)
    variance = (p * direction.square()).sum(-1) - (p * direction).sum(-1).square()
    tiny = kl_divergence(old.double(), old.double() + 1e-7 * direction)
    assert torch.allclose(tiny, 0.5e-14 * variance, rtol=1e-5)
    new = (old.double() + 3 * direction).log_softmax(-1)
    assert torch.allclose(kl_divergence(old, new + 7), (p * (p.log() - new)).sum(-1), rtol=1e-5)
    assert kl_divergence(old, old).tolist() == [0, 0, 0]


def test_several_controls_apply_in_order_and_by_part():
    model = Policy()
    first, second = Says(0.5, 0, 1, 1), Says(0.5, 0.5, 0.5, 0)
    before = weights(model)
    optimizer = run(model, Governed(adam(model), [first, second], lambda fraction: 0.0, model=model), 1)
    groups, seen = first.seen[0]
    assert groups == {"embedding": 88, "block.0": 72, "block.1": 72, "last_layer": 104}
    halved = second.seen[0][1]
    assert halved[0] == pytest.approx(seen[0] / 2, rel=1e-5) and halved[1] == 0 and halved[2:] == seen[2:]
    moved = [not torch.equal(a, b) for a, b in zip(before, weights(model), strict=True)]
    assert moved == [True, False, False, True, True, False, False, False]
    assert optimizer.records["says/applied"] < optimizer.records["says/applied"] / optimizer.records["step_control/applied"]


def test_undoes_steps_that_are_not_finite():
    model = Policy()
    before = Policy()
    optimizer = run(model, Governed(adam(model), "governor.kl", lambda fraction: math.nan), 1)
    assert same(model, before) and optimizer.records["governor.kl/scale"] == 0


def test_controls_know_the_optimizer_without_a_batch():
    """``auto`` follows a warm-up with the help of the learning rate."""

    class Sees(Says):
        def __call__(self, batch, *others):
            self.batch = batch
            return super().__call__(batch, *others)

    for make, known in [
        (lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8), {"kind": "sgd", "learning_rate": 0.05, "beta1": 0.8}),
        (adam, {"kind": "adamw", "learning_rate": 5e-3, "beta1": 0.9}),
    ]:
        model, control = Policy(), Sees(1.0)
        optimizer = Governed(make(model), [control], lambda fraction: 0.0)
        run(model, optimizer, 1)
        optimizer.param_groups[0]["lr"] /= 2
        run(model, optimizer, 1)
        seen = vars(control.batch.optimizer)
        assert {name: seen[name] for name in known} == known and seen["steps_taken"] == 1


def test_restores_moments_for_controls_that_ask():
    model = Policy()
    inner = run(model, adam(model), 2)
    before, state = weights(model), copy.deepcopy(inner.state_dict())
    run(model, Governed(inner, [Says(0.0, restores_moments=True)], lambda fraction: 0.0), 1)
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))
    for number, moments in inner.state_dict()["state"].items():
        assert all(torch.equal(value, state["state"][number][name]) for name, value in moments.items())
    run(model, Governed(inner, [Says(0.0)], lambda fraction: 0.0), 1)
    assert inner.state_dict()["state"][0]["step"] == 3, "else they stay as the step made them"


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_alignment_is_the_cosine_with_the_previous_step(kind):
    model = Policy()
    optimizer = kind(model.parameters(), lr=0.1, weight_decay=0, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    groups, product = groups_of(optimizer, model), lambda a, b: sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))
    assert Proposal(optimizer, groups, alignment=True).alignment() is None
    for _ in range(3):
        before = weights(model)
        run(model, optimizer, 1)
        moved = [after.double() - was.double() for after, was in zip(weights(model), before, strict=True)]
        model(IDS).log_softmax(-1)[..., 5].sum().neg().backward()
        downhill = [-parameter.grad for parameter in model.parameters()]
        cosine = product(moved, downhill) / math.sqrt(product(moved, moved) * product(downhill, downhill))
        proposal = Proposal(optimizer, groups, alignment=True, unclipped=True)
        assert proposal.alignment() == pytest.approx(cosine, abs=1e-5)
        assert proposal.gradient_norm() == pytest.approx(math.sqrt(product(downhill, downhill)))
        assert Proposal(optimizer, groups, alignment=True).gradient_norm() is None
        assert Proposal(optimizer, groups, alignment=True, gradient_norm=3.0).gradient_norm() == 3.0
        optimizer.zero_grad()


def test_alignment_uses_the_gradient_of_a_closure():
    class Compares(Says):
        def __call__(self, batch, weights, groups, measure):
            self.seen.append(measure.alignment())
            return [1.0], {}

    found = []
    for with_closure in (False, True):
        model, control, losses = Policy(), Compares(), []
        control.inputs = frozenset({"ALIGNMENT"})
        optimizer = Governed(adam(model), [control], lambda fraction: 0.0)

        def evaluated():
            optimizer.zero_grad()
            loss = model(IDS).log_softmax(-1)[..., 5].sum().neg()
            loss.backward()
            return loss

        for _ in range(3):
            loss = optimizer.step(evaluated) if with_closure else evaluated()
            losses.append(loss.item())
            with_closure or optimizer.step()
        found.append((control.seen, losses))
    assert found[0] == found[1] and found[0][0][0] is None and None not in found[0][0][1:]


@pytest.mark.parametrize("keys", [{"target": 1e-5, "every": 2}, {"target": "auto", "every": 2}])
def test_the_state_continues_bit_for_bit(tmp_path, keys):
    whole = Policy()
    governed, old = measured(whole, **keys)
    schedule = torch.optim.lr_scheduler.ExponentialLR(governed, 0.9)
    run(whole, governed, 3, old)
    schedule.step()
    torch.save({"model": whole.state_dict(), "optimizer": governed.state_dict()}, tmp_path / "checkpoint.pt")
    run(whole, governed, 4, old)
    resumed = Policy()
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed.load_state_dict(saved["model"])
    again, old = measured(resumed, **keys)
    again.load_state_dict(saved["optimizer"])
    run(resumed, again, 4, old)
    assert same(whole, resumed) and again.records == governed.records and "governor.kl/predicted_kl" in again.records
    assert again.state_dict()["controls"][0][1].tolist() == governed.state_dict()["controls"][0][1].tolist()
    assert again.param_groups[0]["lr"] == governed.param_groups[0]["lr"] != 1e-2


def test_a_control_measures_a_part_of_a_step():
    class Halves(Says):
        def __call__(self, batch, weights, groups, measure):
            self.told = [measure.measure_kl(1.0, share) for share in (0.5, 1.0)]
            return super().__call__(batch, weights, groups, measure)

    def once(*controls):
        model = Policy()
        optimizer, old = measured(model)
        optimizer.controls = list(controls)
        return run(model, optimizer, 1, old), weights(model)

    halves, then = Halves(*[1.0] * 4), Halves(*[1.0] * 4)
    (_, after), (_, expected) = once(halves), once(Says(*[1.0] * 4))
    assert all(torch.equal(a, b) for a, b in zip(after, expected, strict=True)), "the step is whole again"
    once(Says(*[0.5] * 4), then)
    assert halves.told[0] == then.told[1] < 0.5 * halves.told[1]


def test_the_search_measures_a_shortened_step_again():
    model, asked = Policy(), []
    optimizer, old = measured(model)
    optimizer._measure = lambda fraction, exact=optimizer._measure: asked.append(fraction) or exact(fraction)
    # Each of the first six steps is far too long, so it is measured both whole and shortened.
    run(model, optimizer, 8, old)
    assert asked[:12] == [1.0] * 12 and asked[12:] == [0.125] * 2
    assert optimizer.records["governor.kl/scale"] == optimizer.records["step_control/applied"] < 0.5


def test_uses_the_second_moment_without_a_measure():
    model = Policy()
    with pytest.warns(capo_rl.CapoWarning, match="½ Σ Δ² v̂ of Adam's second moment is told in its place"):
        optimizer = Governed(adam(model), capo_rl.StepControl("governor.kl", target=1e-5, every=4))
    run(model, optimizer)
    told = optimizer.records
    assert told["governor.kl/rho"] == 0 and told["governor.kl/scale"] == pytest.approx(math.sqrt(1e-5 / told["governor.kl/predicted_kl"]))


def test_sentences():
    model, other = Policy(), Policy()

    def say(kind, call):
        with pytest.raises(kind) as error:
            call()
        return str(error.value)

    assert say(ValueError, lambda: Governed(adam(model), "governor.kl", lambda _: 0.0, model=other)) == (
        "the optimizer has weights that do not belong to `model` (give the model whose parameters the optimizer has)"
    )
    assert say(ValueError, lambda: Governed(torch.optim.LBFGS(model.parameters()), "governor.kl", lambda _: 0.0)) == (
        "LBFGS makes several gradients in a step and counts on having taken all of it, so no control can shorten one (use another optimizer, such as AdamW)"
    )
    governed = Governed(adam(model), "governor.kl", lambda _: 0.0)
    assert say(ValueError, lambda: governed.load_state_dict(adam(model).state_dict())) == (
        "this is the state of an optimizer with the step controls [], and this one has ['governor.kl'] (give it the same)"
    )
    sgd = Governed(torch.optim.SGD(model.parameters(), lr=0.1), capo_rl.StepControl("governor.kl", every=2), lambda _: 0.0)
    assert say(capo_rl.CapoError, lambda: run(model, sgd, 1)).endswith("(set `every = 1`): `measure.fisher` raised ValueError: the optimizer keeps no second moment "
        "(measure the KL itself, or train with Adam)")  # fmt: skip
    assert say(ValueError, lambda: run(model, Governed(adam(model), "governor.last-layer", lambda _: 0.0), 1)).startswith(
        "component `governor.last-layer` asks for LAST_LAYER, which the batch does not hold"
    )

    def broken(fraction):
        raise RuntimeError(f"no {fraction}")

    with pytest.raises(capo_rl.CapoError, match="component `governor.kl`: `measure.measure_kl` raised RuntimeError: no 1.0") as error:
        run(model, Governed(adam(model), "governor.kl", broken), 1)
    assert isinstance(error.value.__cause__, RuntimeError)


@pytest.mark.parametrize("way", ["ddp", "fsdp2", "hsdp"])
def test_two_ranks_apply_the_same_share_as_one(tmp_path, way):
    program = Path(__file__).parent / "governed_ranks.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", program, way]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    first, second = (torch.load(tmp_path / f"ranks-{way}.{rank}", weights_only=False) for rank in range(2))
    assert first["told"] == second["told"] and first["states"] == second["states"], "bit for bit"
    assert all(torch.equal(a, b) for a, b in zip(first["weights"], second["weights"], strict=True))
    model = Policy()
    optimizer, old = measured(model, target=1e-5, every=2)
    for told in first["told"]:
        run(model, optimizer, 1, old)
        assert optimizer.records == pytest.approx(told, rel=1e-3)
    for one, found in zip(weights(model), first["weights"], strict=True):
        assert torch.allclose(one, found, rtol=0, atol=1e-6)


def test_the_component_follows_a_run_of_host(host, tmp_path):
    """The component gets the numbers that a run of ``host`` recorded, and must give the run's scales and state."""
    settings = ["train.max_steps=9", "train.learning_rate=1e-3", "train.lr_scheduler_type=constant", "train.warmup_ratio=0", "train.save_steps=9"]
    settings += ["logging.logging_steps=1", "eval.num_prompts=0", 'step_control=[{use="governor.kl",every=3,target=2e-5}]']
    words = [word for setting in settings for word in ("--set", setting)]
    command = [host, "train", "--plugin", PLUGINS / "libgovernor.so", *words, "--output-dir", tmp_path / "run"]
    subprocess.run(command, check=True, capture_output=True)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    told = [{name.split("/")[1]: value for name, value in line.items() if name.startswith("governor.kl/")} for line in lines]
    told = [line for line in told if line]
    assert len(told) == 9 and sum("kl" in line for line in told) >= 3 and max(line["scale"] for line in told) < 1
    control, ids = capo_rl.StepControl("governor.kl", every=3, target=2e-5), torch.ones(1, 1, dtype=torch.int32)

    class Recorded:
        def __init__(self, line, rho):
            # The metrics do not have the estimate. It follows from the calibration, with which it was multiplied.
            self.estimate = line["predicted_kl"] / math.exp(rho) if rho is not None else line["kl"] / math.exp(line["rho"])
            self.line = line

        def norms(self):
            return [1.0]

        def fisher(self):
            return self.estimate

        def last_layer_kl(self):
            return 0.0

        def measure_kl(self, fraction, share):
            return self.line["kl"]

    rho = None
    for step, line in enumerate(told):
        batch = capo_rl.Batch(ids, ids == 1, ids.float(), progress=capo_rl.Progress(step=step))
        (scale,), records = control(batch, ids.float(), {"model": 1}, Recorded(line, rho))
        assert scale == pytest.approx(line["scale"], rel=1e-12)
        for name in ("kl", "predicted_kl", "rho"):
            assert records.get(f"governor.kl/{name}") == pytest.approx(line[name], rel=1e-12) if name in line else f"governor.kl/{name}" not in records
        rho = line["rho"]
    bits = int(control.state_dict()["state"].removeprefix(b"governor.kl/1 "), 16)
    assert abs(bits - int.from_bytes(struct.pack(">d", rho), "big")) <= 8, "the last places of a logarithm"
