"""Shows the bank's matrix: as lines, as one JSON document, and that document as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tailproof.jobs.bank.cases import Case
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


def markdown(found: dict[str, Any]) -> Iterator[str]:
    """The matrix as tables in Markdown, line by line, from its document."""
    targets, cases = found["targets"], found["cases"]
    heads = [target.removeprefix("vllm==") for target in targets]
    relations = Counter(case["relation"] for case in cases)
    played = [case for case in cases if case["relation"] != "none"]
    traces = [trace for case in played for trace in case["traces"]]
    yield (
        f"{len(cases)} reports: {relations['same']} played as reported, {relations['kind']} in kind, "
        f"{relations['none']} not played. {len(set(traces))} traces; {len(traces) - len(set(traces))} uses of "
        "a trace are shared."
    )
    yield ""
    yield f"| verdict | {' | '.join(heads)} |"
    yield f"|---|{'---|' * len(heads)}"
    for verdict in VERDICTS:
        numbers = [str(found["counts"][target][verdict]) for target in targets]
        yield f"| {verdict} | {' | '.join(numbers)} |"
    yield ""
    yield f"| report | what went wrong | played | rules | traces | {' | '.join(heads)} |"
    yield f"|---|---|---|---|---|{'---|' * len(heads)}"
    for case in played:
        cells = [_short(case["cells"][target]) for target in targets]
        note = case["note"]
        about = f"{case['about']} *{note[:1].upper()}{note[1:]}.*" if note else case["about"]
        yield (
            f"| {case['report']} | {about} | {_RELATIONS[case['relation']]} | {' '.join(case['rules'])} | "
            f"{', '.join(case['traces'])} | {' | '.join(cells)} |"
        )
    yield ""
    yield "| not played | what went wrong | why not |"
    yield "|---|---|---|"
    for case in cases:
        if case["relation"] == "none":
            yield f"| {case['report']} | {case['about']} | {case['reason']} |"
    yield from (f"{name} could not run: {problem}." for name, problem in found["problems"].items())


def _short(cell: dict[str, Any]) -> str:
    if cell["verdict"] == "does not apply":
        return "–"
    if cell["finding"] is None:
        return str(cell["verdict"])
    text = f"{cell['verdict']}: {cell['finding']['rule']} {cell['finding']['kind']}"
    return f"**{text}**" if cell["verdict"] == "fails" else text
