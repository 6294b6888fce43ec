"""Steps in verl: decisions in flight, step controls, rejected gradients in the second moment, bytes that ranks receive, and resumed runs."""

import pytest

from conftest import GOVERNED, GOVERNED_NUMBERS, GOVERNED_STEPS, recorded_run
from verl_runs import ACTOR, AHEAD, BENCHES, CASES, DYNAMIC, MODEL, ORIGINAL, REMEMBERS, difference, in_one, kept, launch, rates, received, saved, scales, torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("verl-steps")


RESUMED = {
    "ahead": (AHEAD,),
    "flight": ("mode=inflight",),
    "controlled": ("masks=none", "controls=third", "lr=1e-2"),
    "all-three": ("controls=auto", REMEMBERS),
}


def test_a_resumed_run_equals_an_uninterrupted_one(folder):
    runs = {f"uninterrupted-{name}": words for name, words in RESUMED.items()}
    runs |= {f"cut-{name}": ("save=2", "steps=2", *words) for name, words in RESUMED.items()}
    launch(folder, *in_one(runs), ranks=2)
    launch(folder, *in_one({f"resumed-{name}": (f"resume={folder / f'cut-{name}-2'}", *words) for name, words in RESUMED.items()}), ranks=2)
    for name in RESUMED:
        for rank in range(2):
            one, other = (saved(folder, f"{kind}-{name}", rank) for kind in ("resumed", "uninterrupted"))
            assert difference(one, other) == 0 and one["states"] == other["states"], name
            assert rates(one) == rates(other)[2:] and scales(one) == scales(other)[2:], name


def test_weights_in_a_warm_up_use_coming_rates(folder):
    weighed = ("masks=none", "weights=capo.curvature-weight", "steps=1", "lr=1e-1")
    runs = {"at-once": weighed, "warm": (*weighed, f"{ACTOR}.optim.lr_warmup_steps=3")}
    launch(folder, *in_one(runs))
    at_once, warm = (saved(folder, name)["numbers"][0]["capo/capo.curvature-weight/weight/mean"] for name in runs)
    assert warm == at_once and warm[0] < 0.9


FLIGHT = {
    "capo": (),
    "micro": ("micro=2",),
    "original": (ORIGINAL,),
    "sequences": (f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", "holes=1"),
    "floor": ("masks=floor", "weights=capo.curvature-weight"),
    "remembers": (REMEMBERS,),
}


def test_in_flight_decisions_equal_those_ahead_and_ranks_gather_no_tokens(folder):
    runs = {f"{mode}-{name}": (f"mode={mode}", "steps=3", *words) for mode in ("ahead", "inflight") for name, words in FLIGHT.items()}
    launch(folder, *in_one(runs))
    launch(folder, *in_one({f"two-{name}": words for name, words in runs.items()}), ranks=2)
    for name in FLIGHT:
        one = saved(folder, f"ahead-{name}")
        assert all(0 < rate < 1 for rate in rates(one)), name
        ranks = [saved(folder, f"two-inflight-{name}", rank) for rank in range(2)]
        for others in ([saved(folder, f"inflight-{name}")], ranks):
            assert rates(others[0]) == rates(one), name
            for step, steps in zip(kept(*others), kept(one), strict=True):
                assert len(step) == len(steps) and all(a == pytest.approx(b, rel=1e-5) for a, b in zip(step, steps, strict=True)), name
            assert difference(others[0], one) < 1e-5, name
        assert ranks[0]["states"] == ranks[1]["states"] and difference(*ranks) == 0, f"{name}: bit for bit"
    assert max(received(folder, "two-inflight-capo")) < min(received(folder, "two-ahead-capo"))
    assert (folder / "two-ahead-capo.log").read_text().count("every step a rank receives about") == len(FLIGHT), "of runs ahead"


def test_ranks_receive_as_many_bytes_as_the_formulas_say(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHES))
    import verl_scale

    runs = {"bytes-ahead": (AHEAD,), "bytes-inflight": (), "bytes-remembers": (REMEMBERS,), "bytes-floor": ("masks=floor", AHEAD)}
    launch(folder, *in_one({**runs, "bytes-control": CONTROLLED}), ranks=2)
    longest = [len(ids[0]) for ids, _ in saved(folder, "bytes-ahead", 0)["seen"]]
    sizes = {"width": 32, "vocabulary": 32}
    assert received(folder, "bytes-ahead") == [verl_scale.ahead(2, 8, tokens, **sizes, bytes_=4) for tokens in longest]
    for name, parts in (("inflight", 1), ("remembers", 2)):
        assert received(folder, f"bytes-{name}") == [verl_scale.inflight(2, 32, 32, **sizes, bytes_=4, parts=parts)] * 4, name
    # The first step always reads the last layer.
    once = [verl_scale.head(2, 32, 32, 4), 0, 0, 0]
    assert received(folder, "bytes-control") == [verl_scale.control(2, 8, tokens, **sizes) + more for tokens, more in zip(longest, once, strict=True)]
    plain = [8 / 2 * (verl_scale.COMPLETION + tokens * verl_scale.TOKEN) for tokens in longest]
    assert received(folder, "bytes-floor") == plain, "what no mask reads does not travel"


