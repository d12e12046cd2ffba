"""The main job: proofs, seed table, known traces and fuzzing on each target, and one verdict per rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from proofs.catalogue import spec_theorems
from spec.rules import RULES
from tailproof.jobs.against import Base, sign
from tailproof.jobs.fuzz import GENERATORS, Found, FuzzReport, fuzz
from tailproof.jobs.known_traces import FaultSeen, KnownResult, faults_seen, known_results
from tailproof.jobs.prove import ProveReport, prove
from tailproof.jobs.seeds import SeedResult, run_seeds
from tailproof.known.explain import Known
from tailproof.known.model import Baseline
from tailproof.targets.opening import OpenTarget, Target, open_target, release_line, tier_states
from tailproof.targets.problems import TargetProblem

VERDICTS = ("broken", "known", "proved", "held", "unobserved", "not-run")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run says about one rule on one target: `tier` names the tiers that had a say, `cases` is how
    often the rule could have been seen broken, `reason` why the verdict is what it is."""

    rule: str
    target: str
    tier: str
    verdict: str
    cases: int
    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A tier of a target that was not run, and why."""

    target: str
    tier: str
    reason: str


@dataclass(slots=True)
class CheckReport:
    """Everything that a check saw. `proofs` are the spec's theorems (None: not reached), `known` the kept
    traces of known faults, `faults` what was seen of each, `skipped` tiers that could not run, `problems`
    targets that could not or broke down, one line each."""

    seed: int
    proofs: ProveReport | None = None
    seeds: list[SeedResult] = field(default_factory=list)
    known: list[KnownResult] = field(default_factory=list)
    faults: list[FaultSeen] = field(default_factory=list)
    fuzzed: list[FuzzReport] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def broken(self) -> list[Found]:
        """New divergences of all targets."""
        return [found for report in self.fuzzed for found in report.broken]

    def exit_code(self, strict: bool) -> int:
        """1 a rule is broken, 3 a target could not run or a known check could not be made, else 0; strict:
        also 3 when something was unobserved or not run."""
        if any(verdict.verdict == "broken" for verdict in self.verdicts):
            return 1
        loose = any(verdict.verdict in ("unobserved", "not-run") for verdict in self.verdicts)
        failed = any(item.verdict == "ERROR" for item in self.known)
        return 3 if self.problems or self.interrupted or failed or (strict and loose) else 0


def check(
    names: Sequence[str],
    *,
    seconds: float,
    seed: int,
    baseline: Baseline,
    folder: Path | None,
    progress: Callable[[str], None],
    proofs: bool = True,
    line: str | None = None,
    against: str | None = None,
) -> CheckReport:
    """Check targets one after the other; `seconds` bounds the fuzzing of each, all its tiers together.
    Without `proofs` the theorems are left out. `line` is the release line whose known faults count for all
    targets, where it is not their own. `against` is the name of a base: then only what the base does not show
    on the same cases counts.

    A target that cannot be run becomes a problem of the report, the others go on.
    """
    report = CheckReport(seed)
    try:
        if proofs:
            theorems = spec_theorems()
            progress(f"proving {len(theorems)} theorems about the spec")
            report.proofs = prove(theorems, engines=("z3",))
            progress(f"theorems done in {report.proofs.seconds:.0f} s")
    except KeyboardInterrupt:
        report.interrupted = True
        for name in names:
            report.verdicts.extend(_not_run(name, "interrupted"))
        return report
    for name in names:
        progress(f"{name}: starting")
        try:
            target = Target.parse(name)
            with ExitStack() as stack:
                opened = stack.enter_context(closing(open_target(target, progress)))
                version = opened.describe().version
                progress(f"{name}: version {version} is ready, the first case starts")
                ours = release_line(target, opened, line)
                progress(f"{name}: {ours.why}")
                known = Known(baseline, ours.line)
                base = None
                if against is not None:
                    base = open_base(stack, against, baseline, 1, progress)
                _check_target(report, target, known, opened, base, seconds, folder, progress)
        except TargetProblem as problem:
            report.problems.append(str(problem))
            report.verdicts.extend(_not_run(name, str(problem)))
        except KeyboardInterrupt:
            report.interrupted = True
            report.verdicts.extend(_not_run(name, "interrupted"))
            break
    return report


def open_base(
    stack: ExitStack, name: str, baseline: Baseline, workers: int, progress: Callable[[str], None]
) -> Base:
    """The target that another one is compared with, opened for as many workers.

    Raises:
        TargetProblem: when it cannot be run here.
        TargetNameError: when there is no such target.
    """
    target = Target.parse(name)
    opened = [stack.enter_context(closing(open_target(target, progress))) for _ in range(workers)]
    ours = release_line(target, opened[0])
    progress(f"compared with {name}: {ours.why}")
    return Base(name, opened, Known(baseline, ours.line))


def _check_target(
    report: CheckReport,
    target: Target,
    known: Known,
    opened: OpenTarget,
    base: Base | None,
    seconds: float,
    folder: Path | None,
    progress: Callable[[str], None],
) -> None:
    name = target.name
    beside = {base.name: base.workers[0]} if base is not None else {}
    report.seeds.extend(run_seeds({name: opened, **beside}))
    progress(f"{name}: {len(report.seeds)} seed cases done")
    state = _store_state(target, base)
    if state != "ready":
        report.skipped.append(Skipped(name, "store", state))

    def unable(tier: str) -> str:
        return state if tier == "store" and state != "ready" else ""

    report.known.extend(known_results(name, opened, known, base, unable))
    tiers = [tier for tier in GENERATORS if tier == "core" or state == "ready"]
    progress(f"{name}: {len(report.known)} known traces done, fuzzing for {seconds:.0f} s")
    fuzzed: dict[str, FuzzReport] = {}
    for tier in tiers:
        if report.interrupted:
            report.skipped.append(Skipped(name, tier, "interrupted"))
            continue
        try:
            fuzzed[tier] = fuzz(
                [opened],
                name,
                seed=report.seed,
                tier=tier,
                seconds=seconds / len(tiers),
                known=known,
                base=base,
                folder=folder,
                progress=_saying(progress, f"{name}, {tier}"),
            )
        except TargetProblem as problem:
            # What the tiers before it have shown stays.
            if not fuzzed:
                raise
            report.problems.append(str(problem))
            report.skipped.append(Skipped(name, tier, str(problem)))
            continue
        report.fuzzed.append(fuzzed[tier])
        report.interrupted |= fuzzed[tier].interrupted
        report.problems.extend(f"{name}, {tier}: {line}" for line in fuzzed[tier].lost_lines())
    explained: Counter[str] = Counter()
    for one in fuzzed.values():
        explained.update(one.explained)
    report.faults.extend(faults_seen(name, known, report.known, explained))
    report.verdicts.extend(_verdicts(report, name, fuzzed, base))


def _store_state(target: Target, base: Base | None) -> str:
    """Whether the store tier can run, on the base too: "ready" or the reason why not."""
    state = tier_states(target)["store"]
    if state != "ready" or base is None:
        return state
    theirs = tier_states(Target.parse(base.name))["store"]
    return theirs if theirs == "ready" else f"{base.name}: {theirs}"


def _saying(progress: Callable[[str], None], whose: str) -> Callable[[str], None]:
    return lambda line: progress(f"{whose}: {line}")


def _verdicts(
    report: CheckReport, name: str, fuzzed: Mapping[str, FuzzReport], base: Base | None
) -> list[Verdict]:
    broken, known = _breaches(report, name, fuzzed, base)
    verdicts = []
    for rule in RULES.values():
        # What no tier is said to observe is for the theorems alone.
        reached = {tier: found.exercised[rule.id] for tier, found in fuzzed.items() if rule.tiers}
        tiers = [tier for tier, cases in reached.items() if cases] or [
            tier for tier in rule.tiers if tier in fuzzed
        ]
        tier, cases = ", ".join(tiers or rule.tiers) or "core", sum(reached.values())
        if refuted := _not_proved(report, rule.id, "refuted"):
            verdict, reason = "broken", f"refuted for the spec itself: {refuted}"
        elif rule.id in broken:
            verdict, reason = "broken", broken[rule.id]
        elif rule.id in known:
            verdict, reason = "known", ", ".join(sorted(set(known[rule.id])))
        elif not rule.tiers:
            verdict, reason = _derived(report, rule.id)
        elif cases:
            verdict, reason = "held", f"{cases} times it could have been seen broken"
        elif not tiers:
            verdict, reason = "not-run", _why_not(report, name, rule.tiers)
        else:
            verdict, reason = "unobserved", "no case reached it"
        verdicts.append(Verdict(rule.id, name, tier, verdict, cases, reason))
    return verdicts


def _breaches(
    report: CheckReport, name: str, fuzzed: Mapping[str, FuzzReport], base: Base | None
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Rules that were broken, each with what was seen, and those known to be, each with its faults."""
    broken: dict[str, str] = {}
    known: dict[str, list[str]] = {}
    for result in report.seeds:
        divergence = result.divergences.get(name)
        theirs = result.divergences.get(base.name) if base is not None else None
        same = (
            theirs is not None and divergence is not None and sign(theirs.finding) == sign(divergence.finding)
        )
        if divergence is not None and not same:
            broken[divergence.rule] = f"seed case {result.case.id}: {divergence.finding.message}"
    for item in report.known:
        if item.target == name and item.verdict == "broken":
            broken[item.rule] = f"known trace of {item.fault.id}: {item.detail}"
        elif item.target == name and item.verdict == "known":
            known.setdefault(item.trace.rule, []).append(item.fault.id)
    for found in (found for tier in fuzzed.values() for found in tier.found):
        if found.fault:
            known.setdefault(found.finding.rule, []).append(found.fault)
        else:
            broken[found.finding.rule] = found.finding.message
    return broken, known


