"""Compares how requests, loads and runs end: outputs, progress, resets, runs that broke off."""

from __future__ import annotations

from collections.abc import Iterator

from spec.chunking import must_advance
from spec.liveness import broken_by_hang
from spec.observation import Failure
from tailproof.judge.findings import Finding
from tailproof.judge.step import ENGINE_STEPS, Step, exercises, judges


@judges("LV1", "LV2", of="end")
def broken_off(step: Step, failure: Failure) -> Iterator[Finding]:
    """Mode "failure": what a run that broke off has broken. A system that is stuck with a request larger than
    the whole pool has broken nothing: a request must end once resources suffice."""
    # What a lost store leaves behind says nothing of the system.
    if failure.kind == "store" or (failure.kind == "stuck" and not step.expected.fits):
        return
    kind = f"{failure.kind}-{failure.place}" if failure.place else failure.kind
    text = f"the target broke off ({failure.kind}): {failure.message}"
    rule = "LV1"
    if failure.kind == "stuck":
        waiting = [one.id for one in step.oracle.live() if one.id in step.expected.store.failed_before]
        rule = broken_by_hang(bool(waiting))
        text = f"{text}; the load of {' and '.join(waiting)} has failed" if waiting else text
    yield Finding(rule, kind, text)


@judges("LV1", "SF4", "AC1")
def ends(step: Step) -> Iterator[Finding]:
    """Modes "outputs", "ends" and "accounting": exact."""
    observation, expected = step.observation, step.expected
    if observation.do not in (*ENGINE_STEPS, "abort"):
        return
    finished = {item.request: item for item in observation.finished}
    for request, item in finished.items():
        history = step.histories[request]
        if request in expected.store.refused:
            continue
        ended = observation.do in ENGINE_STEPS
        due = tuple(history.sampled if ended else history.sampled[: len(item.outputs)])
        count = len(item.outputs)
        if item.outputs == due[:count] != due:
            text = f"request {request!r} ended with {count} of {len(due)} outputs"
            yield Finding("LV1", "too-few-outputs", text, request)
        elif item.outputs != due:
            same = [one == other for one, other in zip(item.outputs, due, strict=False)]
            at = same.index(False) if False in same else len(same)
            yield Finding("SF4", "output", f"request {request!r}: output {at} differs", request)
        hit = history.hit
        for admission in expected.admissions:
            if admission.history.id == request and hit is None:
                hit = admission.admitted.local + admission.admitted.external
        if item.cached is not None and hit is not None and item.cached != hit:
            text = f"request {request!r} reported {item.cached} cached tokens, hit {hit}"
            yield Finding("AC1", "cached", text, request)
        if ended and request not in expected.ends:
            yield Finding("LV1", "ended-early", f"request {request!r} ended before its last token", request)
    for request in expected.ends:
        if request not in finished:
            yield Finding("LV1", "not-ended", f"request {request!r} has all outputs but did not end", request)
    for request in expected.live_before:
        if request not in finished and request not in observation.running + observation.waiting:
            yield Finding("LV1", "vanished", f"request {request!r} vanished without an end", request)


@judges("LV2")
def loads(step: Step) -> Iterator[Finding]:
    """Mode "loads": exact; what ended before the step is reported in it, and a failure ends its request where
    that is asked for."""
    view, due = step.view, step.expected.store
    told = {*view.loaded, *view.failed}
    for request in due.loads if due.idle_gets else ():
        if request not in told and request not in due.loaded:
            text = f"request {request!r} waits for its load, but nothing loads and nothing was reported"
            yield Finding("LV2", "load-unreported", text, request)
    ended = {item.request: item for item in step.observation.finished}
    for request in due.refused:
        if request not in ended:
            text = f"request {request!r} did not end though its load failed and failures end requests here"
            yield Finding("LV2", "failure-not-told", text, request)
        elif ended[request].reason != "error":
            text = f"request {request!r} ended with {ended[request].reason!r} after its load failed"
            yield Finding("LV2", "failure-misnamed", text, request)


@judges("CH2")
def progress(step: Step) -> Iterator[Finding]:
    """Mode "progress". One-sided: without room for everything a step may legally wait, or preempt; and with
    asynchronous scheduling the encoder has room again only when the answer of the step before is there."""
    observation, expected = step.observation, step.expected
    if observation.do not in ENGINE_STEPS or not expected.roomy:
        return
    if step.configuration.asynchronous and step.configuration.encoder:
        return
    for request in observation.preempted:
        text = f"request {request!r} was preempted although the pool has room"
        yield Finding("CH2", "preempted", text, request, lasting=False)
    left = [request for request in expected.live_before if request not in expected.store.away]
    # A request that only waits to be told of its end may hold the slot that another one needs.
    if not expected.complete and not must_advance(len(observation.scheduled), bool(left)):
        text = f"a step scheduled nothing although {', '.join(left)} had work left"
        yield Finding("CH2", "stalled", text, lasting=False)


@judges("LT4")
def reset(step: Step) -> Iterator[Finding]:
    """Mode "reset": exact."""
    observation, due = step.observation, step.expected.reset_succeeds
    if observation.do != "reset_local":
        return
    if due not in (None, observation.reset):
        took = "took effect" if observation.reset else "was refused"
        holds = "no request holds a block" if due else "a request holds blocks"
        yield Finding("LT4", "reset", f"the reset {took} although {holds}")
    if observation.reset:
        left = len(step.cache.visible - step.withdrawn().keys()) + len(observation.published)
        if left:
            yield Finding("LT4", "reset-left", f"{left} entries are visible after a reset")


@exercises("LT4", "CH2", "SF4", "LV1", "AC1", "LV2")
def ended(step: Step) -> Iterator[str]:
    """Resets, steps with work left, requests that end, loads and lookups that fail."""
    observation = step.observation
    if observation.do == "reset_local":
        yield "LT4"
    elif step.expected.live_before and observation.do in ENGINE_STEPS:
        yield "CH2"
    for finished in observation.finished:
        yield from ("SF4", "LV1")
        if finished.cached:
            yield "AC1"
    if step.view.failed or any(not answer.known for answer in step.view.answers):
        yield "LV2"
