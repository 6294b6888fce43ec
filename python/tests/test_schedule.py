"""The largest rate at which a gradient acts, read from torch's and transformers' schedulers before they advance."""

import pytest

torch = pytest.importorskip("torch")
import capo_rl  # noqa: E402
from capo_rl.torch import acting_rate  # noqa: E402
from torch.optim import lr_scheduler as torch_schedulers  # noqa: E402

PEAK, STEPS = 1e-3, 40


def optimizer(groups=1):
    return torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": PEAK / (1 + at)} for at in range(groups)])


def transformers_scheduler(kind, steps, warmup, **more):
    transformers = pytest.importorskip("transformers")
    return transformers.get_scheduler(kind, optimizer(), warmup, steps, **more)


def rates_of(scheduler):
    """All rates of a run, read by advancing the scheduler."""
    rates = []
    for _ in range(STEPS):
        rates.append(scheduler.optimizer.param_groups[0]["lr"])
        scheduler.optimizer.step()
        scheduler.step()
    return rates


SCHEDULERS = {
    "linear": lambda: transformers_scheduler("linear", STEPS, 12),
    "cosine": lambda: transformers_scheduler("cosine", STEPS, 4),
    "restarts": lambda: transformers_scheduler("cosine_with_restarts", STEPS, 0, scheduler_specific_kwargs={"num_cycles": 3}),
    "constant": lambda: transformers_scheduler("constant", STEPS, 0),
    "one cycle": lambda: torch_schedulers.OneCycleLR(optimizer(), PEAK, total_steps=STEPS + 1),
    "sequence": lambda: (
        lambda of: torch_schedulers.SequentialLR(of, [torch_schedulers.LinearLR(of, 0.1, total_iters=9), torch_schedulers.ExponentialLR(of, 0.9)], [9])
    )(optimizer()),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(("beta1", "memory"), [(0.9, 10), (0.95, 20), (0.0, 1)])
def test_acting_rate_is_the_largest_rate_that_the_moment_remembers(name, beta1, memory):
    rates, scheduler = rates_of(SCHEDULERS[name]()), SCHEDULERS[name]()
    for step in range(STEPS):
        assert acting_rate(scheduler, STEPS - step, beta1=beta1) == max(rates[step : step + memory]), step
        assert scheduler.optimizer.param_groups[0]["lr"] == rates[step], "the schedule itself stays where it is"
        scheduler.optimizer.step()
        scheduler.step()


def test_groups_have_their_own_rates():
    both = optimizer(2)
    scheduler = torch_schedulers.LambdaLR(both, [lambda step: (step + 1) / 10, lambda step: 1.0])
    assert acting_rate(scheduler, 5) == pytest.approx(PEAK / 2)
    assert acting_rate(scheduler, 5, group=1) == PEAK / 2


def test_unpredictable_schedules_keep_the_steps_own_rate():
    plateau = torch_schedulers.ReduceLROnPlateau(optimizer())
    assert acting_rate(plateau, STEPS) == PEAK

    class Broken(torch_schedulers.LambdaLR):
        def get_lr(self):
            if self.last_epoch:
                raise RuntimeError("the rates of a server that is away")
            return super().get_lr()

    with pytest.warns(capo_rl.CapoWarning, match="cannot be read from `Broken`"):
        assert acting_rate(Broken(optimizer(), lambda step: 1.0), STEPS) == PEAK
