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
from pathlib import Path

from tailproof.jobs.bank.cases import bank
from tailproof.jobs.bank.run import run_bank
from tailproof.jobs.bank.show import markdown
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


if __name__ == "__main__":
    sys.exit(main())
