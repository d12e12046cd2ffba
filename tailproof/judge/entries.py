"""Compares visible entries with those that must, may and must not be there (RT, CH3, CH4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spec.observation import Entry
from tailproof.judge.findings import Finding
from tailproof.judge.step import Step, exercises, judges


def missing_entries(step: Step) -> list[Entry]:
    """What must be visible after the step and is not."""
    published, withdrawn = step.published(), step.withdrawn()
    return [
        entry
        for key, entry in step.expected.must.items()
        if key not in published and (key not in step.cache.visible or key in withdrawn)
    ]


def stray_entries(step: Step) -> list[Entry]:
    """What became visible and must not be."""
    expected = step.expected
    return [
        entry
        for key, entry in step.published().items()
        if key not in expected.may and key not in expected.computed
    ]


@judges("CP7", "RT1", "RT2", "CH3", "CH4")
def visible_entries(step: Step) -> Iterator[Finding]:
    """Mode "visible entries": must ⊆ visible ⊆ must ∪ may. Entries that may be visible are a choice."""
    strays = [_stray(step, entry) for entry in stray_entries(step)]
    moved = [found.entry for found in strays if found.kind == "stray-state" and found.entry]
    for entry in missing_entries(step):
        yield _missing(step, entry, moved)
    yield from strays


@judges("RT1")
def lost_entries(step: Step) -> Iterator[Finding]:
    """Mode "lost entries". One-sided: what vanished is judged where nothing was thrown out for space, since
    what is thrown out is a choice too; but it must be needed, and never what a running request holds."""
    observation, expected = step.observation, step.expected
    if observation.do == "reset_local":
        return
    withdrawn = step.withdrawn()
    held = {key: expected.held[key] for key in withdrawn if key in expected.held}
    for entry in held.values():
        text = f"{step.place(entry)} vanished while request {entry.request!r} holds its block"
        where = (entry.request, entry.position, entry)
        yield Finding("RT1", "evicted-in-use", text, *where, lasting=False)
    if observation.wasted:
        text = f"{observation.wasted} blocks with entries were taken while others held none"
        yield Finding("RT1", "evicted-needlessly", text)
    if expected.roomy or observation.evicted == 0:
        why = "the pool has room" if expected.roomy else "no block was taken from the cache"
        for key in withdrawn:
            if key in expected.required and key not in held:
                entry = expected.required[key]
                text = f"{step.place(entry)} vanished although {why}"
                yield Finding("RT1", "lost", text, entry.request, entry.position, entry, lasting=False)


def _missing(step: Step, entry: Entry, moved: Sequence[Entry]) -> Finding:
    kind, place = step.kind(entry), step.place(entry)
    where = (entry.request, entry.position, entry)
    if kind == "mamba" and entry.position == step.geometry.checkpoint(step.histories[entry.request].prompt):
        text = f"{place}, the resend checkpoint, was computed but is not visible"
        if any(other.request == entry.request for other in moved):
            text = f"{text}; another position is"
            return Finding("CP7", "registered-elsewhere", text, *where, lasting=False)
        return Finding("RT2", "missing-checkpoint", text, *where, lasting=False)
    text = f"{place} was computed and must be visible, but is not"
    return Finding("RT1", f"missing-{kind}", text, *where, lasting=False)


def _stray(step: Step, entry: Entry) -> Finding:
    place, whose = step.place(entry), _whose(step, entry)
    where = (whose or entry.request, entry.position, entry)
    if step.kind(entry) != "mamba":
        return Finding("RT1", "uncomputed", f"{place} is visible but was not computed", *where)
    for chunk in step.expected.chunks:
        if chunk.publications.overwritten == entry.position and step.begins(chunk.history, entry):
            text = f"{place} is visible, but the export of {chunk.publications.export} took its place"
            return Finding("CH4", "transient", text, chunk.history.id, entry.position, entry)
    export = _taken(step, entry)
    if export and not whose:
        text = f"{place} is visible, but the export of {export} took its place in an earlier step"
        return Finding("CH4", "transient", text, *where)
    text = f"{place} is visible, but no chunk ended or exported there"
    return Finding("CH3", "stray-state", text, *where)


def _taken(step: Step, entry: Entry) -> int:
    """The position of the export that took an entry's place in an earlier step, 0 for none."""
    made = (one.exports.get(entry.position, 0) for one in step.histories.values() if step.begins(one, entry))
    return max(made, default=0)


def _whose(step: Step, entry: Entry) -> str:
    """The request that registered an entry for what this very step was to compute: it was preempted, or its
    chunk runs past the entry; "" for none."""
    preempted = [step.histories[request] for request in step.observation.preempted]
    passing = [
        chunk.history
        for chunk in step.expected.chunks
        if chunk.scheduled.start < entry.position < chunk.scheduled.end
    ]
    return next((one.id for one in (*preempted, *passing) if step.begins(one, entry)), "")


@exercises("RT1", "RT2", "CH4")
def due_entries(step: Step) -> Iterator[str]:
    """Entries that could have been missing, and exports that took a block end's place."""
    geometry = step.geometry
    if step.expected.must:
        yield "RT1"
    for chunk in step.expected.chunks:
        left = chunk.publications
        if left.export and left.overwritten != left.export:
            yield "CH4"
        states = {position for group, position in left.must if geometry.groups[group].kind == "mamba"}
        if geometry.checkpoint(chunk.history.prompt) in states:
            yield "RT2"
