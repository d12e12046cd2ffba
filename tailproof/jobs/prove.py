"""Proves theorems: every engine that can run one gives its verdict, and the verdicts must agree."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from proofs.catalogue import SPEC, Theorem
from spec.rules import RULES
from tailproof.known.model import line_of, load

ENGINES = ("z3", "hypothesis", "crosshair", "cvc5")
# A net for what Z3's own limits do not end.
SECONDS = 600.0
CROSSHAIR_SECONDS = 2.0
EXAMPLES = 200


@dataclass(slots=True)
class Proved:
    """What is known about a theorem: Z3's `verdict` unless another engine contradicts it, each engine's own
    words, how many `paths` were explored in how many `seconds` and `units` of Z3's work, and why it isn't
    proved.

    `values` are what both sides give on the counterexample, `known` the known fault that a refutation belongs
    to.
    """

    theorem: Theorem
    verdict: str = "unknown"
    reason: str = ""
    engines: dict[str, str] = field(default_factory=dict)
    paths: int = 0
    seconds: float = 0.0
    units: int = 0
    counterexample: dict[str, str] | None = None
    values: dict[str, str] = field(default_factory=dict)
    known: str = ""


@dataclass(slots=True)
class ProveReport:
    """All theorems, and how long it took in all."""

    theorems: list[Proved]
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """1 a theorem is refuted that is not known to be, 3 one is not proved for another reason, else 0."""
        verdicts = [proved.verdict for proved in self.theorems if not proved.known]
        if "refuted" in verdicts:
            return 1
        return 0 if self.theorems and all(verdict == "proved" for verdict in verdicts) else 3


class RuleNameError(ValueError):
    """A rule that is not there, or has no theorem; the text says so in one line."""


def check_rules(names: Sequence[str]) -> None:
    """Refuse names that no rule has, and rules without a theorem.

    Raises:
        RuleNameError: with the nearest names.
    """
    for name in names:
        if name not in RULES:
            near = difflib.get_close_matches(name.upper(), RULES, n=4, cutoff=0.4)
            raise RuleNameError(f"there is no rule {name!r}; near are {', '.join(near or list(RULES)[:4])}")
        if not RULES[name].theorems:
            have = ", ".join(rule.id for rule in RULES.values() if rule.theorems)
            raise RuleNameError(f"rule {name} has no theorem; these have: {have}")


def prove(
    theorems: Sequence[Theorem],
    *,
    engines: Sequence[str] = ENGINES,
    seconds: float = SECONDS,
    workers: int = 2,
    smtlib: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> ProveReport:
    """Prove theorems in parallel; `seconds` is a last net for each engine and theorem.

    `smtlib` is a folder for Z3's questions as SMT-LIB 2 files.
    """
    from proofs import pool

    began = time.monotonic()
    report = ProveReport([Proved(theorem) for theorem in theorems])
    tasks = [(proved, engine) for engine in ENGINES if engine in engines for proved in report.theorems]
    jobs = [
        partial(_RUNNERS[engine], proved.theorem, seconds, smtlib if engine == "z3" else None)
        for proved, engine in tasks
    ]
    for done, outcome in enumerate(pool.run(jobs, workers=workers, seconds=seconds), start=1):
        proved, engine = tasks[outcome.index]
        found = outcome.value if not outcome.problem else {"said": f"unknown: {outcome.problem}"}
        _note(proved, engine, found, outcome.seconds)
        progress(
            f"{done}/{len(jobs)} {proved.theorem.id} {engine}: {proved.engines[engine]} "
            f"({outcome.seconds:.1f} s)"
        )
    for proved in report.theorems:
        _agree(proved)
    report.seconds = time.monotonic() - began
    return report


def _note(proved: Proved, engine: str, found: dict[str, Any], seconds: float) -> None:
    said = str(found["said"])
    proved.engines[engine] = said
    if engine != "z3":
        return
    proved.verdict, _, proved.reason = said.partition(": ")
    proved.paths = found.get("paths", 0)
    proved.seconds = found.get("seconds", seconds)
    proved.units = found.get("units", 0)
    proved.counterexample = found.get("counterexample")


def _agree(proved: Proved) -> None:
    """One engine's counterexample outweighs another's proof: then one of the two is wrong."""
    if "z3" not in proved.engines:
        sure = any(word.startswith(("proved", "confirmed")) for word in proved.engines.values())
        proved.verdict = "proved" if sure else "unknown"
        proved.reason = "" if sure else "sampled only"
    for engine, said in proved.engines.items():
        if engine != "z3" and said.startswith("refuted") and proved.verdict != "refuted":
            proved.reason = f"{engine} disagrees with {proved.verdict}: {said}"
            proved.verdict = "refuted"


def _z3(theorem: Theorem, seconds: float, smtlib: Path | None) -> dict[str, Any]:
    from proofs import smtlib as scripts
    from proofs.engine import prove as explore

    result = explore(theorem.run, seconds=seconds)
    if smtlib is not None:
        scripts.write(result.queries, smtlib, theorem.id)
    found = result.counterexample
    return {
        "said": f"{result.verdict}: {result.reason}" if result.reason else result.verdict,
        "paths": result.paths,
        "seconds": result.seconds,
        "units": result.units,
        "counterexample": {**found.values, "failure": found.failure} if found is not None else None,
    }


def _hypothesis(theorem: Theorem, seconds: float, smtlib: Path | None) -> dict[str, Any]:
    from proofs.samples import DRAWN, sample

    if theorem.id not in DRAWN:
        return {"said": "not run: no values are drawn for it"}
    return {"said": sample(theorem.run, DRAWN[theorem.id], EXAMPLES).verdict}


def _crosshair(theorem: Theorem, seconds: float, smtlib: Path | None) -> dict[str, Any]:
    from proofs.crosshair import Unavailable, crosshair_verdict

    if not theorem.pure:
        return {"said": "not run: it takes functions, which CrossHair does not keep pure"}
    try:
        return {"said": crosshair_verdict(theorem.run, min(CROSSHAIR_SECONDS, seconds))}
    except Unavailable as problem:
        return {"said": f"not run: {problem}"}


def _cvc5(theorem: Theorem, seconds: float, smtlib: Path | None) -> dict[str, Any]:
    from proofs.engine import prove as explore
    from proofs.second_solver import Unavailable, opinion

    result = explore(theorem.run, seconds=seconds)
    if result.verdict != "proved":
        return {"said": f"not run: Z3 has no proof to look at ({result.verdict})"}
    try:
        return {"said": opinion(result.queries).verdict}
    except Unavailable as problem:
        return {"said": f"not run: {problem}"}


def check_source_rules(names: Sequence[str]) -> None:
    """Refuse names that no rule has, and rules without a theorem about a target's source.

    Raises:
        RuleNameError: with the nearest names.
    """
    from proofs.source.catalogue import CASES

    have = sorted({case.rule for case in CASES}, key=list(RULES).index)
    for name in names:
        if name not in have:
            problem = "has no theorem about a target's source" if name in RULES else "is no rule"
            raise RuleNameError(f"{name} {problem}; these have: {', '.join(have)}")


def known_refutations(version: str) -> dict[str, str]:
    """The theorems that a known fault refutes on a version of the target, each with that fault's id."""
    return {theorem: fault.id for fault in load().of(line_of(version)) for theorem in fault.theorems}


