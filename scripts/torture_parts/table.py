"""What came out, as a table for docs/reliability.md."""

import collections
import platform
import shlex
import sys

from . import drive


def table(results, args):
    """Markdown: the command, a line for every part, and what was found."""
    command = shlex.join(["scripts/torture", *sys.argv[1:]])
    kills = sum(result.tally["killed"] for result in results)
    cases = sum(result.done for result in results)
    lines = [f"`{command}`, seed {args.seed}, {platform.machine()}: {cases:,} cases, {kills:,} kills", ""]
    lines += ["| part | what is tried | cases | what became of them | longest | most memory | findings |"]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [row(result) for result in results]
    found = collections.Counter((result.name, finding.what) for result in results for finding in result.findings)
    if found:
        lines += ["", "| found | times | for instance |", "|---|---|---|"]
        first = {}
        for result in results:
            for finding in result.findings:
                first.setdefault((result.name, finding.what), finding.case)
        for (name, what), times in found.most_common():
            lines.append(f"| {name}: {escaped(what)} | {times} | `--reproduce {first[name, what]}` |")
    return "\n".join(lines) + "\n"


def row(result):
    cases = f"{result.done:,}" if result.done == result.planned else f"{result.done:,} of {result.planned:,}"
    became = ", ".join(f"{label} {count:,}" for label, count in sorted(result.tally.items()))
    each = 1000 * result.seconds / max(1, result.done)
    cells = [result.name, drive.PARTS[result.name].TRIED, f"{cases}, {each:.0f} ms each", became, f"{result.longest:.1f} s"]
    return f"| {' | '.join([*cells, f'{result.peak / 1e6:.0f} MB', str(len(result.findings))])} |"


def escaped(text):
    return text.replace("|", "\\|").replace("\n", " ")
