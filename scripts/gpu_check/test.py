"""Tests of gpu-check with stand-ins for everything that needs a GPU: python3 scripts/gpu_check/test.py"""

import argparse
import contextlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_check import pack, reading, report, run, settings  # noqa: E402

PYTHON = f"#!{sys.executable}\nimport json, os, pathlib, struct, sys, time\n"
CASE = {"keep": [1, 0, 1], "m_f": [0.5, 2.0, 0.25], "m_h": [-1.0, 0.5, 0.0]}

# Writes the results of a replay of the case in the batches' folder, or the files of a run of six steps.
HOST = """
def option(name): return pathlib.Path(sys.argv[sys.argv.index(name) + 1])
if sys.argv[1] == "replay":
    option("--out").mkdir(parents=True)
    made = (option("--config").parent / "batch-0000.safetensors").read_bytes()
    (option("--out") / "batch-0000.safetensors").write_bytes(made)
elif "--dry-run" in sys.argv:
    assert pathlib.Path("configs/gpu/model/config.json").exists(), "the config's paths hold"
    print("memory     about 5 GiB at the fullest\\n  weights 1 GiB")
else:
    resumed = "--resume" in sys.argv
    run = option("--resume" if resumed else "--output-dir")
    last = int(str(option("--stop-after"))) if "--stop-after" in sys.argv else 6
    (run / f"checkpoints/step-{last}").mkdir(parents=True)
    hashes = {"model.safetensors": f"{last}", "optimizer.safetensors": "b"}
    (run / f"checkpoints/step-{last}/capo-manifest.json").write_text(json.dumps({"files": hashes}))
    (run / "config.toml").write_text("[train]\\nper_device_train_batch_size = 4\\ngradient_accumulation_steps = 2\\n")
    line = {"completions/mean_length": 10.0, "timing_s/rollout": 0.5, "timing_s/score": 0.1, "timing_s/backward": 0.2}
    line |= {"timing_s/step": 0.1, "timing_s/mask": 0.1, "step_time": 1.0, "capo.curvature/rows": 9.0, "loss": 0.5}
    lines = [json.dumps(line | {"step": n, "num_tokens": 120.0 * n}) for n in range(1, last + 1)]
    (run / "metrics.jsonl").write_text("\\n".join(lines) + "\\n{torn")
"""
SMI = 'print("A GPU, 580.1, 1000 MiB, 9.0")'
SANITIZER = 'print("========= ERROR SUMMARY: 0 errors\\ntest result: ok. 2 passed; 0 failed")'
TESTS = 'assert os.environ["CAPO_TEST_DEVICE"] == "cuda" and "cuda" in sys.argv; print("test result: ok. 3 passed; 0 failed")'
BENCH = '''print("""bandwidth: 3.1 TB/s
Timer precision: 20 ns
curvature        fastest       │ slowest       │ median        │ mean          │ samples │ iters
├─ all                         │               │               │               │         │
│  ╰─ B24 D896   9 ms          │ 9.4 ms        │ 9.2 ms        │ 9.2 ms        │ 5       │ 5
╰─ bound                       │               │               │               │         │
   ╰─ B24 D3584  3.1 s         │ 6.6 s         │ 3.2 s         │ 4.4 s         │ 5       │ 5
                 1.42 Gitem/s  │ 663.7 Mitem/s │ 1.339 Gitem/s │ 987.3 Mitem/s │         │""")'''
PEER = 'print("dense: shape\\n     2.0 s\\nbest of 3\\n  all                     1.500 s\\n  rejected                 2.98 %")'
TORCH_TRAINING = """print("1 parameters", " ".join(sys.argv[-6:]))
print("  generation           80 completion tokens/s\\n  training            600 prompt and completion tokens/s")"""

