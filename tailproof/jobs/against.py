"""A target beside a base: what it does on a case that the base does not do on the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from spec.observation import Outcome
from spec.trace import Trace
from tailproof.judge.findings import Finding
from tailproof.judge.lockstep import Explainer, Renaming, divergences
from tailproof.judge.step import Step
from tailproof.known.explain import Known
from tailproof.targets.opening import OpenTarget

# Stands for a known fault where the base shows the same and nothing explains it.
AS_THE_BASE = "as on the base"
Sign = tuple[str, str, str | None, int | None]


def sign(finding: Finding) -> Sign:
    """What makes a finding the same on both: rule, kind, request and position."""
    return finding.rule, finding.kind, finding.request, finding.position


@dataclass(slots=True)
class Base:
    """The target that another one is compared with: its `name`, what runs it (one for each worker of the
    other), and what is known of it. `explained` counts what each known fault explained on it, and what none
    did."""

    name: str
    workers: Sequence[OpenTarget]
    known: Known
    explained: Counter[str] = field(default_factory=Counter)

    def beside(self, trace: Trace, outcome: Outcome, inner: Explainer, *, count: bool = False) -> Beside:
        """What explains a run of the other target on a trace, given the base's run of it; `inner` tells what
        is known of the other."""
        found: set[Sign] = set()
        last = None
        # All that the base does passes: its run must be judged as far as that of the other target is.
        passing = Renaming(self.known.explainer(), lambda finding, name: name or AS_THE_BASE)
        for one in divergences(trace, outcome, explainer=passing):
            found.add(sign(one.finding))
            if count:
                self.explained[one.fault] += 1
            if one.finding.lasting:
                last = one.index
        return Beside(found, last, inner)


class Beside:
    """Explains a finding where the base shows the same. What the base does not show is new, whether a known
    fault would explain it or not; but where the base's run could not be judged to this step, what is known
    passes.

    `shown` are the findings that a known fault would explain and that the base does not show.
    """

    def __init__(self, base: set[Sign], last: int | None, inner: Explainer) -> None:
        self._base = base
        self._last = last
        self._inner = inner
        self._index = 0
        self.shown: dict[Sign, str] = {}

    def explain(self, step: Step, findings: Sequence[Finding]) -> list[str]:
        """The known fault, or that the base does the same; "" for what only this target does."""
        names = self._inner.explain(step, findings)
        return [self._name(finding, name) for finding, name in zip(findings, names, strict=True)]

    def _name(self, finding: Finding, name: str) -> str:
        if sign(finding) in self._base:
            return name or AS_THE_BASE
        if name and self._last is not None and self._index > self._last:
            return name
        if name:
            self.shown[sign(finding)] = name
        return ""

    def follow(self, step: Step) -> None:
        """Take a step over."""
        self._index += 1
        self._inner.follow(step)
