"""`capo_rl.torch.Governed` with steps that are not finite, that break off or that a `GradScaler` takes; copies, refused states, frozen weights."""

import copy
import math
import pickle

import capo_rl
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from capo_rl.torch import AdamW, Governed, kl_divergence  # noqa: E402

from test_governed import IDS, Policy, Says, adam, run, same, weights  # noqa: E402


def loss(model):
    return model(IDS).log_softmax(-1)[..., 5].sum().neg()


@pytest.mark.parametrize("rejected", [False, True])
def test_leaves_out_steps_with_gradients_that_are_not_finite(rejected):
    """Adam's moments would stay NaN forever."""
    model, spared = Policy(), Policy()
    make = lambda model: AdamW(model.parameters(), lr=1e-2, second_moment="kept_and_rejected")
    optimizer, other = (Governed(make(each), [Says(0.5)], lambda _: 0.0) for each in (model, spared))
    run(model, optimizer, 1)
    loss(model).backward()
    if rejected:
        with optimizer.rejected():
            (loss(model) * math.inf).backward()
    else:
        model.lm_head.weight.grad[0, 0] = math.nan
    before = weights(model)
    with pytest.warns(capo_rl.CapoWarning, match="a gradient is not finite, so this step is left out"):
        optimizer.step()
    optimizer.zero_grad()
    assert all(map(torch.equal, before, weights(model))) and optimizer.steps == 2
    assert optimizer.records == {"step_control/applied": 0.0, "step_control/skipped": 1.0}
    run(model, optimizer, 1)
    run(spared, other, 2)
    assert same(model, spared)


@pytest.mark.parametrize("fused", [False, True])
def test_works_with_a_grad_scaler_and_its_overflows(fused):
    found = []
    for scaled in (False, True):
        model = Policy()
        optimizer = Governed(torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused), [Says(0.5)], lambda _: 0.0)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        for factor in (1.0, math.inf, 1.0):
            if scaled or factor == 1:
                scaler.scale(factor * loss(model)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        found.append((weights(model), [state["exp_avg_sq"] for state in optimizer.state.values()], optimizer.steps))
    for one, other in zip(*found, strict=True):
        assert one == other == 2 if isinstance(one, int) else all(map(torch.allclose, one, other))


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_undoes_steps_that_break_off_in_a_measurement(error):
    def measure(fraction):
        raise error

    model = Policy()
    optimizer = Governed(adam(model), [Says(1.0), capo_rl.StepControl("governor.kl")], measure)
    with pytest.raises((KeyboardInterrupt, capo_rl.CapoError)):
        run(model, optimizer, 1)
    assert same(model, Policy()) and optimizer.steps == 0


def test_repeats_steps_that_break_off_between_measurements():
    left = []
    for breaks in (True, False):
        looks = []

        def measure(fraction):
            looks.append(fraction)
            if breaks and len(looks) == 2:
                raise KeyboardInterrupt
            return 2.0

        model = Policy()
        optimizer = Governed(torch.optim.SGD(model.parameters(), lr=1.0), "governor.kl", measure)
        if breaks:
            with pytest.raises((KeyboardInterrupt, capo_rl.CapoError)):
                run(model, optimizer, 1)
            optimizer.zero_grad()
        run(model, optimizer, 1)
        left.append(optimizer.records)
    assert left[0] == left[1] and 0 < left[0]["step_control/applied"] < 0.5


def test_a_shortened_step_counts_as_one_of_a_lower_rate():
    class Rate(Says):
        def __call__(self, batch, weights, groups, measure):
            self.rates = [*getattr(self, "rates", []), batch.optimizer.learning_rate]
            return super().__call__(batch, weights, groups, measure)

    model, controls = Policy(), [Rate(0.5), Rate(0.5), Rate(1.0)]
    run(model, Governed(adam(model), controls, lambda _: 0.0), 1)
    assert [each.rates for each in controls] == [[1e-2], [5e-3], [2.5e-3]]


def test_shortens_weights_that_were_frozen_after_the_backward_pass():
    model = Policy()
    optimizer = Governed(adam(model), [Says(0.0)], lambda _: 0.0)
    loss(model).backward()
    model.lm_head.weight.requires_grad_(False)
    optimizer.step()
    assert same(model, Policy())


def test_a_refused_state_changes_nothing():
    optimizer, other = (Governed(adam(Policy()), "governor.kl", lambda _: 1e-3) for _ in range(2))
    before = other.controls[0].state_dict()
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state_dict()
    assert optimizer.controls[0].state_dict() != before
    with pytest.raises(ValueError, match="different number of parameter groups"):
        other.load_state_dict(state | {"param_groups": state["param_groups"] * 2})
    assert other.controls[0].state_dict() == before


@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, pickle.dumps])
def test_refuses_copies(way):
    with pytest.raises(TypeError, match="a governed optimizer is not copied: `measure` would still measure the first model"):
        way(Governed(adam(Policy()), "governor.kl", lambda _: 0.0))


def test_automatic_targets_need_a_measure():
    """½ Σ Δ² v̂ depends on the scale of the loss, and the search needs nats."""
    for control in ("governor.kl", capo_rl.StepControl("governor.kl", target="auto")):
        with pytest.raises(ValueError, match=r"`governor.kl` finds its target in KL divergences that nothing measures here \(give `measure`, or a `target`"):
            Governed(adam(Policy()), [Says(1.0), control])


def test_divergence_with_impossible_tokens():
    old, new = torch.randn(2, 3, 5).unbind(0)
    bar = lambda logits: torch.cat([logits, torch.full((3, 1), -math.inf)], 1)
    assert torch.allclose(kl_divergence(bar(old), bar(new)), kl_divergence(old, new))
