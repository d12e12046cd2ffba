"""Runs the scenarios of this folder: what a trace in the notation shows, on a target, under a release line.

A file holds blocks: what is asked, a line `----`, what comes of it, and a blank line. What is asked are lines
of the notation of a trace (`docs/contract.md`) and

    on reference reference+FAULT    the targets; a fault may be of `engines.py`, or mistakes of the split
    line 0.32 0.33                  the release lines whose known faults are asked; `none` for nothing known
    tell steps explanation          what is told beside the findings: `explanation` of the first, `CH1` of the
                                    first of that rule, `pins` in the steps, fields of observations (`free`),
                                    `comparisons`: what each of them finds
    plant ...                       a change of what was seen (`plants.py`)
    units 4 2                       what the workers say of their units

Where a block has no steps, or says nothing of the setting, those of the block before hold; `on`, `line` and
`tell` hold until said anew. `pytest tests/scenarios --rewrite` writes what comes of each block into its file.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from reference.store_oracle import oracles
from spec.geometry import Geometry, GeometryError
from spec.notation import parse
from spec.observation import Observation, Outcome
from spec.trace import Trace, TraceError
from tailproof.explain.story import explain_divergence, happened
from tailproof.judge.findings import Divergence, IncompleteError
from tailproof.judge.lockstep import divergences
from tailproof.judge.step import COMPARISONS, Comparison, Step
from tailproof.known.explain import Known
from tailproof.known.model import load
from tailproof.targets.opening import ReferenceTarget, Target
from tests.scenarios.engines import engine_of
from tests.scenarios.plants import planted, shown

FOLDER = Path(__file__).parent
RULE = "----"
BASELINE = load()


@dataclass(frozen=True, slots=True)
class Question:
    """What a block asks: a trace, or why there is none; on which targets, under which release lines."""

    trace: Trace | None = None
    refused: str = ""
    on: tuple[str, ...] = ("reference",)
    lines: tuple[str, ...] = ("none",)
    tell: tuple[str, ...] = ("steps",)
    plants: tuple[str, ...] = ()
    units: tuple[int, int] | None = None


@dataclass(slots=True)
class Block:
    """A block of a file: the `asked` lines, as they stand, the question, and what is `due`."""

    place: str
    asked: list[str]
    question: Question
    due: list[str] = field(default_factory=list)


def blocks(text: str, name: str = "") -> list[Block]:
    """The blocks of a file."""
    found: list[Block] = []
    asked: list[str] = []
    expecting = False
    last = Question()
    for number, line in enumerate(text.splitlines(), start=1):
        if expecting and line:
            found[-1].due.append(line)
        elif not expecting and line == RULE:
            last = understood(asked, last)
            found.append(Block(f"{name}:{number}", asked, last))
            asked, expecting = [], True
        else:
            expecting = False
            asked.append(line)
    return found


def understood(asked: list[str], last: Question) -> Question:
    """What lines ask, beside what the block before asked."""
    heads: dict[str, Any] = {"plants": (), "units": None, "refused": ""}
    notation: list[str] = []
    for line in asked:
        word, _, rest = line.partition(" ")
        if word == "plant":
            heads["plants"] += (rest,)
        elif word == "units":
            heads["units"] = tuple(map(int, rest.split()))
        elif word in ("on", "line", "tell"):
            heads["lines" if word == "line" else word] = tuple(rest.split())
        else:
            notation.append(line)
    told = [line for line in notation if line.partition("#")[0].strip()]
    if told:
        heads |= _trace("\n".join(notation), last.trace)
    return replace(last, **heads)


def _trace(text: str, last: Trace | None) -> dict[str, Any]:
    try:
        trace = parse(text, last)
        Geometry.of(trace.configuration)
    except (TraceError, GeometryError) as problem:
        return {"refused": str(problem)}
    return {"trace": trace}


def answered(question: Question) -> list[str]:
    """What comes of a question, in lines."""
    if question.refused:
        return [f"refused: {question.refused}"]
    assert question.trace is not None
    lines: list[str] = []
    for name in question.on:
        if len(question.on) > 1:
            lines.append(f"on {name}:")
        lines += _of_target(question, question.trace, name)
    return lines


def _of_target(question: Question, trace: Trace, name: str) -> Iterator[str]:
    seen = planted(observations(trace, name), question.plants)
    outcome = Outcome(tuple(seen), units=question.units)
    found = {line: list(_found(trace, outcome, line)) for line in question.lines}
    first = next((one for line in question.lines for one in found[line] if isinstance(one, Divergence)), None)
    if "steps" in question.tell:
        judged = outcome if first is None else Outcome(outcome.observations[: first.index + 1])
        yield from happened(trace, judged, pins="pins" in question.tell)
    for name in (name for name in question.tell if hasattr(Observation, name)):
        last: object = None
        for index, one in enumerate(seen):
            value = getattr(one, name)
            if value != last and value not in (None, ()):
                yield f"step {index}: {name} {shown(value)}"
            last = value
    texts_of: dict[tuple[str, ...], list[str]] = {}
    for line in question.lines:
        texts_of.setdefault(tuple(map(_told, found[line])) or ("found nothing",), []).append(line)
    for texts, lines in texts_of.items():
        if len(question.lines) > 1:
            yield f"line {' '.join(lines)}:"
        yield from texts
    if "comparisons" in question.tell:
        yield from (f"red {one}: {', '.join(kinds)}" for one, kinds in red(trace, seen).items())
    for one in found[question.lines[0]]:
        if isinstance(one, Divergence) and (one is first and "explanation" in question.tell or one.rule in question.tell):
            yield from explain_divergence(trace, outcome, one)
            return


def _found(trace: Trace, outcome: Outcome, line: str) -> Iterator[Divergence | str]:
    explainer = Known(BASELINE, line).explainer() if line != "none" else None
    try:
        yield from divergences(trace, outcome, explainer=explainer)
    except IncompleteError as problem:
        yield f"incomplete: {problem}"


def _told(one: Divergence | str) -> str:
    if isinstance(one, str):
        return one
    known = f", known {one.fault}" if one.fault else ""
    return f"found {one.rule} {one.finding.kind} in step {one.index}{known}: {one.finding.message}"


def red(trace: Trace, seen: Sequence[Observation]) -> dict[str, list[str]]:
    """What each comparison finds in the first step in which one finds something."""
    engines = oracles(trace)
    for observation in seen:
        oracle = engines[observation.engine]
        step = Step(observation, oracle.forecast(observation), oracle)
        kinds = {name_of(one): [f"{found.rule} {found.kind}" for found in one(step)] for one in COMPARISONS}
        if any(kinds.values()):
            return {name: found for name, found in kinds.items() if found}
        oracle.adopt(observation, step.expected)
    return {}


def name_of(comparison: Comparison) -> str:
    """A comparison by its module and its name."""
    return f"{comparison.__module__.rpartition('.')[2]}.{comparison.__name__}"


@lru_cache(maxsize=64)
def observations(trace: Trace, name: str) -> tuple[Observation, ...]:
    """What a target does."""
    reference = Target.parse("reference")
    return ReferenceTarget(reference, engine_of(name)).run(trace).observations


def rewritten(text: str) -> str:
    """A file with what comes of its blocks."""
    parts = []
    found = blocks(text)
    for block in found:
        parts += [*block.asked, RULE, *answered(block.question)]
    return "\n".join(parts).rstrip() + "\n"


FILES = {path.stem: path for path in sorted(FOLDER.glob("*.txt"))}
CASES = [
    pytest.param(name, number, id=block.place)
    for name, path in FILES.items()
    for number, block in enumerate(blocks(path.read_text(encoding="utf-8"), name))
]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_a_scenario_shows_what_its_file_says(name: str, number: int, pytestconfig: pytest.Config) -> None:
    path = FILES[name]
    text = path.read_text(encoding="utf-8")
    if pytestconfig.getoption("rewrite"):
        if number == 0:
            path.write_text(rewritten(text), encoding="utf-8")
        return
    block = blocks(text, name)[number]
    got = answered(block.question)
    diff = difflib.unified_diff(block.due, got, "expected", "got", lineterm="", n=1)
    assert got == block.due, "\n".join((f"{block.place}, rewrite with --rewrite:", *diff))
