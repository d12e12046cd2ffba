"""Counts how often a run reached each axis and phase where prefix-cache faults live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from reference.forecast import Forecast
from spec.geometry import Geometry
from spec.observation import Observation
from spec.trace import Abort, Configuration, Step, Submit, Trace, prompt_length
from tailproof.reach.core import TIGHT, Reach, axes
from tailproof.reach.store import StoreReach
from tailproof.reach.table import Cell

# Every tag, in the order in which a report shows them; a tag that is never reached is shown with 0.
TAGS: tuple[str, ...] = (
    "eagle off",
    "eagle on",
    "annotation none",
    "annotation attention",
    "annotation separate group",
    "states at chunk ends",
    "exports aligned to U",
    "exports aligned finer",
    "exports aligned coarser",
    "hits fine",
    "hits coarse",
    "retention None",
    "retention 0",
    "retention k",
    "junction checkpoints on",
    "attention block below the Mamba block",
    "attention block above the Mamba block",
    "DCP",
    "long-prefill threshold",
    "priority scheduling",
    "budget below a block",
    "budget cuts a prompt",
    "P at U−1",
    "P at U",
    "P at U+1",
    "P at B−1",
    "P at B",
    "P at B+1",
    "P at most U",
    "resend",
    "extension below U",
    "extension of U or more",
    "shared prefix ends inside a unit",
    "shared prefix ends inside a block",
    "shared prefix ends at a block end",
    "next turn of an earlier request",
    "other salt",
    "other adapter",
    "other media",
    "same prefix, same step",
    "several live requests",
    TIGHT,
    "entries thrown out",
    "preempted for space",
    "hit 0",
    "hit inside a block",
    "hit at a block end",
    "junction noticed",
    "export made",
    "request waits with slot and budget free",
    "drafts accepted",
    "drafts rejected",
    "resumed request",
    "finished in its first step",
    "finished in decode",
    "aborted while waiting",
    "aborted in prefill",
    "aborted in decode",
    "reset taken",
    "reset refused",
    "reset of running requests",
)


class Coverage:
    """Counts of tags (cases for the setting, requests and steps for the rest), and the tables of axes and
    phases, that of the store apart (`reach`, `store`). Call `case` before the steps of a case."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.reach = Reach()
        self.store = StoreReach()

    def case(self, trace: Trace) -> None:
        """Count what the trace alone tells."""
        features, block = axes(trace), Geometry.of(trace.configuration).mamba_block
        self.reach.case(features, block)
        self.store.case(trace)
        if trace.configuration.dcp > 1:
            self._count(["DCP"])
        self._count(_request_tags(trace, block))

    def step(self, trace: Trace, observation: Observation, forecast: Forecast) -> None:
        """Count what a step of the run reached."""
        step = trace.steps[observation.at]
        self.reach.step(step, observation, forecast)
        self.store.step(trace, observation, forecast)
        self._count(_step_tags(trace.configuration, step, observation, forecast))

    def _count(self, tags: Iterable[str]) -> None:
        for tag in tags:
            if tag not in TAGS:
                raise KeyError(f"{tag!r} is not in coverage.TAGS")
            self._counts[tag] += 1

    @property
    def counts(self) -> dict[str, int]:
        """How often each tag was reached; rows and columns of the table that are tags too have its totals."""
        return {tag: self._counts[tag] or self.reach.totals[tag] for tag in TAGS}

    def unreached(self) -> list[str]:
        """Tags that were never reached."""
        return [tag for tag, count in self.counts.items() if not count]

    def empty(self, target: str = "") -> list[Cell]:
        """Cells (axis, phase) that were never reached though the target, given its name, can reach them."""
        return self.reach.empty(target)


def _request_tags(trace: Trace, block: int) -> Iterator[str]:
    unit = trace.configuration.unit
    earlier: list[Submit] = []
    for submit in trace.submits():
        length = prompt_length(submit.prompt)
        for name, grid in (("U", unit), ("B", block)):
            offset = {0: "", 1: "+1", grid - 1: "−1"}.get(length % grid)
            if offset is not None and (grid > 2 or not offset):
                yield f"P at {name}{offset}"
        if length <= unit:
            yield "P at most U"
        if length > trace.configuration.budget:
            yield "budget cuts a prompt"
        yield from _kinship_tags(submit, earlier, unit, block)
        earlier.append(submit)


def _kinship_tags(submit: Submit, earlier: list[Submit], unit: int, block: int) -> Iterator[str]:
    length = prompt_length(submit.prompt)
    alike = [(shared_prefix(submit, other), other) for other in earlier]
    for name in ("salt", "adapter", "media"):
        if any(shared and getattr(other, name) != getattr(submit, name) for shared, other in alike):
            yield f"other {name}"
    same = [
        (shared, other)
        for shared, other in alike
        if shared and (other.root, other.media) == (submit.root, submit.media)
    ]
    if not same:
        return
    shared, other = max(same, key=lambda pair: pair[0])
    theirs = prompt_length(other.prompt)
    if shared == length == theirs:
        yield "resend"
    elif shared == theirs:
        yield "extension below U" if length - theirs < unit else "extension of U or more"
    elif shared % block == 0:
        yield "shared prefix ends at a block end"
    else:
        yield f"shared prefix ends inside a {'block' if shared % unit == 0 else 'unit'}"


def shared_prefix(one: Submit, other: Submit) -> int:
    """How many leading tokens two prompts share."""
    total = 0
    for (name, length), (theirs, their_length) in zip(one.prompt, other.prompt, strict=False):
        if name != theirs:
            break
        total += min(length, their_length)
        if length != their_length:
            break
    return total


def _step_tags(
    configuration: Configuration, step: Step, observation: Observation, forecast: Forecast
) -> Iterator[str]:
    if len(observation.running) > 1:
        yield "several live requests"
    if not forecast.roomy:
        yield TIGHT
    if any(admission.admitted.junction for admission in forecast.admissions):
        yield "junction noticed"
    if observation.waiting and observation.scheduled and len(observation.running) < configuration.live:
        spent = sum(item.end - item.start for item in observation.scheduled)
        if spent < configuration.budget:
            yield "request waits with slot and budget free"
    if observation.finished and not isinstance(step, Abort):
        fresh = {item.request for item in observation.admitted}
        for finished in observation.finished:
            yield "finished in its first step" if finished.request in fresh else "finished in decode"
