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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailproof.jobs.bank.cases import bank
from tailproof.jobs.bank.run import VERDICTS, run_bank
from tailproof.jobs.bank.show import RELATIONS, document
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
    code = 0
    if options.run:
        began = time.monotonic()
        names = options.target or list(known_versions())
        matrix = run_bank(names, bank(), load(), lambda line: print(line, file=sys.stderr))
        found = {**document(matrix), "seconds": round(time.monotonic() - began)}
        code = matrix.exit_code
        if not options.target:
            RESULT.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    else:
        found = json.loads(RESULT.read_text(encoding="utf-8"))
    print("\n".join(markdown(found)))
    print(f"\nRun on {', '.join(found['targets'])}, one worker each, in {found['seconds']} s.")
    return code


def markdown(found: dict[str, Any]) -> Iterator[str]:
    """The matrix as tables in Markdown, line by line, from its document."""
    targets, cases = found["targets"], found["cases"]
    heads = [target.removeprefix("vllm==") for target in targets]
    relations = Counter(case["relation"] for case in cases)
    played = [case for case in cases if case["relation"] != "none"]
    traces = [trace for case in played for trace in case["traces"]]
    shared = len(traces) - len(set(traces))
    yield (
        f"{len(cases)} reports: {relations['same']} played as reported, {relations['kind']} in kind, "
        f"{relations['none']} not played. {len(set(traces))} traces; {shared} uses of a trace are shared."
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
            f"| {case['report']} | {about} | {RELATIONS[case['relation']]} | {' '.join(case['rules'])} | "
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


if __name__ == "__main__":
    sys.exit(main())
