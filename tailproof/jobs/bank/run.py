"""Runs the bank on targets: every trace once on each, judged for every case that it plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from adapters.protocol import Description
from spec.geometry import GeometryError
from spec.observation import Outcome
from spec.trace import Trace, TraceError
from tailproof.jobs.bank.cases import Bank, Case, Play
from tailproof.jobs.seeds import hit_of
from tailproof.judge.findings import Finding, IncompleteError
from tailproof.judge.lockstep import Renaming, Unjudged, divergences
from tailproof.known.explain import Known
from tailproof.known.model import Baseline
from tailproof.targets.opening import OpenTarget, Target, open_target, release_line, tier_states
from tailproof.targets.problems import TargetProblem

# From bad to good; of several traces of a case, the worst one counts.
VERDICTS = ("fails", "known", "hidden", "could not run", "holds", "does not apply")


@dataclass(frozen=True, slots=True)
class Cell:
    """What a case came to on a target.

    `verdict`: "fails" when a rule of the case is broken and no known fault explains it, "known" when one
    does, "holds" when none is, "hidden" when another rule broke in a way that leaves the rest of the run
    without judgement or takes the hits away that the case is about, "does not apply" when the target lacks
    what the trace asks for, "could not run" else.
    `finding` is what was broken, `beside` what else was; `unknown` tells whether any of it is not explained.
    `play` and `profile` name the run that this is about.
    """

    verdict: str
    message: str = ""
    finding: Finding | None = None
    beside: tuple[Finding, ...] = ()
    unknown: bool = False
    play: str = ""
    profile: str = ""

    @property
    def words(self) -> str:
        """Verdict and rule, short."""
        return f"{self.verdict} {self.finding.rule}" if self.finding is not None else self.verdict


@dataclass(slots=True)
class Matrix:
    """The bank's cases by target; `cells[report][target]`. `problems` are targets that could not run, one
    line each."""

    bank: Bank
    targets: tuple[str, ...]
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """1 when something broke that no known fault explains, 3 when something could not run, else 0."""
        cells = [cell for row in self.cells.values() for cell in row.values()]
        if any(cell.unknown for cell in cells):
            return 1
        return 3 if self.problems or any(cell.verdict == "could not run" for cell in cells) else 0

    def count(self, target: str, verdict: str) -> int:
        """Cases of a verdict on a target."""
        return sum(row[target].verdict == verdict for row in self.cells.values() if target in row)


def run_bank(
    names: Sequence[str],
    bank: Bank,
    baseline: Baseline,
    progress: Callable[[str], None],
    line: str | None = None,
) -> Matrix:
    """Run the bank on each target, one after the other, each in a worker of its own. `line` is the release
    line whose known faults count for all of them, where it is not their own.

    Raises:
        TargetNameError: for a name that means nothing.
    """
    parsed = {name: Target.parse(name) for name in names}
    matrix = Matrix(bank, tuple(names), {case.report: {} for case in bank.cases if case.traces})
    for name, target in parsed.items():
        progress(f"{name}: starting")
        try:
            with closing(open_target(target, progress)) as opened:
                ours = release_line(target, opened, line)
                progress(f"{name}: {ours.why}")
                column = _column(target, opened, bank, Known(baseline, ours.line))
        except TargetProblem as problem:
            matrix.problems[name] = str(problem)
            column = {report: Cell("could not run", str(problem)) for report in matrix.cells}
        for report, cell in column.items():
            matrix.cells[report][name] = cell
        seen = ", ".join(f"{count} {one}" for one in VERDICTS if (count := matrix.count(name, one)))
        progress(f"{name}: {seen}")
    return matrix


def _column(target: Target, opened: OpenTarget, bank: Bank, known: Known) -> dict[str, Cell]:
    described, states = opened.describe(), tier_states(target)
    cells: dict[str, list[Cell]] = {case.report: [] for case in bank.cases if case.traces}
    for play in bank.plays.values():
        cases = [case for case in bank.cases if play.name in case.traces]
        if (state := states.get(play.tier, "ready")) != "ready":
            for case in cases:
                cells[case.report].append(Cell("could not run", state, play=play.name))
            continue
        for trace in profiled(play.trace, described):
            for case, cell in _played(opened, known, play, trace, cases):
                cells[case.report].append(cell)
    return {
        report: min(found, key=lambda cell: VERDICTS.index(cell.verdict)) for report, found in cells.items()
    }


def profiled(trace: Trace, described: Description) -> Iterator[Trace]:
    """A trace under each rule set that a target runs it under: more than one with EAGLE and without a store
    only."""
    configuration = trace.configuration
    free = configuration.eagle and configuration.store == "off"
    for profile in described.profiles if free else (configuration.profile,):
        yield replace(trace, configuration=replace(configuration, profile=profile))


def _played(
    opened: OpenTarget,
    known: Known,
    play: Play,
    trace: Trace,
    cases: Sequence[Case],
) -> Iterator[tuple[Case, Cell]]:
    profile = trace.configuration.profile
    try:
        outcome = opened.run(trace)
    except (TraceError, GeometryError) as problem:
        for case in cases:
            yield case, Cell("does not apply", str(problem), play=play.name, profile=profile)
        return
    for case in cases:
        try:
            cell = judged(case, trace, outcome, play.hits.get(profile, {}), known)
        except IncompleteError as problem:
            cell = Cell("could not run", str(problem))
        yield case, replace(cell, play=play.name, profile=profile)


_UNKNOWN = "unknown"


def judged(case: Case, trace: Trace, outcome: Outcome, hits: Mapping[str, int], known: Known) -> Cell:
    """What a run comes to for a case; `hits` are those that it must have.

    Raises:
        IncompleteError: when the run was not watched to its end.
    """
    unjudged = Unjudged()
    # What the case is not about passes, so that the rest of the run is judged.
    aside = Renaming(
        known.explainer(), lambda one, name: name or ("" if one.rule in case.rules else _UNKNOWN)
    )
    found = list(divergences(trace, outcome, explainer=aside, unjudged=unjudged))
    mine = [one for one in found if one.rule in case.rules]
    others = tuple(dict.fromkeys(one.finding for one in found if one.rule not in case.rules))
    strange = any(one.fault in ("", _UNKNOWN) for one in found)
    if mine:
        worst = next((one for one in mine if not one.fault), mine[0])
        return Cell(
            "known" if worst.fault else "fails", worst.finding.message, worst.finding, others, strange
        )
    if unjudged.observations or any(one.lasting for one in others):
        return Cell("hidden", others[-1].message, others[-1], others[:-1], strange)
    if wrong := _wrong_hit(case, outcome, hits):
        if others:
            return Cell("hidden", wrong.message, others[0], others[1:], strange)
        return Cell("fails", wrong.message, wrong, (), True)
    return Cell("holds", "", None, others, strange)


def _wrong_hit(case: Case, outcome: Outcome, hits: Mapping[str, int]) -> Finding | None:
    for request, due in hits.items():
        hit = hit_of(outcome, request)
        if hit != due:
            text = f"request {request!r} reused {'nothing at all' if hit is None else hit}, due was {due}"
            return Finding(case.rules[0], "expected-hit", text, request)
    return None
