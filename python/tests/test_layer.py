"""What components learn about an optimizer: its kind, the rate of the head's group, the mean rate of all groups, and the last step."""

import math
from dataclasses import replace

import capo_rl
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from capo_rl._layer import check_optimizer, optimizer_info, step_info  # noqa: E402
from capo_rl._moments import adam_moments  # noqa: E402
from capo_rl._proposal import Proposal, groups_of  # noqa: E402
from capo_rl.torch import AdamW, Governed  # noqa: E402

from test_governed import Policy, Says, adam, run  # noqa: E402


class Own(torch.optim.AdamW):
    pass


class Wrapper(torch.optim.Optimizer):
    """A wrapper of an optimizer, like accelerate's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    param_groups, state = (property(lambda self, name=name: getattr(self.optimizer, name)) for name in ("param_groups", "state"))

    def step(self, closure=None):
        self.optimizer.step(closure)


class Sees(Says):
    def __call__(self, batch, *others):
        self.seen.append(batch.optimizer)
        return [1.0], {}


def adafactor(parameters, lr):
    from transformers import Adafactor

    return Adafactor(parameters, lr=lr, relative_step=False, scale_parameter=False, beta1=0.9)


@pytest.mark.parametrize(
    ("make", "masks", "controls"),
    [
        (torch.optim.AdamW, "adamw", "adamw"),
        (Own, "adamw", "adamw"),
        (lambda parameters, lr: Wrapper(Own(parameters, lr=lr)), "adamw", "adamw"),
        (lambda parameters, lr: AdamW(parameters, lr=lr, second_moment="kept_and_rejected"), "adamw_kept_and_rejected", "adamw_kept_and_rejected"),
        (torch.optim.NAdam, None, "adamw"),
        (torch.optim.RMSprop, None, "sgd"),
        (adafactor, None, "sgd"),
    ],
)
def test_kinds_and_rates(make, masks, controls):
    """Masks judge by the rate of the head's group, and step controls by the root mean square of the rates over all weights."""
    if make is adafactor:
        pytest.importorskip("transformers", reason="transformers is not installed")
    model, control = Policy(), Sees()
    head, body = model.lm_head.weight, [*model.embed_tokens.parameters(), *model.layers.parameters(), *model.norm.parameters()]
    for groups in ([{"params": body, "lr": 1e-4}, {"params": [head], "lr": 1e-1}], [{"params": [head], "lr": 1e-1}, {"params": body, "lr": 1e-4}]):
        optimizer = make(groups, lr=1.0)
        known = optimizer_info(optimizer, 3, 1.0, head)
        assert (known and (known.kind, known.learning_rate, known.steps_taken)) == (masks and (masks, 1e-1, 3))
        # With a batch that does not know the optimizer, and without a batch.
        one, governed = torch.ones(1, 1), Governed(optimizer, [control], lambda _: 0.0)
        for batch in (None, capo_rl.Batch(one.int(), one == 1, -one)):
            model(torch.tensor([[1, 4]])).log_softmax(-1)[..., 5].sum().neg().backward()
            governed.step(batch=batch)
            mean = math.sqrt((88 * 1e-2 + 248 * 1e-8) / 336)
            assert control.seen[-1].kind == controls and control.seen[-1].learning_rate == pytest.approx(mean, rel=1e-12)
    if masks is None:
        with pytest.raises(ValueError, match=r"`capo.curvature` needs to know the optimizer, and \w+ is none of SGD, Adam, AdamW \(use another\)"):
            check_optimizer(type(optimizer), [capo_rl.Mask("masks.truncated"), capo_rl.Mask("capo.curvature")], "use another")


def test_equal_rates_of_groups_give_exactly_that_rate():
    weights = [torch.nn.Parameter(torch.ones(size)) for size in (3, 7, 11)]
    optimizer = torch.optim.AdamW([{"params": [each]} for each in weights], lr=0.1)
    known = optimizer_info(optimizer, 0, 1.0)
    assert step_info(optimizer, known) == known
    optimizer.param_groups[1]["lr"] = 0.0
    assert step_info(optimizer, known) == replace(known, learning_rate=pytest.approx(0.1 * math.sqrt(14 / 21)))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("maximize", [False, True])
def test_alignment_knows_rates_of_groups_and_ascent(kind, maximize):
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(50)) for _ in range(2)]
    more = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    groups = [{"params": [each], "lr": rate} for each, rate in zip(weights, (1e-3, 1e-1), strict=True)]
    optimizer, before = kind(groups, weight_decay=0.0, maximize=maximize, **more), [each.detach().clone() for each in weights]
    first, second = torch.randn(50), torch.randn(50)
    weights[0].grad, weights[1].grad = first.clone(), -second
    optimizer.step()
    moved = torch.cat([after.detach() - was for after, was in zip(weights, before, strict=True)]).double()
    weights[0].grad, weights[1].grad = first, second
    downhill = torch.cat([first, second]).double() * (1 if maximize else -1)
    cosine = float(moved @ downhill / moved.norm() / downhill.norm())
    assert abs(cosine) > 0.1 and Proposal(optimizer, groups_of(optimizer, None), alignment=True).alignment() == pytest.approx(cosine, rel=1e-4)


def test_fisher_estimate_before_gradients_and_without_adam():
    governor = lambda: capo_rl.StepControl("governor.kl", target=1e-4, every=2)
    optimizer = Governed(adam(Policy()), governor(), lambda _: 0.0)
    optimizer.step()
    assert optimizer.records["governor.kl/scale"] == 1
    vectors = {"exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)}
    assert adam_moments(vectors, {"beta1": 0.9}) is None and adam_moments(vectors, {"betas": (0.9, 0.99)}) is not None
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = Policy()
    with pytest.raises(capo_rl.CapoError, match="the optimizer keeps no second moment"):
        run(model, Governed(adafactor(model.parameters(), 1e-2), governor(), lambda _: 1.0), 1)
