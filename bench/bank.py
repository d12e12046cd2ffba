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
from pathlib import Path

from tailproof.jobs.bank.cases import bank
from tailproof.jobs.bank.run import run_bank
from tailproof.jobs.bank.show import brief, markdown
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


if __name__ == "__main__":
    sys.exit(main())
