"""`capo_rl.torch.AdamW` against its formula in 64 bits, and against torch's AdamW."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from capo_rl.torch import AdamW  # noqa: E402

WAYS = [{"foreach": False}, {"foreach": True}, {"fused": True}]
LR, BETAS, EPS, DECAY, CLIP = 1e-2, (0.8, 0.95), 1e-6, 0.1, 0.5


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(*shape, generator=generator)) for shape in ((3, 4), (5,), (2, 2))]


def gradients(steps, parts):
    generator = torch.Generator().manual_seed(7)
    return [[[0.3 * torch.randn(p.shape, generator=generator) for p in parameters()] for _ in range(parts)] for _ in range(steps)]


def expected(steps):
    """The weights after steps with these gradients (kept, rejected), by the formula."""
    weights = [p.detach().double() for p in parameters()]
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    for number, (kept, rejected) in enumerate(steps, 1):
        norm = torch.cat([(k.double() + r.double()).flatten() for k, r in zip(kept, rejected, strict=True)]).norm()
        clip = min(1.0, CLIP / (norm + 1e-6))
        for i, (k, r) in enumerate(zip(kept, rejected, strict=True)):
            k, r = clip * k.double(), clip * r.double()
            first[i] = BETAS[0] * first[i] + (1 - BETAS[0]) * k
            second[i] = BETAS[1] * second[i] + (1 - BETAS[1]) * (k * k + r * r)
            root = (second[i] / (1 - BETAS[1] ** number)).sqrt() + EPS
            weights[i] = weights[i] * (1 - LR * DECAY) - LR * (first[i] / (1 - BETAS[0] ** number)) / root
    return weights


def optimizer(own, **keys):
    return AdamW(own, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, **keys)


def set_grads(own, grads):
    for parameter, grad in zip(own, grads, strict=True):
        parameter.grad = grad.clone()


@pytest.mark.parametrize("way", WAYS, ids=["single", "foreach", "fused"])
def test_steps_follow_the_formula(way):
    steps, own = gradients(5, 2), parameters()
    adamw = optimizer(own, second_moment="kept_and_rejected", **way)
    for kept, rejected in steps:
        set_grads(own, kept)
        # The gradient comes in two parts, as from several micro-batches.
        for share in (0.25, 0.75):
            with adamw.rejected():
                sum((p * share * r).sum() for p, r in zip(own, rejected, strict=True)).backward()
        assert all(torch.equal(p.grad, k) for p, k in zip(own, kept, strict=True)), "what was kept is as it was"
        adamw.clip_grad_norm_(CLIP)
        adamw.step()
        adamw.zero_grad()
    for found, wanted in zip(own, expected(steps), strict=True):
        assert (found.double() - wanted).abs().max() < 1e-6


@pytest.mark.parametrize("way", WAYS, ids=["single", "foreach", "fused"])
def test_without_rejected_gradients_the_bits_equal_torchs(way):
    one, other = parameters(), parameters()
    ours = optimizer(one, second_moment="kept_and_rejected", **way)
    theirs = torch.optim.AdamW(other, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, **way)
    for (kept,) in gradients(5, 1):
        set_grads(one, kept)
        set_grads(other, kept)
        assert torch.equal(ours.clip_grad_norm_(CLIP), torch.nn.utils.clip_grad_norm_(other, CLIP))
        ours.step()
        theirs.step()
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_cancelling_gradients_leave_the_step_bounded():
    (kept,) = gradients(1, 1)[0]
    one, other = parameters(), parameters()
    adamw, plain = (optimizer(each, second_moment="kept_and_rejected") for each in (one, other))
    set_grads(one, kept)
    with adamw.rejected():
        set_grads(one, [-k for k in kept])
    adamw.step()
    set_grads(other, kept)
    plain.step()
    moved = lambda own: torch.cat([(p - q).flatten() for p, q in zip(own, parameters(), strict=True)]).norm()
    assert moved(one) < moved(other)


def test_ddps_buckets_overwrite_neither_gradient(tmp_path):
    """With `gradient_as_bucket_view`, DDP writes every gradient into the memory of the last one."""

    def trained(wrapped):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        called, adamw = wrapped(model), optimizer(model.parameters(), second_moment="kept_and_rejected")
        for _ in range(2):
            for kept, rejected in torch.randn(2, 2, 5, 4):
                called(kept).square().sum().backward()
                with adamw.rejected():
                    called(rejected).square().sum().backward()
            adamw.step()
            adamw.zero_grad()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        found = trained(lambda model: torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True))
    finally:
        torch.distributed.destroy_process_group()
    assert torch.allclose(found, trained(lambda model: model), rtol=0, atol=1e-6)


def test_rejected_gradients_of_a_closure_count_in_its_step():
    steps, one, other = gradients(3, 2), parameters(), parameters()
    called, plain = (optimizer(own, second_moment="kept_and_rejected") for own in (one, other))

    def taken(own, adamw, kept, rejected):
        assert torch.is_grad_enabled()
        adamw.zero_grad()
        set_grads(own, kept)
        with adamw.rejected():
            set_grads(own, rejected)
        return 7.0

    for step in steps:
        assert called.step(lambda step=step: taken(one, called, *step)) == 7.0
        taken(other, plain, *step)
        plain.step()
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_states_equal_torchs_and_continue_bit_for_bit():
    steps, one = gradients(4, 2), parameters()
    first = optimizer(one, second_moment="kept_and_rejected")

    def take(own, adamw, kept, rejected):
        set_grads(own, kept)
        with adamw.rejected():
            set_grads(own, rejected)
        adamw.step()

    for step in steps[:2]:
        take(one, first, *step)
    two = [torch.nn.Parameter(p.detach().clone()) for p in one]
    second = optimizer(two, second_moment="kept_and_rejected")
    # A loaded state shares its tensors with the saved one.
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for step in steps[2:]:
        take(one, first, *step)
        take(two, second, *step)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert set(first.state_dict()["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}


def test_hooks_run_once():
    torch.optim.AdamW(parameters())
    own, ran = parameters(), []
    adamw = optimizer(own, second_moment="kept_and_rejected")
    adamw.register_step_post_hook(lambda *_: ran.append(1))
    set_grads(own, gradients(1, 1)[0][0])
    adamw.step()
    assert ran == [1]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda adamw: pickle.loads(pickle.dumps(adamw))])
def test_copies_keep_second_moment(copied):
    adamw = copied(optimizer(parameters(), second_moment="kept_and_rejected"))
    own = [parameter for _, parameter in adamw._parameters()]
    set_grads(own, gradients(1, 1)[0][0])
    with adamw.rejected():
        set_grads(own, gradients(1, 1)[0][0])
    adamw.step()
    assert adamw.second_moment == "kept_and_rejected" and adamw._step_supports_amp_scaling


@pytest.mark.parametrize("way", [{}, {"fused": True}])
def test_refuses_a_grad_scaler(way):
    own, scaler = parameters(), torch.amp.GradScaler("cpu")
    adamw = optimizer(own, second_moment="kept_and_rejected", **way)
    for _ in range(2):
        scaler.scale(own[0].sum()).backward()
        with pytest.raises(ValueError, match='second_moment "kept_and_rejected" does not go with a GradScaler'):
            scaler.step(adamw)
        scaler.update()
    adamw.step()
    kept = optimizer(own, **way)
    scaler.scale(own[0].sum()).backward()
    scaler.step(kept)


def test_sentences():
    def say(**keys):
        with pytest.raises(ValueError) as error:
            AdamW(parameters(), **keys)
        return str(error.value)

    assert say(second_moment="both") == 'second_moment is \'both\' (use "kept" or "kept_and_rejected")'
    assert say(second_moment="kept_and_rejected", amsgrad=True) == 'second_moment "kept_and_rejected" does not go with amsgrad (leave it out)'
    adamw = AdamW(parameters(), second_moment="kept_and_rejected")
    with pytest.raises(ValueError, match="does not go with maximize"):
        adamw.add_param_group({"params": parameters(1), "maximize": True})
    assert len(adamw.param_groups) == 1
    assert say(second_moment="kept_and_rejected", betas=(0.9, 0.0)).endswith("needs a beta2 above 0 (betas are (0.9, 0.0))")
    with pytest.raises(ValueError, match='second_moment is "kept": a rejected gradient has no use'):
        with AdamW(parameters()).rejected():
            pass