def _why_not(report: CheckReport, name: str, tiers: Sequence[str]) -> str:
    """Why none of some tiers was run."""
    reasons = {one.tier: one.reason for one in report.skipped if one.target == name}
    return "; ".join(reasons[tier] for tier in tiers if tier in reasons) or "nothing runs it yet"


def _not_proved(report: CheckReport, rule: str, verdict: str) -> str:
    """The theorems of a rule with a verdict, as words."""
    found = report.proofs.theorems if report.proofs is not None else []
    return ", ".join(
        proved.theorem.id for proved in found if proved.theorem.rule == rule and proved.verdict == verdict
    )


def _derived(report: CheckReport, rule: str) -> tuple[str, str]:
    """The verdict on a rule that only theorems check."""
    if report.proofs is None:
        return "not-run", "the theorems were left out"
    mine = [proved for proved in report.proofs.theorems if proved.theorem.rule == rule]
    if open_ends := [proved for proved in mine if proved.verdict != "proved"]:
        return "unobserved", ", ".join(f"{one.theorem.id}: {one.verdict} {one.reason}" for one in open_ends)
    return "proved", f"of the spec: {', '.join(proved.theorem.id for proved in mine)}"


def _not_run(name: str, reason: str) -> list[Verdict]:
    return [
        Verdict(rule.id, name, ", ".join(rule.tiers) or "core", "not-run", 0, reason)
        for rule in RULES.values()
    ]
