"""Writes the tables of docs/bug-bank.md from a run of the bug bank.

    .venv/bin/python -m bench.bank                        the tables, on the terminal
    .venv/bin/python -m bench.bank --write                and into docs/bug-bank.md
    .venv/bin/python -m bench.bank --target T ...         on these targets only

Without targets it runs on every version of vLLM that is known here.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tailproof.jobs.bank.cases import bank
from tailproof.jobs.bank.run import VERDICTS, Cell, Matrix, run_bank
from tailproof.jobs.bank.show import RELATIONS
from tailproof.known.model import load
from tailproof.targets.opening import known_versions

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "bug-bank.md"
BEGIN, END = "<!-- begin -->\n", "<!-- end -->\n"


def main() -> int:
    """Run, show and perhaps write; returns the exit code of the run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the tables into docs/bug-bank.md")
    parser.add_argument("--target", action="append", metavar="T", help="only these targets")
    options = parser.parse_args()
    names = options.target or list(known_versions())
    began = time.monotonic()
    matrix = run_bank(names, bank(), load(), lambda line: print(line, file=sys.stderr))
    seconds = time.monotonic() - began
    text = "\n".join(markdown(matrix)) + "\n"
    if matrix.problems:
        text += "\n" + "".join(
            f"{name} could not run: {problem}.\n" for name, problem in matrix.problems.items()
        )
    text += f"\nRun on {', '.join(names)}, one worker each, in {seconds:.0f} s.\n"
    print(text)
    if options.write:
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    return matrix.exit_code


def markdown(matrix: Matrix) -> Iterator[str]:
    """The tables of the document, one line after the other."""
    heads = [target.removeprefix("vllm==") for target in matrix.targets]
    counts = Counter(case.relation for case in matrix.bank.cases)
    shared = sum(len(case.traces) for case in matrix.bank.cases) - len(matrix.bank.plays)
    yield (
        f"{len(matrix.bank.cases)} reports: {counts['same']} played as reported, {counts['kind']} in kind, "
        f"{counts['none']} not played. {len(matrix.bank.plays)} traces; {shared} uses of a trace are shared."
    )
    yield ""
    yield f"| verdict | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(heads)}"
    for verdict in VERDICTS:
        numbers = [str(matrix.count(target, verdict)) for target in matrix.targets]
        yield f"| {verdict} | {' | '.join(numbers)} |"
    yield ""
    yield "## Played"
    yield ""
    yield f"| report | what went wrong | played | rules | traces | {' | '.join(heads)} |"
    yield f"|---|---|---|---|---|{'---|' * len(heads)}"
    for case in matrix.bank.cases:
        if case.relation == "none":
            continue
        row = matrix.cells[case.report]
        cells = [_short(row[target]) for target in matrix.targets]
        about = f"{case.about} *{case.note[:1].upper()}{case.note[1:]}.*" if case.note else case.about
        yield (
            f"| {case.report} | {about} | {RELATIONS[case.relation]} | {' '.join(case.rules)} | "
            f"{', '.join(case.traces)} | {' | '.join(cells)} |"
        )
    yield ""
    yield "## Not played"
    yield ""
    yield "| report | what went wrong | why not |"
    yield "|---|---|---|"
    for case in matrix.bank.cases:
        if case.relation == "none":
            yield f"| {case.report} | {case.about} | {case.reason} |"


def _short(cell: Cell) -> str:
    if cell.verdict == "does not apply":
        return "–"
    if cell.finding is None:
        return cell.verdict
    text = f"{cell.verdict}: {cell.finding.rule} {cell.finding.kind}"
    return f"**{text}**" if cell.verdict == "fails" else text


if __name__ == "__main__":
    sys.exit(main())
