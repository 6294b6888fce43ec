"""Values that make no sense, or little: as bytes for mutations, as text for `--set`."""

# Absurd or tiny, never in between: what is merely large may rightly take long.
NUMBERS = [
    b"0",
    b"-1",
    b"1",
    b"2",
    b"3",
    b"0.0",
    b"-0",
    b"0.1",
    b"1e-320",
    b"1e308",
    b"1e999",
    b"-1e999",
    b"nan",
    b"inf",
    b"-inf",
]
NUMBERS += [str(n).encode() for n in (255, -(2**31), 2**31, 2**32 - 1, 2**32, 2**40, 2**53 + 1, 2**61 + 1, 2**62, 3 * 2**62)]
NUMBERS += [str(n).encode() for n in (2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 10**30)] + [b"9" * 400]
STRINGS = [b'""', b'"\x00"', b'"\\u0000"', b'"\x1b[31mred"', b'"\\u001b[2J"', b'"\\ud800"', b'"\xff\xfe"', b'"a\\nb\\rc"']
STRINGS += ['"ünï—\u202e"'.encode(), '"\u009b31m"'.encode(), b'"' + b"a" * 70_000 + b'"', b"'%s%n'"]
STRINGS += [b'"../../../etc/passwd"', b'"/dev/zero"', b'"/"', b'"."']
OTHERS = [b"null", b"true", b"false", b"[]", b"{}", b"[[]]", b'{"":0}', b"[1,2,3]"]
OTHERS += [b"[" * 5000, b'{"a":' * 5000, b"[" * 200 + b"]" * 200]
BYTES = [b"\x00", b"\x1b[2J", b"\x07", b"\r", b"\xef\xbb\xbf", b"\xff\xfe", b"\n\n", b'"', b"\\", b"}", b"]", b",", b"=", b"#"]
BYTES += [b"\x00" * 4096]
ANYTHING = NUMBERS + STRINGS + OTHERS + BYTES
# Floats of a safetensors file: two NaNs, infinity, the largest, -0 and the smallest.
FLOATS = (
    b"\x00\x00\xc0\x7f",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x80\x7f",
    b"\xff\xff\x7f\x7f",
    b"\x00\x00\x00\x80",
    b"\x01\x00\x00\x00",
)

# Of the same kind.
SIZES = [2**31 - 1, 2**31, 2**32, 2**32 + 8, 2**40, 2**53 + 1, 2**60, 2**61 + 1, 2**62, 2**62 + 4, 2**63 - 1, 2**63, 2**64 - 1]
SIZES += [2**64, 10**30]
SMALL = [0, 1, 2, 3, -1, -8]
REALS = ["nan", "inf", "-inf", "1e999", "-1e999", "0.0", "-0.0", "1e-320", "-1.5", "1e308", "1.0000000001", "9" * 20, ".5", "1_0"]
TEXTS = ["", "=", "'", '"', "nul\x01l", "\u202eabc", "é" * 300, '""', '" "', '"\x1b[31mred"', '"\\u0000"', '"\\u001b[2J"']
TEXTS += ['"' + "x" * 5000 + '"', '"cpu\\n"', '"cuda:0"', '"cuda:99999999999999999999"', '"f16"', '"kept\\r"']
TEXTS += ['"/dev/zero"', '"/dev/full"', '"/proc/self/mem"', '"."']
SHAPES = [
    "true",
    "false",
    "[]",
    "[1, 2]",
    "{}",
    "{a = 1}",
    "{use = 1}",
    "[[]]",
    "[" * 3000,
    "1979-05-27T07:32:00Z",
    "0b11",
    "1__0",
]
SHAPES += ["0x7fffffffffffffff"]
KEYS = ["", "=", ".", "..", "[train]", "train", "train.", ".seed", "train..seed", "train.seed.x", "train.seed ", "TRAIN.seed"]
KEYS += ["train.sed", '"train".seed', "train.\x1b[31m", "x" * 4000, "a.b.c.d.e.f", "é.ü", "recipe", "advantage.use"]
KEYS += [
    "mask",
    "mask.0",
    "mask.0.",
    "mask.-1.x",
    "mask.0.use",
    "mask.1.use",
    "mask.4294967296.use",
    "mask.99999999999999999999.use",
]
KEYS += ["reward.0", "reward.0.use", "reward.1.use", "objective.reduction"]
# Of runs. None leads out of the folder where the command runs.
FOLDERS = [
    '""',
    '"."',
    '".."',
    '"./"',
    '"config.toml"',
    '"config.toml/run"',
    '"a/b/c"',
    '"./run/../run"',
    '"' + "x" * 300 + '"',
    "1",
]
FOLDERS += ['"run\\u0000"', '"\\u001b[31mrun"', "[]"]