CONTROLLED = ("masks=none", "controls=half", "lr=1e-2")


@pytest.fixture(scope="module")
def controlled(folder):
    alone, adapter = ("masks=none", "lr=1e-2"), (f"{MODEL}.lora_rank=4", f"{MODEL}.target_modules=[q_proj,v_proj]")
    runs = {"controlled": CONTROLLED, "stock": alone, "loose": (*alone, "controls=loose"), "third": (*alone, "controls=third")}
    runs |= {"asks": ("masks=none", "controls=asks", "path=1"), "full": ("masks=none", "controls=full", "path=1", "micro=2"), "lora": (*adapter, *CONTROLLED)}
    runs |= {"with-masks": ("controls=half", REMEMBERS), "with-masks-ahead": ("controls=half", REMEMBERS, AHEAD)}
    runs |= {"skipped": ("masks=all", "controls=half", "steps=2")}
    launch(folder, *in_one(runs))
    return saved(folder, "controlled")


def test_step_controls_only_shorten_steps(folder, controlled):
    stock, loose, third = (saved(folder, name) for name in ("stock", "loose", "third"))
    assert stock["engine"] == "CapoEngine" and difference(loose, stock) == 0 and scales(loose) == [1.0] * 4, "to the bit"
    assert len(scales(controlled)) == 4 and max(scales(controlled)) < 0.1
    told = controlled["numbers"][0]
    assert told["capo/governor.kl/applied"] == told["capo/step_control/applied"] == told["capo/governor.kl/scale"] and told["capo/governor.kl/kl"][0] > 1e-3
    assert ["capo/governor.kl/kl" in line for line in third["numbers"]].count(True) == 2, "else Adam's second moment tells"
    assert max(scales(saved(folder, "lora"))) < 1
    assert not scales(saved(folder, "skipped")), "no step is proposed"
    both, ahead = saved(folder, "with-masks"), saved(folder, "with-masks-ahead")
    assert kept(both) == kept(ahead) and scales(both) == pytest.approx(scales(ahead), rel=1e-4) and difference(both, ahead) < 1e-5
    # Masks judge later steps by the learning rate times the share that was left of the step before, so they reject nothing.
    assert 0 < rates(both)[0] < 1 and max(scales(both)) < 1


