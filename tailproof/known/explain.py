"""Asks the quirks of the known faults in force which of a step's findings they explain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from tailproof.judge.findings import Finding
from tailproof.judge.lockstep import Explainer
from tailproof.judge.step import Step
from tailproof.known.model import Baseline, KnownFault
from tailproof.known.quirks import content, endings, loads, lookup, registration, saves, split, told
from tailproof.known.quirks.case import QUIRKS, Case
from tailproof.known.quirks.witness import Witness

ROOMS = (split, lookup, registration, content, told, saves, loads, endings)


class Explanations:
    """Explains the findings of one run by known faults; one witness for each engine."""

    def __init__(self, faults: Sequence[KnownFault]) -> None:
        self._faults = faults
        self._wrong = frozenset(name for fault in faults for name in fault.quirks)
        self._witnesses: dict[int, Witness] = defaultdict(Witness)

    def explain(self, step: Step, findings: Sequence[Finding]) -> list[str]:
        """The id of the first fault that explains each finding, "" where none does."""
        if not findings:
            return []
        case = Case(step, findings, self._witnesses[step.observation.engine], self._wrong)
        return [self._fault(case, finding) for finding in findings]

    def _fault(self, case: Case, finding: Finding) -> str:
        for fault in self._faults:
            if finding.rule in fault.rules and any(QUIRKS[name](case, finding) for name in fault.quirks):
                return fault.id
        return ""

    def follow(self, step: Step) -> None:
        """Take a step over."""
        self._witnesses[step.observation.engine].follow(step)


def explaining(baseline: Baseline, line: str) -> Callable[[], Explainer]:
    """What makes an explainer for each run of a target of a release line ("": nothing is known)."""
    faults = baseline.in_force(line)
    return lambda: Explanations(faults)
