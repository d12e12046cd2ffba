"""Compares which blocks store jobs hold and give back, and reference counts (TS4, LT1, LT2, LT3)."""

from __future__ import annotations

from collections.abc import Iterator

from tailproof.judge.findings import Finding
from tailproof.judge.step import Step, exercises, judges


@judges("LT2", "TS4")
def pins(step: Step) -> Iterator[Finding]:
    """Mode "pins": exact; a job lives from the step that begins it to the one that reports its end."""
    view, due, observation = step.view, step.expected.store, step.observation
    now, reported = {pin.job: pin for pin in view.pins}, set(view.reported)
    for pin in due.pins.values():
        whose = f"store job {pin.job} of {pin.request!r}"
        if pin.job in reported:
            continue
        if pin.job not in now:
            text = f"{whose} lost its pins before its end was reported"
            yield Finding("LT2", "pin-released-early", text, pin.request)
        elif now[pin.job].blocks != pin.blocks:
            text = f"{whose} held {pin.blocks} blocks, now {now[pin.job].blocks}"
            yield Finding("LT2", "pin-changed", text, pin.request)
        if due.idle_puts and pin.told:
            text = f"{whose} has ended, but its end is not reported"
            yield Finding("LT2", "pin-overdue", text, pin.request)
    for job in sorted(reported & now.keys()):
        text = f"store job {job} of {now[job].request!r} keeps its pins though its end was reported"
        yield Finding("LT2", "pin-kept", text, now[job].request)
    busy = {item.request for item in observation.scheduled}
    busy |= {item.request for item in observation.finished}
    for pin in view.pins:
        if pin.job not in due.pins and pin.request not in busy:
            text = f"store job {pin.job} began for {pin.request!r}, which neither ran nor ended in the step"
            yield Finding("TS4", "pin-foreign", text, pin.request or None)


@judges("LT1")
def reference_counts(step: Step) -> Iterator[Finding]:
    """Mode "reference counts": exact."""
    if step.view.miscounted:
        text = f"{step.view.miscounted} blocks have another reference count than their owners and pins"
        yield Finding("LT1", "miscounted", text)


@judges("LT3")
def quiescence(step: Step) -> Iterator[Finding]:
    """Mode "quiescence": with nothing running every block but the null block is free."""
    free, due = step.observation.free, step.configuration.blocks - 1
    if not step.observation.running and step.expected.store.at_rest and free != due:
        yield Finding("LT3", "free-blocks", f"{free} blocks are free at rest, due were {due}")


@exercises("LT1", "LT2", "LT3")
def at_rest(step: Step) -> Iterator[str]:
    """Steps that work while jobs hold blocks, that report ends of jobs, and that leave nothing running."""
    observation = step.observation
    if step.view.pins and (observation.scheduled or observation.finished or observation.preempted):
        yield "LT1"
    if step.view.reported:
        yield "LT2"
    if not observation.running and step.expected.store.at_rest:
        yield "LT3"
