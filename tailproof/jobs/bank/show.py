"""Shows the bank's matrix, as lines and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tailproof.jobs.bank.cases import Case
from tailproof.jobs.bank.run import VERDICTS, Cell, Matrix
from tailproof.judge.findings import Finding

FORMAT = 1
RELATIONS = {"same": "as reported", "kind": "in kind"}


def lines(matrix: Matrix) -> Iterator[str]:
    """The matrix for a terminal: a line for each case and target that is not plain, then the numbers."""
    for case in matrix.bank.cases:
        row = matrix.cells.get(case.report)
        if row is None:
            yield f"not played      {case.report}: {case.reason}"
            continue
        yield f"{_summary(row):<15} {case.report} ({RELATIONS[case.relation]}): {case.about}"
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
    return f"tailproof replay tailproof/jobs/bank/traces/{cell.play}.txt --target {target}"


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
    plain = msgspec.json.decode(msgspec.json.encode(case))
    return {**plain, "cells": {target: _cell(cell) for target, cell in row.items()}}


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
