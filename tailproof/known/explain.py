"""Asks the quirks of the known faults in force which of a step's findings they explain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tailproof.judge.findings import Finding
from tailproof.judge.step import Step
from tailproof.known.model import Baseline, BaselineError, KnownFault, load
from tailproof.known.quirks import attention, copies, endings, loads, lookup, registration, saves, split, told
from tailproof.known.quirks.case import QUIRKS, Case
from tailproof.known.quirks.witness import Witness

# The rooms of the quirks, which register themselves when they are imported.
ROOMS = (split, lookup, registration, attention, copies, told, saves, loads, endings)


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
        names = [self._fault(case, finding) for finding in findings]
        pairs = zip(findings, names, strict=True)
        return [name or _consequence(step, one, findings, names) for one, name in pairs]

    def _fault(self, case: Case, finding: Finding) -> str:
        for fault in self._faults:
            if finding.rule in fault.rules and any(QUIRKS[name](case, finding) for name in fault.quirks):
                return fault.id
        return ""

    def follow(self, step: Step) -> None:
        """Take a step over."""
        self._witnesses[step.observation.engine].follow(step)


def _consequence(step: Step, finding: Finding, findings: Sequence[Finding], names: Sequence[str]) -> str:
    """The fault of the wrong content that a request read in this very step, for what comes of it there: a
    wrong output of the same request, and what it computed behind that and put into the store."""
    read = (
        name
        for one, name in zip(findings, names, strict=True)
        if name and one.rule in ("SF1", "SF2") and _comes_of(step, finding, one)
    )
    return next(read, "")


def _comes_of(step: Step, finding: Finding, read: Finding) -> bool:
    if finding.kind == "output":
        return finding.request == read.request
    entry, reader = finding.entry, step.histories.get(read.request or "")
    if finding.kind != "put-wrong" or entry is None or reader is None:
        return False
    return entry.position > (read.position or 0) and step.begins(reader, entry)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one target: the faults of its release `line` ("": nothing is known).

    Raises:
        BaselineError: when a fault names a quirk that there is not.
    """

    baseline: Baseline = field(default_factory=Baseline)
    line: str = ""

    def __post_init__(self) -> None:
        for fault in self.baseline.faults:
            for name in fault.quirks:
                if name not in QUIRKS:
                    raise BaselineError(f"{fault.id}: there is no quirk {name!r}")

    def explainer(self) -> Explanations:
        """What explains the findings of one run."""
        return Explanations(self.baseline.in_force(self.line))

    def fault(self, name: str) -> KnownFault | None:
        """The fault of an id; None for ""."""
        return next((fault for fault in self.baseline.faults if fault.id == name), None)


NOTHING = Known()


def checked(folder: Path | None = None) -> Baseline:
    """The known faults in a folder (the shipped ones without), with quirks that there are.

    Raises:
        BaselineError: as `load` does, and when a fault names a quirk that there is not.
    """
    return Known(load(folder)).baseline
