"""What a comparison finds: one broken rule, and its place in a run."""

from __future__ import annotations

from dataclasses import dataclass


class IncompleteError(ValueError):
    """An outcome that does not cover its trace, or that was not checked in full: an adapter's mistake, never
    a divergence."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule: `kind` names the comparison that failed, `message` says what was seen and what was
    due, `request` whom it concerns, `position` (tokens) where on its token axis."""

    rule: str
    kind: str
    message: str
    request: str | None = None
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Divergence:
    """A finding placed in its run: `index` of the observation, `at` of the trace step."""

    finding: Finding
    index: int
    at: int

    @property
    def rule(self) -> str:
        """The broken rule."""
        return self.finding.rule
