"""Results as a table, for the terminal and for study/gpu.md."""

import json

from .settings import Failure

BEGIN, END = "<!-- gpu-check -->", "<!-- end of gpu-check -->"


def lines(results):
    """The rows `(part, what, result)`, with the time of each part and of all parts. A part that failed has a row with the reason."""
    for part in results["parts"]:
        for label, value in part["rows"]:
            yield part["name"], label, value
        if part["status"] != "ok":
            said = part["said"].splitlines()
            yield part["name"], part["status"], said[0] if said else ""
        yield part["name"], "time", f"{part['seconds']} s"
    yield "all", "time", f"{results['seconds']} s"


def table(results):
    """Columns of equal width."""
    rows = [("part", "what", "result"), *lines(results)]
    first, second = (max(len(row[at]) for row in rows) for at in (0, 1))
    return "".join(f"{part:<{first}}  {label:<{second}}  {value}\n" for part, label, value in rows)


def markdown(results):
    def cell(text):
        return text.replace("|", "\\|")

    about = f"{results.get('GPU', 'no GPU was found')}, driver {results.get('driver', 'unknown')}"
    text = (
        f"{about}; commit `{results['commit']}`, {results['date'][:10]}.\n\n| part | what | result |\n|---|---|---|\n"
    )
    return text + "".join(f"| {' | '.join(map(cell, row))} |\n" for row in lines(results))


def main(args):
    try:
        results = json.loads(args.results.read_text())
        text = markdown(results)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failure(f"`{args.results}` holds no results of `gpu-check run`: {error!r}") from None
    doc = args.doc.read_text()
    if doc.count(BEGIN) != 1 or doc.count(END) != 1:
        raise Failure(f"`{args.doc}` lacks the lines `{BEGIN}` and `{END}` (the table stands between them)")
    before, after = doc.split(BEGIN)[0], doc.split(END)[1]
    args.doc.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}")
    print(f"table of {args.results} is in {args.doc}")