def test_measures_and_shortens_steps_as_host_does(folder, host):
    settings = {"max_steps": GOVERNED_STEPS, "adam_beta2": 0.999, "per_device_train_batch_size": 32, "max_grad_norm": 1}
    _, batches, told = recorded_run(host, folder, "governed", *GOVERNED, "--set", "rollout.num_generations=8", **settings)
    settings = (f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", f"{ACTOR}.optim.weight_decay=0")
    rows = ("rows=32", "micro=32", "generations=8", f"steps={GOVERNED_STEPS}")
    found = launch(folder, "recorded", "masks=none", "controls=follows", f"recorded={batches}", *rows, *settings)
    for name, apart in GOVERNED_NUMBERS.items():
        expected = [line[f"governor.kl/{name}"] for line in told if f"governor.kl/{name}" in line]
        name = f"capo/governor.kl/{name}"
        assert len(expected) > 6 and [line[name][0] for line in found["numbers"] if name in line] == pytest.approx(expected, rel=apart), name


def test_measurements_equal_those_from_the_models_logits(folder, controlled):
    """In 64 bits, over all completions of the step: the divergence of a governed step equals its target, and every measurement is exact."""
    from transformers import Qwen2ForCausalLM

    from tiny_verl import batch, options

    full, asks = saved(folder, "full"), saved(folder, "asks")
    for run in (full, asks):
        model = Qwen2ForCausalLM.from_pretrained(folder / "model-0-32-0", dtype=torch.float64)
        for step, weights in enumerate(run["path"]):
            data, told = batch(step, options([])), run["numbers"][step]
            pairs = list(zip(data["input_ids"].unbind(), data["responses"].unbind(), strict=True))
            weights = {name: value.double() for name, value in weights.items()}

            @torch.no_grad()
            def logps(changed):
                model.load_state_dict(changed)
                return torch.cat([model(row[None]).logits[0, -len(response) - 1 : -1].log_softmax(-1) for row, response in pairs])

            before = {name: value.clone() for name, value in model.state_dict().items()}
            old, by_head, new = logps(before), logps(before | {"lm_head.weight": weights["lm_head.weight"]}), logps(weights)
            divergence = lambda other: float((old.exp() * (old - other)).sum(-1).mean())
            if run is full:
                assert divergence(new) == pytest.approx(min(1e-4, told["capo/governor.kl/kl"][0]), rel=0.1), step
            else:
                norm = sum(float((value - before[name]).square().sum()) for name, value in weights.items()) ** 0.5
                for name, value in {"kl": divergence(new), "head": divergence(by_head), "norm": norm}.items():
                    assert told[f"capo/asks/{name}"][0] == pytest.approx(value, rel=1e-3), (step, name)
                assert told["capo/asks/rows"] == [8.0] and told["capo/asks/tokens"][0] == len(new) and told["capo/asks/groups"] == [4.0]
    assert [line["capo/governor.kl/kl"][0] > 1e-4 for line in full["numbers"]] == [True, True, True, False]
    assert [line["capo/asks/alignment"][0] != 0 for line in asks["numbers"]] == [False, True, True, True]
    assert divergence(by_head) < divergence(new)


def test_two_ranks_apply_the_same_share_as_one(folder, controlled):
    runs = {"controlled": CONTROLLED, "third": ("masks=none", "controls=third", "lr=1e-2"), "with-masks": ("controls=half", REMEMBERS)}
    runs |= {"full": ("masks=none", "controls=full", "micro=4", *DYNAMIC), "asks": ("masks=none", "controls=asks")}
    launch(folder, *in_one({f"two-{name}": words for name, words in runs.items()}), ranks=2)
    for name in runs:
        one, first, second = saved(folder, name), saved(folder, f"two-{name}", 0), saved(folder, f"two-{name}", 1)
        assert scales(first) == scales(second) and scales(first) == pytest.approx(scales(one), rel=1e-4), name
        assert first["states"] == second["states"] and difference(first, second) == 0, f"{name}: bit for bit"
        assert difference(first, one) < 1e-5, name
    asked = [[(name, line[name][0]) for name in sorted(line) if "/asks/" in name] for name in ("asks", "two-asks") for line in saved(folder, name)["numbers"]]
    for one, two in zip(asked[:4], asked[4:], strict=True):
        assert len(one) == 9 and dict(two) == pytest.approx(dict(one), rel=1e-3)


def test_rejected_gradients_enter_the_second_moment(folder):
    clipped, cases = f"{ACTOR}.optim.clip_grad=0.3", ("token-mean-kept", "token-mean-original", "seq-mean-kept", "fixed-length", "few")
    runs, given = {}, CASES | {"few": ("response_mask", ORIGINAL, "masks=few")}
    for name in cases:
        fields, *options = given[name]
        setting = [option for option in options if option.startswith(("set=", "entropy")) and "capo" not in option]
        for mode in ("ahead", "inflight"):
            runs[f"remembers-{mode}-{name}"] = (f"mode={mode}", REMEMBERS, clipped, "micro=2", *options)
        by_hand = ("masks=none", "by_hand=1", f"reference=remembers-ahead-{name}.0", f"reference_fields={fields}")
        runs[f"remembers-by-hand-{name}"] = (*by_hand, clipped, "micro=2", *setting)
    runs["forgets"] = (clipped, "micro=2")
    runs["nothing-rejected"], runs["plain-adamw"] = ("masks=loose", REMEMBERS, "steps=2"), ("masks=none", "steps=2")
    launch(folder, *in_one(runs))
    launch(folder, *in_one({f"two-{name}": words for name, words in runs.items() if name.startswith("remembers-inflight")}), ranks=2)
    for name in cases:
        by_hand = saved(folder, f"remembers-by-hand-{name}")
        for mode in ("ahead", "inflight"):
            one = saved(folder, f"remembers-{mode}-{name}")
            assert all(0 < rate < 1 for rate in rates(one)), name
            assert difference(one, by_hand) < 1e-5, (name, mode)
        first, second = (saved(folder, f"two-remembers-inflight-{name}", rank) for rank in range(2))
        assert difference(first, second) == 0 and difference(first, by_hand) < 1e-5, name
    told = saved(folder, "remembers-inflight-token-mean-kept")["numbers"][1]
    assert told["capo/rejected_grad_norm"][0] > 0 and told["capo/kept_grad_norm"][0] > 0
    assert [line["capo/second_pass_completions"] for line in saved(folder, "remembers-inflight-few")["numbers"]] == [[2], [4], [2], [4]], "of eight"
    assert difference(saved(folder, "remembers-inflight-token-mean-kept"), saved(folder, "forgets")) > 1e-4
    assert difference(saved(folder, "nothing-rejected"), saved(folder, "plain-adamw")) == 0, "where nothing is rejected, it is AdamW to the bit"


def test_a_second_pass_chooses_tokens_among_the_same_completions(folder):
    """Then the kept and the rejected gradients add up to verl's gradient without a mask."""
    loss = (f"{ACTOR}.policy_loss.loss_mode=kl_cov", f"{ACTOR}.policy_loss.kl_cov_ratio=0.3", "micro=2", "lr=0")
    launch(folder, *in_one({"chosen-both": (*loss, "masks=few", ORIGINAL, REMEMBERS), "chosen-plain": (*loss, "masks=none")}))
    both, plain = ([line["grad_norm"][0] for line in saved(folder, f"chosen-{name}")["numbers"]] for name in ("both", "plain"))
    assert all(0 < rate < 1 for rate in rates(saved(folder, "chosen-both"))) and both == pytest.approx(plain, rel=1e-5)
