"""The command `tailproof bank`: the bug bank on one or more targets."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tailproof.cli.options import baseline_option, json_flag, line_option, progress_line, show, targets_option
from tailproof.jobs.bank import show as matrix_shown
from tailproof.jobs.bank.cases import bank
from tailproof.jobs.bank.run import run_bank
from tailproof.known.explain import checked
from tailproof.targets.opening import DEFAULT


@click.command("bank")
@click.argument("reports", nargs=-1, metavar="[REPORT]...")
@targets_option
@baseline_option
@line_option
@json_flag
def bank_command(
    reports: tuple[str, ...],
    targets: tuple[str, ...],
    baseline: Path | None,
    line: str | None,
    as_json: bool,
) -> None:
    """Public fault reports as traces: which hold, fail or do not apply on each target.

    REPORT is any part of a reference, as 54076; all without one. Exit 1 when something breaks that no
    known fault explains, 3 when something could not run.
    """
    names = list(dict.fromkeys(targets or (DEFAULT,)))
    matrix = run_bank(names, bank().about(reports), checked(baseline), progress_line(), line)
    show(as_json, lambda: matrix_shown.document(matrix), lambda: matrix_shown.lines(matrix))
    sys.exit(matrix.exit_code)
