"""What a quirk is given: a step with its findings, what was seen before, the quirks in force."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailproof.judge.findings import Finding
from tailproof.judge.step import Step
from tailproof.known.quirks.witness import Witness

Wrong = frozenset[str]


@dataclass(frozen=True, slots=True)
class Case:
    """`wrong` are the names of the quirks in force: those of the faults that a target is known to have."""

    step: Step
    findings: Sequence[Finding]
    witness: Witness
    wrong: Wrong

    def due_to(self, quirk: str, right: Callable[[Wrong], bool]) -> bool:
        """Whether what was seen is right when this quirk is at work, and not without any: by itself, or
        beside the others in force and not without it. `right` tells it for a set of quirks."""
        if quirk not in self.wrong or right(frozenset()):
            return False
        return right(frozenset((quirk,))) or (right(self.wrong) and not right(self.wrong - {quirk}))


Quirk = Callable[[Case, Finding], bool]
QUIRKS: dict[str, Quirk] = {}


def quirk(name: str) -> Callable[[Quirk], Quirk]:
    """Names a quirk: its room and what is wrong ("split.block_grid")."""

    def named(function: Quirk) -> Quirk:
        assert name not in QUIRKS, name
        QUIRKS[name] = function
        return function

    return named
