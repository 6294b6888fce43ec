"""Absurd values for mutations and for `--set`. Hypothesis adds the boundaries of numbers and of text."""

import json
import string

from hypothesis import strategies as st

# Values are absurd or tiny, because a run with a merely large value may take long for a good reason.
sizes = st.one_of(st.integers(2**31 - 1, 2**33), st.integers(min_value=2**40)).map(str)
small = st.integers(-8, 3).map(str)
reals = st.one_of(st.floats(-2, 2), st.floats(min_value=1e300), st.sampled_from((float("nan"), float("-inf")))).map(repr)
reals |= st.sampled_from(("1e999", "-1e999", "-0", ".5", "1_0", "1.0000000001", "9" * 400))
numbers = sizes | small | reals | sizes.map("-".__add__)
# Special files, control characters, half surrogates, right-to-left text, and other peculiarities of Unicode.
odd = st.sampled_from(("/dev/zero", "/dev/full", "/proc/self/mem", "/", ".", "../../../etc/passwd", "\x1b[31mred", "nul\0l", "a\nb\rc"))
odd |= st.sampled_from(("\u202eabc", "é" * 300, "x" * 70_000, "%s%n", "cpu\n", "cuda:0", "cuda:99999999999999999999", "f16", "kept\r"))
strings = (odd | st.text()).map(json.dumps) | odd.map(lambda text: json.dumps(text, ensure_ascii=False)) | st.just('"\\ud800"')
shapes = st.sampled_from(("null", "true", "false", "[]", "{}", "[[]]", '{"":0}', "{a = 1}", "{use = 1}", "[1, 2]", "1979-05-27T07:32:00Z"))
shapes |= st.sampled_from(("0b11", "1__0", "0x7fffffffffffffff", "[" * 5000, '{"a":' * 5000, "[" * 200 + "]" * 200))
#: Replacements of a value of `--set`. No program can be started with a NUL or half a surrogate among its arguments.
values = st.one_of(sizes, sizes, small, reals, strings, odd, shapes).map(lambda text: text.replace("\0", "\\0"))
#: Replacements of bytes in a file.
marks = st.sampled_from((b"\0", b"\x1b[2J", b"\x07", b"\r", b"\xef\xbb\xbf", b"\xff\xfe", b"\n\n", b'"', b"\\", b"}", b"]", b",", b"=", b"\0" * 4096))
as_bytes = lambda texts: texts.map(lambda text: text.encode(errors="surrogatepass"))
anything = st.one_of(as_bytes(numbers), as_bytes(strings), as_bytes(shapes), marks)

KNOWN = ("[train]", "train", "train.", ".seed", "train..seed", "train.seed.x", "train.seed ", "TRAIN.seed", '"train".seed', "recipe", "advantage.use")
KNOWN += tuple(f"mask{rest}" for rest in ("", ".0", ".0.", ".-1.x", ".0.use", ".1.use", ".4294967296.use", ".99999999999999999999.use"))
KNOWN += ("reward.0", "reward.0.use", "reward.1.use", "objective.reduction", "train.\x1b[31m", "é.ü", "x" * 4000)
keys = st.sampled_from(KNOWN) | st.text(string.ascii_lowercase + "._-=0", max_size=12)
#: Names of runs. None leads out of the folder in which the command runs.
FOLDERS = ('""', '"."', '".."', '"./"', '"config.toml"', '"config.toml/run"', '"a/b/c"', '"./run/../run"', f'"{"x" * 300}"', "1", "[]")
folders = st.sampled_from((*FOLDERS, '"run\\u0000"', '"\\u001b[31mrun"'))
#: Floats of a safetensors file: two NaNs, infinity, the largest, -0 and the smallest.
FLOATS = tuple(bytes.fromhex(each) for each in ("0000c07f", "ffffffff", "0000807f", "ffff7f7f", "00000080", "01000000"))
