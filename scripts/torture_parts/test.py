"""Tests of torture with a `host` that does what it must, or sins: python3 scripts/torture_parts/test.py"""

import argparse
import collections
import contextlib
import io
import os
import random
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torture_parts import bench, drive, flips, knobs, mutate, runs, settings, special, verdict  # noqa: E402

HERE = Path(__file__).resolve().parent
PREPARED = {}


def setUpModule():
    folder = tempfile.TemporaryDirectory(prefix="torture-")
    unittest.addModuleCleanup(folder.cleanup)
    make_host(Path(folder.name) / "bin")
    PREPARED["bench"] = bench.Bench(Path(folder.name) / "bin/host", 1, Path(folder.name) / "scratch")


def make_host(folder):
    folder.mkdir()
    host = folder / "host"
    host.write_text(f"#!{sys.executable} -SI\n{(HERE / 'fake_host.py').read_text()}")
    host.chmod(0o755)
    for name in ("capo", "drcapo", "governor"):
        (folder / f"lib{name}.so").write_text(name)


def prepared(name):
    """The part on a host without sins, made once."""
    if name not in PREPARED:
        PREPARED[name] = drive.PARTS[name].Part(PREPARED["bench"])
    return PREPARED[name]


class Sins(unittest.TestCase):
    """What each part finds where `host` does not do what it must."""

    def found(self, name, sin, cases):
        """What is found in these cases, without repetition."""
        part, found = prepared(name), set()
        with tempfile.TemporaryDirectory() as marks:
            with unittest.mock.patch.dict(part.bench.environment, FAKE_SIN=sin, FAKE_MARKS=marks):
                for number in cases:
                    case = bench.Case(part.bench, name, number)
                    part.run(case)
                    case.close()
                    found |= {finding.what for finding in case.findings}
        return found

    def finds(self, name, sin, what, cases):
        # Moments of kills and swaps depend on the machine: a few rounds may be needed to hit one.
        for _ in range(6):
            found = self.found(name, sin, cases)
            if any(what in one for one in found):
                return
        self.fail(f"{sin}: `{what}` is not among {found}")

    def test_none(self):
        counts = {"kills": 4, "locks": 2, "flips": 40, "mutations": 70, "settings": 40, "special": 300, "swaps": 10}
        for name, cases in counts.items():
            with self.subTest(part=name):
                count = getattr(prepared(name), "count", cases)
                self.assertEqual(self.found(name, "", range(0, min(cases, count), 5 if name == "special" else 1)), set())

    def test_kills(self):
        # Of these the first kill comes after a time, not at a change.
        draws = {n: random.Random(f"kills:1:{n}") for n in range(20)}
        timed = [n for n, draw in draws.items() if n % 3 < 2 and draw.randint(1, 4) and draw.random() >= 0.7][:2]
        self.finds("kills", "forgets", "is not that of an undisturbed run", range(8))
        self.finds("kills", "leaves-partials", "`run/checkpoints/.partial*` is left behind", range(1))
        self.finds("kills", "early-death", "a run that was killed cannot go on", timed)

    def test_locks(self):
        self.finds("locks", "starts-anyway", "both of two start in one directory", (1,))
        self.finds("locks", "unnamed-holder", "the refusal does not say which process has the run", (0,))

    def test_flips(self):
        part, at = prepared("flips"), collections.defaultdict(list)
        for number, (path, _) in enumerate(part.places):
            if path.is_relative_to(part.checkpoint) or "checkpoints" not in path.parts:
                at[path.name].append(number)
        self.finds("flips", "unverified", "`host eval` reads a damaged checkpoint", at["model.safetensors"][:6])
        self.finds("flips", "unverified", "config.toml: resumes to another `component-0.bin`, in silence", at["config.toml"][:40])
        self.finds("flips", "silent-records", "provenance.json: a damaged record is taken without a word", at["provenance.json"][:2])

    def test_ends_of_a_command(self):
        self.finds("mutations", "panics", "panic at src/fake.rs:1", (0,))
        self.finds("mutations", "aborts", "ended by SIGABRT", (0,))
        self.finds("mutations", "exits-7", "exit code 7", (0,))
        self.finds("mutations", "silent", "exit code 2 without a sentence", (0,))
        self.finds("mutations", "escapes", "a raw control byte on stderr", (0,))
        with unittest.mock.patch.object(settings, "HANG", 1):
            self.finds("mutations", "hangs", "it hangs", (0,))
        with unittest.mock.patch.object(settings, "MEMORY", 90_000_000):
            self.finds("mutations", "memory", "more than 2 GB", (0,))

    def test_what_is_left_behind(self):
        self.finds("mutations", "leaves", "left behind: .tmp*", (0,))
        self.finds("mutations", "writes", "exit code 2, but new is not as before", (0,))

    def test_settings(self):
        self.finds("settings", "panics-on-sizes", "panic at", range(60))
        self.finds("settings", "replaces", "a file that was there is replaced", range(120))

    def test_special_files(self):
        cases = prepared("special").cases
        with unittest.mock.patch.object(special, "LIMIT", 1):
            self.finds("special", "reads-anything", "a FIFO as data.toml: it hangs", (0,))
        self.finds("special", "full", "`plugins` to /dev/full: exit code 0, not 1", [len(cases) - 27])
        self.finds("special", "replaces-output", "a socket as answers: it is replaced", [len(cases) - 1])

    def test_swaps(self):
        self.finds("swaps", "second-look", "another library than the pinned one is loaded", range(20))
        self.finds("swaps", "second-look", "`--hash` prints another library's pin", range(20))