def prove_source(
    subject: str,
    root: Path,
    rules: Sequence[str] = (),
    *,
    seconds: float = SECONDS,
    workers: int = 2,
    progress: Callable[[str], None] = lambda line: None,
) -> ProveReport:
    """Prove what `rules` (all, if none) say of the functions in a package folder, which are parsed and never
    imported. `subject` is the target's name; `seconds` is a last net for one theorem."""
    from proofs import pool
    from proofs.source import run
    from proofs.source.catalogue import cases
    from proofs.source.lift import SourceTree

    began = time.monotonic()
    tree = SourceTree(root, subject)
    known = known_refutations(tree.version())
    chosen = cases(rules)
    report = ProveReport(
        [Proved(Theorem(case.id, case.rule, subject, case.about, case.theorem)) for case in chosen]
    )
    jobs = [partial(run.prove, case, tree, seconds) for case in chosen]
    outcomes = pool.run(jobs, workers=workers, seconds=seconds, reuse=False)
    for done, outcome in enumerate(outcomes, start=1):
        proved = report.theorems[outcome.index]
        found = outcome.value or run.Finding("unknown", outcome.problem, seconds=outcome.seconds)
        proved.verdict, proved.reason = found.verdict, found.reason
        proved.paths, proved.seconds, proved.units = found.paths, found.seconds, found.units
        proved.values = dict(found.values)
        if found.verdict != run.MOVED:
            proved.engines["z3"] = found.verdict
        if found.counterexample is not None:
            proved.counterexample = {**found.counterexample, "failure": found.failure}
        if found.verdict == "refuted":
            proved.known = known.get(proved.theorem.id, "")
        progress(
            f"{done}/{len(jobs)} {subject} {proved.theorem.id}: {proved.verdict} ({outcome.seconds:.1f} s)"
        )
    report.seconds = time.monotonic() - began
    return report


