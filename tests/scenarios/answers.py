"""Runs what a scenario asks, and says what comes of it in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from reference.oracle import oracles
from spec.observation import Observation, Outcome
from spec.trace import Trace
from tailproof.explain.story import explain_divergence, happened
from tailproof.judge.findings import Divergence, IncompleteError
from tailproof.judge.lockstep import compare, divergences, exercised
from tailproof.judge.step import COMPARISONS, Comparison, Step
from tailproof.known.explain import Known
from tailproof.reach.core import TIGHT, axes
from tailproof.reach.coverage import Coverage
from tailproof.reach.store import StoreReach, store_axes
from tailproof.reach.table import Table
from tailproof.targets.opening import ReferenceTarget, Target
from tests.scenarios.blocks import BASELINE, RULE, Question, blocks
from tests.scenarios.engines import engine_of
from tests.scenarios.plants import planted, shown


def rewritten(text: str) -> str:
    """A file with what comes of its blocks."""
    parts = [line for one in blocks(text) for line in (*one.asked, RULE, *answered(one.question))]
    return "\n".join(parts).rstrip() + "\n"


def answered(question: Question) -> list[str]:
    """What comes of a question, in lines."""
    if question.refused:
        return [f"refused: {question.refused}"]
    lines: list[str] = []
    for name in question.on:
        if len(question.on) > 1:
            lines.append(f"on {name}:")
        lines += _on(question, name)
    return lines


def outcome_of(question: Question, name: str) -> Outcome:
    """What a target does, with the plants of a question."""
    assert question.trace is not None
    seen = planted(_observations(question.trace, name), question.plants)
    return Outcome(tuple(seen), units=question.units)


def found_of(question: Question, outcome: Outcome, line: str) -> tuple[list[Divergence], str]:
    """All that is found under a release line, and why the run is not whole."""
    assert question.trace is not None
    explainer = Known(BASELINE, line).explainer() if line != "none" else None
    found: list[Divergence] = []
    try:
        found.extend(divergences(question.trace, outcome, explainer=explainer))
    except IncompleteError as problem:
        return found, str(problem)
    return found, ""


def _on(question: Question, name: str) -> Iterator[str]:
    trace, outcome = question.trace, outcome_of(question, name)
    assert trace is not None
    each = {line: found_of(question, outcome, line) for line in question.lines}
    first = next((one for found, _ in each.values() for one in found), None)
    if "steps" in question.tell:
        judged = outcome if first is None else Outcome(outcome.observations[: first.index + 1])
        yield from happened(trace, judged, pins="pins" in question.tell)
    yield from _fields(question, outcome.observations)
    texts_of: dict[tuple[str, ...], list[str]] = {}
    for line, (found, reason) in each.items():
        texts = (*map(_told, found), *([f"incomplete: {reason}"] if reason else []))
        texts_of.setdefault(texts or ("found nothing",), []).append(line)
    for texts, lines in texts_of.items():
        if len(question.lines) > 1:
            yield f"line {' '.join(lines)}:"
        yield from texts
    if "reach" in question.tell:
        yield from _reach(trace, outcome)
    if "comparisons" in question.tell:
        yield from (f"red {one}: {kinds}" for one, kinds in _red(trace, outcome.observations))
    wanted = (one for one in each[question.lines[0]][0] if {one.rule, "explanation"} & {*question.tell})
    if (one := next(wanted, None)) is not None:
        yield from explain_divergence(trace, outcome, one)


def _told(one: Divergence) -> str:
    known = f", known {one.fault}" if one.fault else ""
    return f"found {one.rule} {one.finding.kind} in step {one.index}{known}: {one.finding.message}"


def _fields(question: Question, seen: Sequence[Observation]) -> Iterator[str]:
    """The fields of observations that are told, where they change."""
    for name in (name for name in question.tell if hasattr(Observation, name)):
        last: object = None
        for index, one in enumerate(seen):
            value = getattr(one, name)
            if value != last and value not in (None, ()):
                yield f"step {index}: {name} {shown(value)}".rstrip()
            last = value


def _reach(trace: Trace, outcome: Outcome) -> Iterator[str]:
    """What a case counts for: its features, what it met, and the rules that it could have seen broken."""
    coverage, store, rules = Coverage(), StoreReach(), Counter[str]()
    coverage.case(trace)
    store.case(trace)

    def visit(step: Step) -> None:
        coverage.step(trace, step.observation, step.expected)
        store.step(trace, step.observation, step.expected)
        rules.update(exercised(step))

    compare(trace, outcome, visit)
    whole = trace.configuration.store != "off"
    features = store_axes(trace.configuration) if whole else axes(trace)
    table: Table = store if whole else coverage.reach
    met = [f"{table.totals[phase]} {phase}" for phase in table.phases if table.totals[phase]]
    yield f"features: {'; '.join(features)}"
    yield f"met: {'; '.join(met) or 'nothing'}"
    tight = coverage.reach.counts[TIGHT]
    if not whole and any(tight.values()):
        yield f"without room: {'; '.join(f'{number} {phase}' for phase, number in tight.items() if number)}"
    yield f"exercised: {', '.join(f'{rule} {rules[rule]}' for rule in sorted(rules))}"


def _red(trace: Trace, seen: Sequence[Observation]) -> Iterator[tuple[str, str]]:
    """What each comparison finds in the first step in which one finds something."""
    engines = oracles(trace)
    for observation in seen:
        oracle = engines[observation.engine]
        step = Step(observation, oracle.forecast(observation), oracle)
        kinds = {one: [f"{found.rule} {found.kind}" for found in one(step)] for one in COMPARISONS}
        if any(kinds.values()):
            yield from ((name_of(one), ", ".join(found)) for one, found in kinds.items() if found)
            return
        oracle.adopt(observation, step.expected)


def name_of(comparison: Comparison) -> str:
    """A comparison by its module and its name."""
    return f"{comparison.__module__.rpartition('.')[2]}.{comparison.__name__}"


@lru_cache(maxsize=64)
def _observations(trace: Trace, name: str) -> tuple[Observation, ...]:
    return ReferenceTarget(Target.parse("reference"), engine_of(name)).run(trace).observations
