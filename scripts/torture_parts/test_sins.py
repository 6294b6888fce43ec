"""The parts find every planted fault of a `host`, which is the real one with a fault, or a stand-in."""

import random

import pytest
from hypothesis import HealthCheck, Phase, find, given, strategies
from hypothesis import settings as hypothesis_settings

from . import flips, knobs, mutate, runs, settings, verdict
from .bench import Case
from .test_parts import prepared

HOST = """#!/bin/sh
case "$SIN" in
panics) echo "thread 'main' (1) panicked at src/fake.rs:1:2:" >&2; exit 101 ;;
hangs) sleep 600 ;;
aborts) kill -ABRT $$ ;;
exits-7) exit 7 ;;
silent) exit 2 ;;
escapes) printf 'error: \\033[31m\\n' >&2; exit 2 ;;
memory) python3 -c 'print(len(b"x" * 100_000_000))'; exit ;;
leaves) touch .tmpAbCdEf; echo left >&2; exit 1 ;;
writes) touch new; echo "error: bad" >&2; exit 2 ;;
replaces) echo replaced >config.toml ;;
removes) rm -f answers; echo >answers ;;
loads-another) set -- plugins --plugin ./libdrcapo.so ;;
names-nobody) "{host}" "$@" 2>err; code=$?; tr -d 0-9 <err >&2; rm err; exit $code ;;
esac
[ "$SIN" != mutes ] || exec 2>/dev/null
"{host}" "$@"
code=$?
case "$SIN $*" in
"forgets "*--resume*) for file in run/checkpoints/step-*/model.safetensors; do printf x >>$file; done ;;
"leaves-partials "*) [ ! -d run/checkpoints ] || mkdir -p run/checkpoints/.partial-x$$ ;;
"takes-anything "* | "mutes "*--resume*) exit 0 ;;
esac
exit $code
"""
#: Part, sin, the expected finding, and the number of cases that must find it. Moments depend on the machine, so several
#: cases may be needed to hit one.
SINS = [
    ("mutations", "panics", "panic at src/fake.rs:1", 1),
    ("mutations", "aborts", "ended by SIGABRT", 1),
    ("mutations", "exits-7", "exit code 7", 1),
    ("mutations", "silent", "exit code 2 without a sentence", 1),
    ("mutations", "escapes", "a raw control byte on stderr", 1),
    ("mutations", "hangs", "it hangs", 1),
    ("mutations", "memory", "more than 2 GB", 1),
    ("mutations", "leaves", "left behind: .tmp*", 1),
    ("mutations", "writes", "exit code 2, but new is not as before", 1),
    ("settings", "replaces", "a file that was there is replaced", 1),
    ("special", "takes-anything", "it is taken", 10),
    ("special", "takes-anything", "to /dev/full: exit code 0, not 1", 1),
    ("special", "removes", "a socket as answers: it is replaced", 1),
    ("kills", "forgets", "is not that of an undisturbed run", 8),
    ("kills", "leaves-partials", "`run/checkpoints/.partial*` is left behind", 3),
    ("locks", "takes-anything", "both of two start in one directory", 12),
    ("locks", "names-nobody", "the refusal does not say which process has the run", 12),
    ("flips", "takes-anything", "`host eval` reads a damaged checkpoint", 40),
    ("flips", "mutes", ", in silence", 40),
    ("swaps", "loads-another", "another library than the pinned one is loaded", 30),
]


@pytest.mark.parametrize(("name", "sin", "what", "cases"), [pytest.param(*row, id=f"{row[0]}-{row[1]}", marks=pytest.mark.xdist_group(row[0])) for row in SINS])
def test_a_sin_is_found(name, sin, what, cases, bench, tmp_path, monkeypatch):
    part = prepared(bench, name)
    sinner = tmp_path / "host"
    sinner.write_text(HOST.replace("{host}", str(bench.host)))
    sinner.chmod(0o755)
    monkeypatch.setattr(bench, "host", sinner)
    monkeypatch.setitem(bench.environment, "SIN", sin)
    monkeypatch.setattr(settings, "HANG", 1 if sin == "hangs" else settings.HANG)
    monkeypatch.setattr(settings, "MEMORY", 90_000_000 if sin == "memory" else settings.MEMORY)
    found = []

    def one(rng, draw, chosen=None):
        case = Case(bench, f"sin-{name}", rng, draw, chosen)
        part.run(case)
        found.extend(case.findings)
        return any(what in finding for finding in found)

    if hasattr(part, "cases"):
        assert any(one(None, None, chosen) for chosen in [*part.cases[-3:], *part.cases[:cases]]), found
        return
    seen = []

    @hypothesis_settings(max_examples=cases, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(seed=strategies.integers(0, 2**32), data=strategies.data())
    def case(seed, data):
        if not any(seen):
            seen.append(one(random.Random(seed), data.draw))

    case()
    assert any(seen), found


@given(data=strategies.binary(min_size=1, max_size=40), at=strategies.integers(0, 39), rng=strategies.randoms())
def test_a_flip_changes_one_byte(data, at, rng):
    at %= len(data)
    made = flips.flipped(data, at, rng)
    assert [place for place in range(len(data)) if made[place] != data[place]] == [at]
    assert made[at : at + 1].isdigit() or not data[at : at + 1].isdigit()


def test_some_headers_have_the_right_length():
    file = mutate.pack({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8)
    right = lambda made: len(made) == 8 + int.from_bytes(made[:8], "little") + 8 and made != file
    find(mutate.tensors(file), right, settings=hypothesis_settings(database=None))


def test_documented_keys():
    keys = list(knobs.documented((settings.ROOT / "configs/README.md").read_text()))
    for key in ("model.fresh_weights", "data.solution_column", "train.adam_beta2", "eval.num_prompts", "logging.logging_steps"):
        assert key in keys
    assert not [key for key in keys if key.startswith(("reward", "grad"))]


def test_components_keys():
    text = "reward\n  exact_match   1 where\n                keys: answer_separator\n"
    text += "mask\n  capo.curvature  drops\n       keys: a, b\n  other.mask\n   keys: c\n"
    assert list(knobs.components(text)) == ["reward.0.answer_separator", "mask.0.a", "mask.0.b"]


def test_times_are_no_difference(tmp_path):
    for name, seconds in (("one", 0.5), ("two", 0.6)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(f'{{"step": 1, "step_time": {seconds}, "timing_s/mask": {seconds}}}\n')
    assert list(runs.differences(tmp_path / "one", tmp_path / "two")) == []
    (tmp_path / "one/metrics.jsonl").write_text('{"step": 2}\n')
    (tmp_path / "one/.partial-abc123").mkdir()
    found = ["`.partial*` is left behind", "`metrics.jsonl` is not that of an undisturbed run"]
    assert list(runs.differences(tmp_path / "one", tmp_path / "two")) == found


def test_control_bytes():
    assert not verdict.CONTROL.search("a\tb\nü – 数".encode())
    for text in (b"\x1b[0m", b"\r", b"\x00", b"\x7f", "\u009b".encode()):
        assert verdict.CONTROL.search(text)
