"""Shows the bank's matrix: as lines, as one JSON document, and in brief as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tailproof.jobs.bank.cases import Bank, Case
from tailproof.jobs.bank.run import VERDICTS, Cell, Matrix
from tailproof.judge.findings import Finding

FORMAT = 1
_RELATIONS = {"same": "as reported", "kind": "in kind"}


def lines(matrix: Matrix) -> Iterator[str]:
    """The matrix for a terminal: a line for each case and target that is not plain, then the numbers."""
    for case in matrix.bank.cases:
        row = matrix.cells.get(case.report)
        if row is None:
            yield f"not played      {case.report}: {case.reason}"
            continue
        yield f"{_summary(row):<15} {case.report} ({_RELATIONS[case.relation]}): {case.about}"
        for target, cell in row.items():
            if cell.verdict not in ("holds", "does not apply"):
                yield f"                  {target}: {_told(cell)}"
                if cell.play:
                    yield f"                    {replay_line(cell, target)}"
    for target, problem in matrix.problems.items():
        yield f"{target} could not run: {problem}"
    for target in matrix.targets:
        counts = ", ".join(f"{count} {one}" for one in VERDICTS if (count := matrix.count(target, one)))
        yield f"{target}: {counts or 'nothing ran'}"


def _summary(row: dict[str, Cell]) -> str:
    verdicts = {cell.verdict for cell in row.values()}
    return next(iter(verdicts)) if len(verdicts) == 1 else "differs"


def _told(cell: Cell) -> str:
    if cell.finding is None:
        return f"{cell.verdict}: {cell.message}"
    where = f"{cell.finding.rule} {cell.finding.kind}"
    profile = f" under {cell.profile}" if cell.profile != "drop" else ""
    return f"{cell.verdict} {where}{profile}: {cell.message}"


def replay_line(cell: Cell, target: str) -> str:
    """The line that runs a cell's trace again."""
    return f"tailproof replay tailproof/jobs/bank/traces/{cell.play}.json --target {target}"


def document(matrix: Matrix) -> dict[str, Any]:
    """The matrix as plain JSON values."""
    return {
        "format": FORMAT,
        "targets": list(matrix.targets),
        "problems": matrix.problems,
        "counts": {target: {one: matrix.count(target, one) for one in VERDICTS} for target in matrix.targets},
        "cases": [_case(matrix, case) for case in matrix.bank.cases],
    }


def _case(matrix: Matrix, case: Case) -> dict[str, Any]:
    row = matrix.cells.get(case.report, {})
    return {
        "report": case.report,
        "about": case.about,
        "kind": case.kind,
        "relation": case.relation,
        "rules": list(case.rules),
        "traces": list(case.traces),
        "reason": case.reason,
        "note": case.note,
        "cells": {target: _cell(cell) for target, cell in row.items()},
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "verdict": cell.verdict,
        "message": cell.message,
        "finding": _finding(cell.finding) if cell.finding is not None else None,
        "beside": [_finding(one) for one in cell.beside],
        "trace": cell.play,
        "profile": cell.profile,
    }


def _finding(finding: Finding) -> dict[str, str]:
    return {"rule": finding.rule, "kind": finding.kind, "message": finding.message}


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
            f"| {case.report} | {about} | {_RELATIONS[case.relation]} | {' '.join(case.rules)} | "
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