_RUNNERS: dict[str, Callable[[Theorem, float, Path | None], dict[str, Any]]] = {
    "z3": _z3,
    "hypothesis": _hypothesis,
    "crosshair": _crosshair,
    "cvc5": _cvc5,
}


# Reports


def function_table(report: ProveReport) -> Iterator[str]:
    """One line for each function of a target: what is known about it, the worst first, and how often."""
    order = ("refuted", "unknown", "unsupported", "moved", "proved")
    functions: dict[str, dict[str, int]] = {}
    for proved in report.theorems:
        for function in proved.theorem.about:
            counts = functions.setdefault(function.partition(": ")[2], {})
            counts[_said(proved)] = counts.get(_said(proved), 0) + 1
    width = max(map(len, functions), default=0)
    for name, counts in functions.items():
        ranked = sorted(counts.items(), key=lambda item: order.index(item[0].split(" ")[0]))
        shown = ", ".join(f"{verdict}: {count}" if len(ranked) > 1 else verdict for verdict, count in ranked)
        yield f"{name:<{width}}  {shown}"
    yield ""


def _said(proved: Proved) -> str:
    return f"{proved.verdict} (known: {proved.known})" if proved.known else proved.verdict


def _aside(proved: Proved) -> str:
    if proved.verdict == "moved":
        return proved.reason
    return f"known: {proved.known}" if proved.known else ""


def lines(report: ProveReport) -> Iterator[str]:
    """A report for the terminal; what is not proved comes last, with its counterexample."""
    width = max((len(proved.theorem.id) for proved in report.theorems), default=0)
    for proved in report.theorems:
        others = ", ".join(
            f"{engine} {proved.engines[engine]}" for engine in ENGINES[1:] if engine in proved.engines
        )
        yield (
            f"{proved.theorem.rule:<5}{proved.theorem.id:<{width}}  {proved.verdict:<11} "
            f"{proved.paths:>5} paths {proved.seconds:>6.2f} s  {others or _aside(proved)}".rstrip()
        )
    yield ""
    for proved in report.theorems:
        if proved.verdict in ("proved", "moved"):
            continue
        aside = f" (known: {proved.known})" if proved.known else ""
        yield f"{proved.verdict.upper()}{aside} {proved.theorem.id}, about {', '.join(proved.theorem.about)}"
        if proved.reason:
            yield f"       {proved.reason}"
        if proved.counterexample is not None:
            shown = ", ".join(f"{name}={value}" for name, value in proved.counterexample.items())
            yield f"       counterexample: {shown}"
        if proved.values:
            shown = ", ".join(f"{name} {value}" for name, value in proved.values.items())
            yield f"       in plain Python: {shown}"
        subject = proved.theorem.subject
        source = f"--source {subject} " if subject != SPEC else ""
        yield f"       reproduce: tailproof prove {source}{proved.theorem.rule}"
        yield ""
    counts = [
        f"{sum(proved.verdict == verdict for proved in report.theorems)} {verdict}"
        for verdict in ("proved", "refuted", "unknown", "unsupported")
    ]
    moved = sum(proved.verdict == "moved" for proved in report.theorems)
    counts += [f"{moved} moved"] if moved else []
    known = sum(bool(proved.known) for proved in report.theorems)
    counts += [f"{known} of the refuted are known"] if known else []
    proving = sum(proved.seconds for proved in report.theorems)
    yield (
        f"{len(report.theorems)} theorems: {', '.join(counts)}; "
        f"{proving:.1f} s of proving, {report.seconds:.1f} s in all"
    )


def document(*reports: ProveReport) -> dict[str, Any]:
    """Reports as the contract has them, in one document."""
    return {
        "format": 1,
        "seconds": round(sum(report.seconds for report in reports), 3),
        "theorems": [
            {
                "id": proved.theorem.id,
                "rule": proved.theorem.rule,
                "subject": proved.theorem.subject,
                "function": ", ".join(proved.theorem.about),
                "verdict": proved.verdict,
                "reason": proved.reason,
                "engines": {engine: proved.engines.get(engine, "not run: not asked") for engine in ENGINES},
                "paths": proved.paths,
                "seconds": round(proved.seconds, 3),
                "units": proved.units,
                "counterexample": proved.counterexample,
                "values": proved.values,
                "known": proved.known or None,
            }
            for report in reports
            for proved in report.theorems
        ],
    }
