"""Runs the bug bank on every version of vLLM, keeps what came of it, and shows it as tables.

.venv/bin/python -m bench.bank                   the kept tables
.venv/bin/python -m bench.bank --run             run all, and keep the result in bench/results/bank.json
.venv/bin/python -m bench.bank --run --target T  show a run on these targets, and keep nothing
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tailproof.jobs.bank.cases import Bank, bank
from tailproof.jobs.bank.run import VERDICTS, Cell, Matrix, run_bank
from tailproof.jobs.bank.show import RELATIONS
from tailproof.known.model import load
from tailproof.targets.opening import known_versions

RESULT = Path(__file__).parent / "results" / "bank.json"


def main() -> int:
    """Show, after a run if one is asked for; returns the exit code of the run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true", help="run the bank")
    parser.add_argument("--target", action="append", metavar="T", help="with --run: only these targets")
    options = parser.parse_args()
    code, shipped = 0, bank()
    if options.run:
        began = time.monotonic()
        names = options.target or list(known_versions())
        matrix = run_bank(names, shipped, load(), lambda line: print(line, file=sys.stderr))
        seconds = round(time.monotonic() - began)
        found = {"targets": names, "problems": matrix.problems, "seconds": seconds, "cells": brief(matrix)}
        code = matrix.exit_code
        if not options.target:
            RESULT.write_text(json.dumps(found, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    else:
        found = json.loads(RESULT.read_text(encoding="utf-8"))
    print("\n".join(markdown(shipped, found["cells"], found["targets"])))
    for name, problem in found["problems"].items():
        print(f"{name} could not run: {problem}")
    print(f"\nRun on {', '.join(found['targets'])}, one worker each, in {found['seconds']} s.")
    return code


def brief(matrix: Matrix) -> dict[str, dict[str, str]]:
    """What each target did, by report and target: a verdict, and the finding if there is one."""
    return {
        report: {target: _brief(cell) for target, cell in row.items()} for report, row in matrix.cells.items()
    }


def _brief(cell: Cell) -> str:
    finding = cell.finding
    return cell.verdict if finding is None else f"{cell.verdict}: {finding.rule} {finding.kind}"


def markdown(bank: Bank, cells: dict[str, dict[str, str]], targets: Sequence[str]) -> Iterator[str]:
    """What targets did (`brief`) as tables in Markdown, line by line."""
    heads = " | ".join(target.removeprefix("vllm==") for target in targets)
    rules = "---|" * len(targets)
    relations = Counter(case.relation for case in bank.cases)
    shared = sum(len(case.traces) for case in bank.cases) - len(bank.plays)
    yield (
        f"{len(bank.cases)} reports: {relations['same']} played as reported, {relations['kind']} in kind, "
        f"{relations['none']} not played. {len(bank.plays)} traces; {shared} uses of a trace are shared."
    )
    yield from ("", f"| verdict | {heads} |", f"|---|{rules}")
    for verdict in VERDICTS:
        told = [[row[target] for row in cells.values() if target in row] for target in targets]
        counts = [str(sum(one.partition(":")[0] == verdict for one in column)) for column in told]
        yield f"| {verdict} | {' | '.join(counts)} |"
    yield from (
        "",
        f"| report | what went wrong | played | rules | traces | {heads} |",
        f"|---|---|---|---|---|{rules}",
    )
    for case in bank.cases:
        if case.relation == "none":
            continue
        about = f"{case.about} *{case.note[:1].upper()}{case.note[1:]}.*" if case.note else case.about
        row = cells.get(case.report, {})
        found = " | ".join(_marked(row.get(target, "could not run")) for target in targets)
        yield (
            f"| {case.report} | {about} | {RELATIONS[case.relation]} | {' '.join(case.rules)} | "
            f"{', '.join(case.traces)} | {found} |"
        )
    yield from ("", "| not played | what went wrong | why not |", "|---|---|---|")
    for case in bank.cases:
        if case.relation == "none":
            yield f"| {case.report} | {case.about} | {case.reason} |"


def _marked(told: str) -> str:
    if told == "does not apply":
        return "–"
    return f"**{told}**" if told.startswith("fails") else told


if __name__ == "__main__":
    sys.exit(main())
