"""Runs the kept traces of known faults again, and sums up what a check saw of each fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spec.geometry import GeometryError
from spec.trace import TraceError
from tailproof.jobs import replay
from tailproof.jobs.against import Base
from tailproof.judge.lockstep import Explainer, divergences
from tailproof.known.explain import Known
from tailproof.known.model import KnownFault, KnownTrace
from tailproof.targets.opening import OpenTarget

# What a kept trace can come to.
VERDICTS = ("known", "gone", "broken", "other", "NOT-RUN", "ERROR")


@dataclass(frozen=True, slots=True)
class KnownResult:
    """A kept trace of a known fault, run again: `verdict` is known (the fault explains what was seen), gone
    (nothing is broken), broken (`rule` is, and no known fault explains it), other (other known faults show,
    not this one), NOT-RUN or ERROR, with one line of `detail`. `line` is the target's release line."""

    fault: KnownFault
    trace: KnownTrace
    target: str
    line: str
    verdict: str
    detail: str
    rule: str = ""


@dataclass(frozen=True, slots=True)
class FaultSeen:
    """What a check saw of one known fault: it explained `findings` findings of the fuzzing and those of
    `traces` kept traces. `state` is met, not met, mended (said to be, and its traces hold), back (said to be
    mended, and a trace is broken) or expired (it explains nothing any more)."""

    fault: KnownFault
    target: str
    state: str
    findings: int
    traces: int


def known_results(
    name: str, opened: OpenTarget, known: Known, base: Base | None, unable: Callable[[str], str]
) -> Iterator[KnownResult]:
    """Every kept trace of the faults of a target, and of those said to be mended in it. `unable` tells why a
    tier cannot run ("": it can).

    Raises:
        TargetProblem: when the target cannot go on.
    """
    baseline, line = known.baseline, known.line
    traces = [(fault, trace) for fault in baseline.of(line) for trace in fault.of_line(line)]
    traces += [(fault, trace) for fault in baseline.mended(line) for trace in fault.traces]
    for fault, trace in traces:
        verdict, detail, rule = _again(
            replay.read_named(baseline.folder / trace.file), opened, known, base, unable, fault
        )
        yield KnownResult(fault, trace, name, line, verdict, detail, rule)


def _again(
    kept: replay.ReplayFile,
    opened: OpenTarget,
    known: Known,
    base: Base | None,
    unable: Callable[[str], str],
    fault: KnownFault,
) -> tuple[str, str, str]:
    """What a kept trace comes to, a line on it, and the rule that is broken and that nothing explains."""
    if reason := unable(kept.tier):
        return "NOT-RUN", reason, ""
    explainer: Explainer = known.explainer()
    if base is not None:
        try:
            explainer = base.beside(kept.trace, base.workers[0].run(kept.trace), explainer)
        except (TraceError, GeometryError) as problem:
            return "NOT-RUN", f"{base.name}: {problem}", ""
    try:
        found = list(divergences(kept.trace, opened.run(kept.trace), explainer=explainer))
    except (TraceError, GeometryError) as problem:
        return "ERROR", str(problem), ""
    if new := next((one for one in found if not one.fault), None):
        return "broken", new.finding.message, new.rule
    if mine := next((one for one in found if one.fault == fault.id), None):
        return "known", f"{mine.rule}: {mine.finding.message}", ""
    if found:
        return "other", f"explained by {found[0].fault}", ""
    return "gone", "every rule holds on this trace", ""


def faults_seen(
    name: str, known: Known, results: Sequence[KnownResult], explained: Counter[str]
) -> list[FaultSeen]:
    """What was seen of each fault of a target, and of those said to be mended in it."""
    baseline, line = known.baseline, known.line
    expired = {fault.id for fault in baseline.expired(line)}
    seen = []
    for fault in (*baseline.of(line), *baseline.mended(line)):
        mine = [one for one in results if one.fault.id == fault.id and one.target == name]
        traces = sum(one.verdict == "known" for one in mine)
        if fault.id in expired:
            state = "expired"
        elif not fault.is_in(line):
            state = "back" if any(one.verdict == "broken" for one in mine) else "mended"
        else:
            state = "met" if traces or explained[fault.id] else "not met"
        seen.append(FaultSeen(fault, name, state, explained[fault.id], traces))
    return seen
