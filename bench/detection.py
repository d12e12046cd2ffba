"""Measures how soon fuzzing finds each seed defect again, on a version of vLLM that has it.

    .venv/bin/python -m bench.detection          the kept table
    .venv/bin/python -m bench.detection --run    measure, and keep the table's numbers in bench/results/

For each defect and seed, cases are drawn as `tailproof fuzz` draws them, and counted until one shows that
very defect: other divergences of an old version do not count, nor what a known fault of today explains. Time
is wall time from the first case on, when the worker is warm. The same search on a version without the defect
is the control: it must find nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spec.geometry import Geometry
from spec.trace import Trace, prompt_length
from tailproof.jobs.search import Subject, drawing, search
from tailproof.judge.findings import Finding
from tailproof.judge.lockstep import Explainer, Renaming
from tailproof.known.explain import Known
from tailproof.known.model import load
from tailproof.targets.opening import OpenTarget, Target, open_target

RESULT = Path(__file__).parent / "results" / "detection.json"
SEEDS = 10
LIMIT = 60.0
CONTROL_CASES = 200
# The release line whose known faults are told apart from the defects; old versions have most of them too.
TODAY = Known(load(), "0.32")


@dataclass(frozen=True, slots=True)
class Defect:
    """A seed defect: a version that has it, one that has it no longer, and how its divergences are told from
    those of the other defects of that version. `tier` is where it shows."""

    name: str
    target: str
    control: str
    signs: frozenset[tuple[str, str]]
    shows: Callable[[Geometry, int], bool] = lambda geometry, prompt: True
    tier: str = "core"

    def is_it(self, trace: Trace, finding: Finding) -> bool:
        """Whether a finding on a trace is this defect."""
        if (finding.rule, finding.kind) not in self.signs:
            return False
        if finding.request is None:
            return False
        prompts = {submit.id: prompt_length(submit.prompt) for submit in trace.submits()}
        return self.shows(Geometry.of(trace.configuration), prompts[finding.request])


def _ends_on_a_unit(geometry: Geometry, prompt: int) -> bool:
    """Cap and drop differ from the drop alone only where U divides P, with EAGLE."""
    return geometry.eagle and prompt % geometry.grid == 0


def _with_a_margin(geometry: Geometry, prompt: int) -> bool:
    """A tail has a proof past the checkpoint with EAGLE only, and only where hits are fine."""
    return geometry.eagle and geometry.fine and geometry.checkpoint(prompt) > 0


def _marked_off_the_units(geometry: Geometry, prompt: int) -> bool:
    """The flag of one group differs from that of the model where groups are marked; off the units, so that
    cap and drop have no part in it, and inside a block, since both versions lose checkpoints at block
    ends."""
    inside = geometry.checkpoint(prompt) % geometry.mamba_block != 0
    return geometry.eagle and geometry.annotated and prompt % geometry.grid != 0 and inside


DEFECTS = (
    Defect(
        "lookup capped below the proof",
        "vllm==0.31.0",
        "vllm==0.32.0",
        frozenset({("PM1", "scan-capped")}),
    ),
    Defect(
        "checkpoint: cap and drop both",
        "vllm==0.31.0",
        "vllm==0.32.0",
        frozenset({("CP7", "jumped-checkpoint"), ("CP7", "registered-elsewhere")}),
        _ends_on_a_unit,
    ),
    Defect(
        "registration by a per-group flag",
        "vllm==0.30.0",
        "vllm==0.31.0",
        frozenset({("RT2", "missing-checkpoint")}),
        _marked_off_the_units,
    ),
    Defect(
        "incomplete external tail",
        "vllm==0.31.0",
        "vllm==0.32.0",
        frozenset({("TS1", "missing-tail"), ("TS7", "missing-tail-without-state")}),
        _with_a_margin,
        tier="store",
    ),
)


@dataclass(frozen=True, slots=True)
class Hunt:
    """A search with one seed: after how many cases and seconds the defect showed (`found`), or that it did
    not."""

    seed: int
    found: bool
    cases: int
    seconds: float


def _others(defect: Defect, trace: Trace) -> Explainer:
    """Explains everything but one defect: by a known fault of today where there is one."""
    return Renaming(
        TODAY.explainer(), lambda one, name: name or ("" if defect.is_it(trace, one) else "another")
    )


def hunt(
    defect: Defect, opened: OpenTarget, seed: int, *, seconds: float = LIMIT, cases: int | None = None
) -> Hunt:
    """Draw cases until one shows the defect, or the seconds or cases are used up.

    Raises:
        TargetProblem: when the target cannot go on.
    """
    draw = drawing(defect.tier, [opened.describe()])
    subject = Subject([opened], lambda trace: _others(defect, trace))
    done, passed = 0, 0.0
    # One at a time, so that nothing is queued where the search stops, and the worker stays warm.
    for one in search(subject, lambda index: draw(seed, index), seconds=seconds, cases=cases, ahead=1):
        done, passed = done + 1, one.seconds
        if one.new() is not None:
            return Hunt(seed, True, done, passed)
    return Hunt(seed, False, done, passed)


def table(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The measurements as a table in Markdown, line by line."""
    yield "| defect | version | named | found | median cases | median s | worst s | control |"
    yield "|---|---|---|---|---|---|---|---|"
    for defect in DEFECTS:
        row = rows[defect.name]
        named = ", ".join(f"{rule} {kind}" for rule, kind in sorted(defect.signs))
        cases, seconds = row["cases"], row["seconds"]
        numbers = (
            f"{statistics.median(cases):.0f} | {statistics.median(seconds):.2f} | {max(seconds):.2f}"
            if cases
            else "none | none | none"
        )
        found = f"{len(cases)} of {row['seeds']} seeds"
        yield (
            f"| {defect.name} | {defect.target} | {named} | {found} | {numbers} | "
            f"{row['control']} in {row['control_cases']} cases of {defect.control} |"
        )


def measure(defect: Defect, seeds: int) -> dict[str, Any]:
    """The hunts of a defect: cases and seconds of those that found it, and what its control found."""
    with closing(open_target(Target.parse(defect.target), _say)) as opened:
        _warm(defect.tier, opened)
        hunts = [hunt(defect, opened, seed) for seed in range(1, seeds + 1)]
    found = [one for one in hunts if one.found]
    _say(f"{defect.name}: {len(found)} of {len(hunts)} seeds")
    with closing(open_target(Target.parse(defect.control), _say)) as opened:
        _warm(defect.tier, opened)
        control = hunt(defect, opened, 1, cases=CONTROL_CASES)
    return {
        "seeds": seeds,
        "cases": [one.cases for one in found],
        "seconds": [round(one.seconds, 2) for one in found],
        "control": "found" if control.found else "nothing",
        "control_cases": control.cases,
    }


def _warm(tier: str, opened: OpenTarget) -> None:
    """The first case of a worker builds vLLM's configuration objects, which costs seconds."""
    draw = drawing(tier, [opened.describe()])
    for index in range(8):
        opened.run(draw(0, index))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Show the table, measured anew if that is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="store_true", help="measure, and keep the result")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds (default: %(default)s)")
    options = parser.parse_args()
    if options.run:
        rows = {defect.name: measure(defect, options.seeds) for defect in DEFECTS}
        RESULT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table(json.loads(RESULT.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    main()