ON_DEVICE = """import pathlib
assert (pathlib.Path(os.environ["PYTHONPATH"]) / "capo_rl").is_dir()
print("the same on the device: 1, as arrays of torch")"""
TRL_STEP = """print("| | step, s | of it, s |\\n|---|---|---|\\n| TRL alone | 1.5 | |\\n| `a`, ahead | 1.6 | 0.1 |")"""


def tensors(values, prefix="", floats=("f", "F32")):
    """A safetensors file."""
    header, data = {"__metadata__": {"a": "b"}}, b""
    for name, numbers in values.items():
        code, dtype = ("B", "U8") if name == "keep" else floats
        part = struct.pack(f"<{len(numbers)}{code}", *numbers)
        key = prefix + name
        if name == "keep" and prefix:
            # `host replay` writes this name; the reference data use an older one.
            key = "token_mask"
        header[key] = {"dtype": dtype, "shape": [len(numbers)], "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


class Archive:
    """An archive of stand-ins, as `pack` would make it."""

    def __init__(self, folder):
        self.root = folder / "gpu-check"
        self.tools = folder / "tools"
        self.executable("target/release/host", HOST)
        self.executable("target/cuda/host", HOST)
        self.executable("target/release/deps/suite-0a", TESTS)
        self.executable("target/bench/curvature", BENCH)
        self.executable("study/peers/token_adam_torch.py", PEER)
        self.executable("study/peers/train_torch.py", TORCH_TRAINING)
        self.executable("python/tests/on_device.py", ON_DEVICE)
        self.executable("python/benches/trl_step.py", TRL_STEP)
        self.write(f"{settings.PACKAGE}/{settings.NATIVE}", b"")
        for name in (settings.TRAIN_MASK, settings.TRAIN_REWARD[1]):
            self.write(f"target/release/{name}", b"")
        self.write(settings.TRAIN_CONFIG, b"")
        self.write(f"{settings.TRAIN_MODEL}/config.json", b'{"vocab_size": 3}')
        self.case(CASE)
        for name, text in (("nvidia-smi", SMI), ("compute-sanitizer", SANITIZER)):
            self.executable(name, text, self.tools)
        tests = [{"package": "capo-core", "path": "target/release/deps/suite-0a"}]
        self.manifest = {"commit": "abc", "built_at": str(folder / "built/here"), "profile": "release", "tests": tests}
        self.manifest |= {"bench": "target/bench/curvature", "cuda_host": "target/cuda/host"}

    def write(self, name, data, root=None):
        path = (root or self.root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def executable(self, name, text, root=None):
        self.write(name, (PYTHON + text).encode(), root).chmod(0o755)

    def case(self, found):
        self.write("tests/data/replay/one/expected-0000.safetensors", tensors(CASE, floats=("d", "F64")))
        self.write("tests/data/replay/one/batch-0000.safetensors", tensors(found, "capo.curvature/"))

    def pack(self):
        self.write(settings.MANIFEST, json.dumps(self.manifest).encode())
        path = self.root.parent / "archive.tar.xz"
        pack.archive(self.root, path)
        return path


class Parts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.archive = Archive(self.folder)
        before = os.environ["PATH"]
        os.environ["PATH"] = f"{self.archive.tools}:{before}"
        self.addCleanup(os.environ.update, PATH=before)

    def results(self, *only, path=None):
        """The exit code, the parts by name, and the output."""
        out, said = self.folder / "results.json", io.StringIO()
        args = argparse.Namespace(archive=path or self.archive.pack(), out=out, only=list(only), small=False)
        with contextlib.redirect_stdout(said):
            code = run.main(args)
        self.found = json.loads(out.read_text())
        return code, {part["name"]: part for part in self.found["parts"]}, said.getvalue()

    def fails(self, name, *expected, status="failed"):
        code, parts, said = self.results(name)
        self.assertEqual(parts[name]["status"], status, parts[name])
        self.assertEqual(code, int(status == "failed"))
        for text in expected:
            self.assertIn(text, parts[name]["said"])
            self.assertIn(text.splitlines()[0], said)

    def test_all_parts(self):
        code, parts, said = self.results()
        self.assertEqual([part["status"] for part in parts.values()], ["ok"] * len(settings.LIMITS), said)
        self.assertEqual(code, 0)
        self.assertEqual((self.found["GPU"], self.found["driver"], self.found["commit"]), ("A GPU", "580.1", "abc"))
        self.assertEqual(parts["tests"]["rows"], [["capo-core, suite", "3 passed, 0 failed"]])
        self.assertIn(["cases as expected", "1 of 1"], parts["replay"]["rows"])
        self.assertIn(["memcheck, suite", "2 tests; ERROR SUMMARY: 0 errors"], parts["sanitizer"]["rows"])
        expected = [
            ["bandwidth", "3.1 TB/s"],
            ["all, B24 D896", "9.2 ms"],
            ["bound, B24 D3584", "3.2 s, 1.339 Gitem/s"],
        ]
        self.assertEqual(parts["bench"]["rows"], expected)
        self.assertIn(["torch compiled, all", "1.500 s"], parts["peers"]["rows"])
        self.assertEqual(parts["capo_rl"]["rows"], [["cases the same with arrays of torch", "1 of 1"]])
        self.assertEqual(
            parts["TRL"]["rows"], [["TRL alone", "step, s 1.5"], ["a, ahead", "step, s 1.6; of it, s 0.1"]]
        )
        for name in ("154M", "494M"):
            rows, peer = parts[f"train {name}"]["rows"], parts[f"peer training {name}"]["rows"]
            self.assertIn(["memory, estimated", "about 5 GiB at the fullest"], rows)
            self.assertIn(["generation, completion tokens/s", "160"], rows)
            self.assertIn(["training (score, backward, AdamW), tokens/s", "300"], rows)
            self.assertIn(["backward and AdamW alone, tokens/s", "400"], rows)
            repeated = ["stopped after step 3 and resumed", "every number is the same; at the end the same bits"]
            self.assertEqual(repeated in rows, name == "154M")
            self.assertEqual(["two runs of one seed, steps 1 to 3", "every number is the same"] in rows, name == "154M")
            sizes = "1 parameters --completions 8 --prompt-tokens 5 --new-tokens 10"
            self.assertEqual(peer[0], ["torch, model and sizes", sizes])
            self.assertEqual(peer[1], ["torch, generation, tokens/s", "80, host 2.00 times"])
            self.assertEqual(peer[2][1], "600, host 0.50 times, 0.67 times without scoring")
        self.assertGreaterEqual(self.found["seconds"], sum(part["seconds"] for part in parts.values()) - 1)
        self.assertFalse((self.folder / "built/here").is_symlink())

    def test_nothing_there(self):
        for name in ("target", "tests", "study", "configs", "python"):
            (self.archive.root / name).rename(self.archive.root.parent / name)
        for tool in self.archive.tools.iterdir():
            tool.unlink()
        code, parts, said = self.results()
        self.assertEqual(list(parts), list(settings.LIMITS))
        self.assertEqual({part["status"] for part in parts.values()}, {"missing"}, said)
        self.assertEqual(code, 0)

    def test_tests_find_files_where_they_were_built(self):
        self.archive.write("tests/data/here", b"")
        there = f'pathlib.Path("{self.folder}/built/here/tests/data/here").read_bytes()\n'
        self.archive.executable("target/release/deps/suite-0a", there + TESTS)
        self.assertEqual(self.results("tests")[1]["tests"]["status"], "ok")

    def test_failing_test(self):
        text = 'print("test cuda::adds ... FAILED\\ntest result: FAILED. 2 passed; 1 failed"); sys.exit(101)'
        self.archive.executable("target/release/deps/suite-0a", text)
        self.fails("tests", "`suite-0a` ended with 101: cuda::adds")

    def test_no_matching_test(self):
        self.archive.executable("target/release/deps/suite-0a", 'print("test result: ok. 0 passed; 0 failed")')
        self.fails("tests", "no test has a name with cuda", status="missing")

    def test_a_part_that_hangs(self):
        hangs = 'print("test a ... ok\\ntest b ... FAILED", flush=True); time.sleep(60)'
        self.archive.executable("target/release/deps/suite-0a", hangs)
        with unittest.mock.patch.dict(settings.LIMITS, tests=1):
            self.fails("tests", "`suite-0a cuda` was stopped after 1 s\ntest a")
        self.assertEqual(self.found["parts"][0]["rows"], [["capo-core, suite", "1 passed, 1 failed"]])
        self.assertLess(self.found["parts"][0]["seconds"], 30)

    def test_replay_that_differs(self):
        self.archive.case(CASE | {"keep": [1, 1, 1]})
        self.fails("replay", "`one`: 1 decisions differ, shifts by 0.0e+00 of the largest")
        self.archive.case(CASE | {"m_h": [-1.0, 0.5, 0.001]})
        self.fails("replay", "`one`: 0 decisions differ, shifts by 1.0e-03 of the largest")
        self.archive.case(CASE | {"m_f": [0.5, float("nan"), 0.25]})
        self.fails("replay", "shifts by inf of the largest")
        (self.archive.root / "tests/data/replay/one/expected-0000.safetensors").unlink()
        self.fails("replay", "`one`: the results cannot be compared: nothing is expected")
        self.archive.executable("target/release/host", "")
        self.archive.case(CASE)
        self.fails("replay", "`one`: the results cannot be compared: [Errno 2]")
        self.archive.executable("target/release/host", 'print("more\\nerror: no device\\nhelp"); sys.exit(2)')
        self.fails("replay", "`one`: host ended with 2: error: no device")

    def test_sanitizer_that_finds(self):
        text = 'print("========= ERROR SUMMARY: 1 error"); sys.exit(99)'
        self.archive.executable("compute-sanitizer", text, self.archive.tools)
        self.fails("sanitizer", "racecheck on `suite` ended with 99", "synccheck on `host train` ended with 99")

    def test_python_without_torch(self):
        self.archive.executable("study/peers/token_adam_torch.py", "import no_such_torch")
        self.fails("peers", "has no module `no_such_torch`", status="missing")

    def test_training_that_is_too_short(self):
        self.archive.executable("target/cuda/host", HOST.replace("range(1, last + 1)", "range(1, 3)"))
        self.fails("train 154M", "the run has 2 steps, at least 3 are needed")

    def test_training_without_advantages(self):
        self.archive.executable("target/cuda/host", HOST.replace('rows": 9.0', 'rows": 0.0'))
        self.fails("train 494M", "no token had an advantage, so that the mask had nothing to do")

    def test_no_host_with_cuda(self):
        self.archive.manifest |= {"cuda_host": None, "cuda_host_missing": "packed without"}
        self.fails("train 154M", "packed without", status="missing")

    def test_runs_of_one_seed_that_differ(self):
        other = HOST.replace('"loss": 0.5', '"loss": float("halves" in str(run))')
        self.archive.executable("target/cuda/host", other)
        self.fails("train 154M", "runs of one seed differ")
        self.assertIn(
            ["two runs of one seed, steps 1 to 3", "they part at step 1: `loss` 0.0 and 1.0"],
            self.found["parts"][0]["rows"],
        )
        self.archive.executable("target/cuda/host", HOST.replace('"b"}', "str(resumed)}"))
        self.fails("train 154M", "runs of one seed differ")
        said = "every number is the same; at the end other weights or moments"
        self.assertIn(["stopped after step 3 and resumed", said], self.found["parts"][0]["rows"])

    def test_unexpected_output(self):
        self.archive.executable("nvidia-smi", "", self.archive.tools)
        self.fails("device", "IndexError")

    def test_archives(self):
        path = self.folder / "none.tar.xz"
        with self.assertRaisesRegex(settings.Failure, "does not exist .make it"):
            self.results(path=path)
        path.write_bytes(self.archive.pack().read_bytes()[:200])
        with self.assertRaisesRegex(settings.Failure, "cannot be read"):
            self.results(path=path)
        with tarfile.open(path, "w:xz") as tar:
            tar.add(__file__, arcname="gpu-check/other")
        with self.assertRaisesRegex(settings.Failure, "was not made by"):
            self.results(path=path)
        with unittest.mock.patch.object(settings, "ARCHIVE_LIMIT", 100):
            with self.assertRaisesRegex(settings.Failure, "at most 0 .pack less."):
                pack.archive(self.archive.root, self.folder / "large.tar.xz")
        self.assertFalse(list(self.folder.glob("large*")))

    def test_report(self):
        self.archive.manifest["cuda_host"] = None
        self.results()
        results, doc = self.folder / "results.json", self.folder / "gpu.md"
        doc.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
        args = argparse.Namespace(results=results, doc=doc)
        with contextlib.redirect_stdout(io.StringIO()):
            report.main(args)
            once = doc.read_text()
            report.main(args)
        self.assertEqual(doc.read_text(), once)
        self.assertTrue(once.startswith("before\n") and once.endswith("\nafter\n") and "old" not in once)
        self.assertIn("A GPU, driver 580.1; commit `abc`", once)
        self.assertIn("| replay | cases as expected | 1 of 1 |\n", once)
        self.assertIn("| train 154M | missing | no `host` with CUDA in the archive |\n", once)
        self.assertIn("| all | time | ", once)
        doc.write_text("no place")
        with self.assertRaisesRegex(settings.Failure, "lacks the lines"):
            report.main(args)
        results.write_text("[]")
        with self.assertRaisesRegex(settings.Failure, "holds no results"):
            report.main(args)


class Reading(unittest.TestCase):
    def test_a_plugin_that_needs_cuda(self):
        with unittest.mock.patch.object(pack.subprocess, "run") as readelf:
            readelf.return_value.stdout = " 0x1 (NEEDED)  Shared library: [libcudart.so.13]\n"
            with self.assertRaisesRegex(settings.Failure, "needs libcudart.so.13 to load"):
                pack.no_cuda_needed(Path("libcapo.so"))

    def test_what_travels(self):
        """The libraries that the packed tests open, and all files that the config of the training part names."""
        command = ["cargo", "metadata", "--no-deps", "--format-version", "1", "--offline"]
        found = json.loads(
            subprocess.run(command, cwd=settings.ROOT, capture_output=True, text=True, check=True).stdout
        )
        packed = set()
        for package in found["packages"]:
            folder = str(Path(package["manifest_path"]).parent.relative_to(settings.ROOT))
            for target in package["targets"]:
                name = f"lib{target['name'].replace('-', '_')}.so"
                if pack.travels(folder, {"target": target}, name):
                    packed.add(name)
        sources = [*(settings.ROOT / "tests/tests/suite").glob("cuda*.rs"), *(settings.ROOT / "tests/src").glob("*.rs")]
        opened = {name for path in sources for name in re.findall(r"\b(lib(?!cu)[a-z_]+\.so)\b", path.read_text())}
        self.assertTrue({"libmasks.so", "libgovernor.so", "libcapo.so"} <= opened)
        self.assertLessEqual(opened, packed)
        config = (settings.ROOT / settings.TRAIN_CONFIG).read_text()
        self.assertIn(f'model_name_or_path = "{settings.TRAIN_MODEL}"', config)
        for name in (settings.TRAIN_CONFIG, settings.TRAIN_MODEL, "study/peers/train_torch.py", "tests/data/replay"):
            self.assertTrue((settings.ROOT / name).exists(), name)
            self.assertTrue(name.startswith(settings.TREES), name)

    def test_metrics_that_are_not_there(self):
        self.assertEqual(reading.metrics(Path("/nonexistent/metrics.jsonl")), [])


if __name__ == "__main__":
    unittest.main()
