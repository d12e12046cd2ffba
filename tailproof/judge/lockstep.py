"""Lockstep: judges an observed run against the oracle's forecast, step by step, under the rules of the spec.

The comparisons stand in the modules beside this one. What explains a finding is handed in: a judge knows no
version of any system, and no defect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from reference.oracle import oracles
from spec.observation import Outcome
from spec.rules import ORDER
from spec.trace import Settle, Trace
from tailproof.judge import chunks, content, endings, entries, lookup, pins, saves, told
from tailproof.judge.findings import Divergence, Finding, IncompleteError
from tailproof.judge.step import COMPARISONS, EXERCISES, Step

FAMILIES = (lookup, chunks, entries, content, saves, pins, endings, told)


class Explainer(Protocol):
    """Says which findings of a run are known; made anew for every run, and shown every step in order."""

    def explain(self, step: Step, findings: Sequence[Finding]) -> list[str]:
        """The id of the known fault that explains each finding, "" where none does."""
        ...

    def follow(self, step: Step) -> None:
        """Take a step over, after its findings were explained."""
        ...


class Nothing:
    """Explains no finding."""

    def explain(self, step: Step, findings: Sequence[Finding]) -> list[str]:
        """Nothing is known."""
        return [""] * len(findings)

    def follow(self, step: Step) -> None:
        """Remembers nothing."""


@dataclass(frozen=True, slots=True)
class Renaming:
    """Explains what another explainer does; `name` turns its word for a finding into the one that counts."""

    inner: Explainer
    name: Callable[[Finding, str], str]

    def explain(self, step: Step, findings: Sequence[Finding]) -> list[str]:
        """The other's words, turned."""
        return list(map(self.name, findings, self.inner.explain(step, findings)))

    def follow(self, step: Step) -> None:
        """The other follows."""
        self.inner.follow(step)


@dataclass(slots=True)
class Unjudged:
    """How much of a run was left unjudged: `observations` behind a finding after which the content may be
    wrong."""

    observations: int = 0


def compare(trace: Trace, outcome: Outcome, visit: Callable[[Step], None] | None = None) -> Divergence | None:
    """Judge a whole run; the first divergence, None when every comparison holds.

    `visit` is called with every step, for coverage counts.

    Raises:
        IncompleteError: when the outcome ends before its trace without a failure, or the content check has
            not read all that it must.
    """
    return next(divergences(trace, outcome, visit), None)


def divergences(
    trace: Trace,
    outcome: Outcome,
    visit: Callable[[Step], None] | None = None,
    explainer: Explainer | None = None,
    unjudged: Unjudged | None = None,
) -> Iterator[Divergence]:
    """Judge a whole run: everything of each step, what nothing explains first, each part in registry order.

    The run goes on after findings that are explained and leave the content of the cache right. Behind others
    it ends, and `unjudged` says how many observations that left.

    Raises:
        IncompleteError: as `compare` does.
    """
    explainer = explainer or Nothing()
    engines = oracles(trace)
    if outcome.observations and (wrong := told.units(engines[0], outcome)):
        yield Divergence(wrong, 0, outcome.observations[0].at)
        return
    for index, observation in enumerate(outcome.observations):
        oracle = engines[observation.engine]
        step = Step(observation, oracle.forecast(observation), oracle)
        findings = judge(step)
        if visit is not None:
            visit(step)
        faults = explainer.explain(step, findings)
        told_first = sorted(zip(findings, faults, strict=True), key=lambda pair: bool(pair[1]))
        for finding, fault in told_first:
            yield Divergence(finding, index, observation.at, fault)
        if any(finding.lasting or not fault for finding, fault in told_first):
            if unjudged is not None:
                unjudged.observations += len(outcome.observations) - index - 1
            return
        due = step.expected.verified
        if observation.verified is not None and observation.verified != due:
            raise IncompleteError(
                f"steps[{observation.at}]: the content check read {observation.verified} tokens and "
                f"states, due were {due}"
            )
        explainer.follow(step)
        oracle.adopt(observation, step.expected)
    if outcome.observations and outcome.observations[-1].failure is not None:
        return
    seen = {observation.at for observation in outcome.observations}
    if missing := sorted(set(range(len(trace.steps))) - seen - _silent(trace)):
        raise IncompleteError(f"the outcome has no observation of steps[{missing[0]}]")


def seek(
    trace: Trace,
    outcome: Outcome,
    rule: str,
    kind: str,
    explainer: Explainer | None = None,
    fault: str | None = None,
) -> Divergence | None:
    """The divergence of a rule and kind, and where it is given, explained by that fault ("": by none), looked
    for past others where that can be; else the first one.

    Raises:
        IncompleteError: as `compare` does.
    """

    def wanted(finding: Finding, name: str) -> bool:
        return (finding.rule, finding.kind) == (rule, kind) and fault in (None, name)

    past = Renaming(explainer or Nothing(), lambda one, name: name or ("" if wanted(one, name) else _PASSED))
    found = list(divergences(trace, outcome, explainer=past))
    first = next((one for one in found if wanted(one.finding, one.fault)), next(iter(found), None))
    return replace(first, fault="") if first is not None and first.fault == _PASSED else first


_PASSED = "passed"


def _silent(trace: Trace) -> set[int]:
    """Steps that may give no observation: a settle with nothing left to do."""
    return {index for index, step in enumerate(trace.steps) if isinstance(step, Settle)}


def judge(step: Step) -> list[Finding]:
    """All findings of one step, in registry order."""
    if step.observation.failure is not None:
        return list(endings.broken_off(step, step.observation.failure))
    findings = [finding for comparison in COMPARISONS for finding in comparison(step)]
    return sorted(findings, key=lambda finding: ORDER[finding.rule])


def exercised(step: Step) -> Iterator[str]:
    """The rules that this step would have shown to be broken: what makes "held" mean something."""
    for one in EXERCISES:
        yield from one(step)