class Driving(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        make_host(self.folder / "bin")

    def args(self, **changes):
        values = {
            "host": self.folder / "bin/host",
            "seed": 3,
            "scratch": self.folder / "scratch",
            "only": ["settings"],
            "long": False,
        }
        values |= {"cases": {"settings": 60}, "jobs": 2, "time_limit": None, "out": self.folder / "table.md", "reproduce": None}
        return argparse.Namespace(**(values | changes))

    def main(self, **changes):
        """Exit code, and what was printed."""
        said, args = io.StringIO(), self.args(**changes)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = drive.reproduce(args) if args.reproduce else drive.main(args)
        return code, said.getvalue()

    def test_nothing_found(self):
        code, said = self.main()
        self.assertEqual(code, 0, said)
        self.assertIn("| settings | `--set` of", said)
        self.assertIn("| 60, ", said)
        self.assertTrue((self.folder / "table.md").read_text() in said)
        self.assertEqual(os.listdir(self.folder / "scratch"), ["lock"])

    def test_found_and_reproduced(self):
        self.addCleanup(os.environ.pop, "FAKE_SIN")
        os.environ["FAKE_SIN"] = "panics-on-sizes"
        code, said = self.main()
        self.assertEqual(code, 1)
        case = said.split("FOUND ")[1].split()[0]
        self.assertIn(f"`--reproduce {case}` |", said)
        kept = self.folder / "scratch/found" / case.replace(":", "-")
        self.assertTrue(kept.is_dir())
        self.assertIn(f"cd {kept} && ", said)
        code, said = self.main(reproduce=case)
        self.assertEqual(code, 1)
        self.assertIn("panic at src/fake.rs:1", said)

    def test_out_of_time(self):
        code, said = self.main(time_limit=1e-9)
        self.assertEqual(code, 0)
        self.assertRegex(said, "settings: [12] of 60 cases")

    def test_refusals(self):
        with self.assertRaisesRegex(settings.Failure, "no part is called `killing`"):
            self.main(only=["killing"])
        with self.assertRaisesRegex(settings.Failure, "is no case"):
            self.main(reproduce="kills:1")
        with self.assertRaisesRegex(settings.Failure, "special` has 2.. cases"):
            self.main(reproduce="special:1:100000")
        with self.assertRaisesRegex(settings.Failure, "cannot be run .build it"):
            self.main(host=self.folder / "none")
        with drive.scratch(bench.Bench(self.folder / "bin/host", 1, self.folder / "scratch")):
            with self.assertRaisesRegex(settings.Failure, "another `torture` works in"):
                self.main()

    def test_a_host_that_is_not_in_order(self):
        with unittest.mock.patch.dict(os.environ, FAKE_SIN="silent"):
            with self.assertRaisesRegex(settings.Failure, "an input that is in order: exit code 2 without a sentence"):
                self.main()


class Choices(unittest.TestCase):
    def test_the_seed_decides(self):
        data = b'{"a": 1, "b": [true, "x"]}\n' * 3
        one, other = ([mutate.mutated(data, random.Random(f"m:{seed}:{n}")) for n in range(200)] for seed in (1, 1))
        self.assertEqual(one, other)
        self.assertGreater(len(set(one)), 150)
        self.assertNotEqual(one, [mutate.mutated(data, random.Random(f"m:2:{n}")) for n in range(200)])

    def test_a_header_s_length_is_put_right(self):
        file = mutate.pack({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8)
        right = 0
        for n in range(200):
            made = mutate.tensors(file, random.Random(n))
            size = int.from_bytes(made[:8], "little")
            right += len(made) == 8 + size + 8
        self.assertGreater(right, 80)

    def test_every_file_is_flipped(self):
        half = prepared("flips").half
        files = {str(path.relative_to(half)) for path in half.rglob("*") if path.is_file() and path.stat().st_size > 0}
        self.assertEqual({str(path) for path, _ in prepared("flips").places[: len(files)]}, files)

    def test_a_flip_changes_one_byte(self):
        for n in range(50):
            made = flips.flipped(b"ab1", n % 3, random.Random(n))
            self.assertEqual(sum(a != b for a, b in zip(made, b"ab1", strict=True)), 1)
            self.assertTrue(made[2:].isdigit() or n % 3 == 2 and not made[2:].isalpha(), made)

    def test_documented_keys(self):
        keys = list(knobs.documented((settings.ROOT / "configs/README.md").read_text()))
        for key in (
            "model.fresh_weights",
            "data.solution_column",
            "train.adam_beta2",
            "eval.num_prompts",
            "logging.logging_steps",
        ):
            self.assertIn(key, keys)
        self.assertFalse([key for key in keys if key.startswith(("reward", "grad"))])

    def test_components_keys(self):
        text = "reward\n  exact_match   1 where\n                keys: answer_separator\n"
        text += "mask\n  capo.curvature  drops\n       keys: a, b\n  other.mask\n   keys: c\n"
        self.assertEqual(list(knobs.components(text)), ["reward.0.answer_separator", "mask.0.a", "mask.0.b"])

    def test_times_are_no_difference(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            for name, seconds in (("one", 0.5), ("two", 0.6)):
                (folder / name).mkdir()
                (folder / name / "metrics.jsonl").write_text(
                    f'{{"step": 1, "step_time": {seconds}, "timing_s/mask": {seconds}}}\n'
                )
            self.assertEqual(list(runs.differences(folder / "one", folder / "two")), [])
            (folder / "one/metrics.jsonl").write_text('{"step": 2}\n')
            (folder / "one/.partial-abc123").mkdir()
            found = ["`.partial*` is left behind", "`metrics.jsonl` is not that of an undisturbed run"]
            self.assertEqual(list(runs.differences(folder / "one", folder / "two")), found)

    def test_control_bytes(self):
        self.assertIsNone(verdict.CONTROL.search("a\tb\nü – 数".encode()))
        for text in (b"\x1b[0m", b"\r", b"\x00", b"\x7f", "\u009b".encode()):
            self.assertTrue(verdict.CONTROL.search(text))


if __name__ == "__main__":
    unittest.main()
