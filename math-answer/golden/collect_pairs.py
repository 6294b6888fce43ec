"""Prints the pairs in the tests of other graders of mathematics, a line of JSON each, for the example `grade`.

    pip download --no-deps --no-binary :all: math-verify==0.9.0 && tar xzf math_verify-0.9.0.tar.gz
    python collect_pairs.py math_verify-0.9.0/tests MORE_TESTS... > pairs.jsonl
    cargo run -p math-answer --example grade < pairs.jsonl > ours

A folder of tests may be that of any project: the pairs are tuples of two texts and a verdict (`("$5$", "5", 1)`), the pairs of a
parameter `output_pair`, and the variables `test_in` and `test_out` of a test. With `--verify` each line also gets math-verify's verdict
with its defaults. The pairs belong to their projects and are not part of this one.
"""

import ast
import json
import sys
from pathlib import Path


def value(node):
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError):
        return None


def pairs(tree):
    for node in ast.walk(tree):
        row = value(node) if isinstance(node, ast.Tuple) else None
        if row and len(row) >= 3 and all(isinstance(text, str) for text in row[:2]):
            verdict = next((verdict for verdict in row[2:] if verdict in (0, 1)), None)
            if verdict is not None:
                yield *row[:2], bool(verdict)
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and len(decorator.args) == 2 and value(decorator.args[0]) == "output_pair":
                    for row in map(value, decorator.args[1].elts):
                        if row and None not in row:
                            yield *map(str, row), "incorrect" not in node.name
            names = {
                name.id: value(line.value)
                for line in node.body
                if isinstance(line, ast.Assign)
                for name in line.targets
                if isinstance(name, ast.Name)
            }
            if {"test_in", "test_out"} <= names.keys():
                yield names["test_in"], names["test_out"], "assertTrue" in ast.unparse(node)


def main():
    folders = [argument for argument in sys.argv[1:] if argument != "--verify"]
    seen = set()
    for path in (path for folder in folders for path in sorted(Path(folder).rglob("*.py"))):
        for gold, answer, right in pairs(ast.parse(path.read_text())):
            if (gold, answer) in seen:
                continue
            seen.add((gold, answer))
            row = {"suite": path.stem, "gold": gold, "answer": answer, "right": right}
            if "--verify" in sys.argv:
                from math_verify import parse, verify

                row["verify"] = verify(parse(gold), parse(answer))
            print(json.dumps(row, ensure_ascii=False))


main()
