"""What a comparison finds: one broken rule, and its place in a run."""

from __future__ import annotations

from dataclasses import dataclass

from spec.observation import Entry, Event


class IncompleteError(ValueError):
    """An outcome that does not cover its trace, or that was not checked in full: an adapter's mistake, never
    a divergence."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule.

    `kind` names the comparison that failed and what it saw, of any system; `message` says what was seen and
    what was due, `request` whom it concerns, `position` (tokens) where on its token axis. Facts that go on
    from there: the `entry` of the cache or the store that is missing or should not be, the `group` of a read,
    the `stop` ("checkpoint", "junction" or "block") that a chunk jumped over, the KV `event` that is wrong.
    `lasting` tells that the content of the cache may be wrong from here on, so that the rest of the run
    cannot be judged.
    """

    rule: str
    kind: str
    message: str
    request: str | None = None
    position: int | None = None
    entry: Entry | None = None
    group: int | None = None
    stop: str = ""
    event: Event | None = None
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class Divergence:
    """A finding placed in its run: `index` of the observation, `at` of the trace step, `fault` the id of the
    known fault that explains it ("": none does)."""

    finding: Finding
    index: int
    at: int
    fault: str = ""

    @property
    def rule(self) -> str:
        """The broken rule."""
        return self.finding.rule
