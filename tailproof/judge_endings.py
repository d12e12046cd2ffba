"""Compares how requests and runs end: outputs, progress, rest, resets, and runs that broke off."""

from __future__ import annotations

from collections.abc import Iterator

from reference.oracle import Forecast, Oracle
from spec.chunking import must_advance
from spec.observation import Failure, Observation
from tailproof import circumstances
from tailproof.findings import Finding

ENGINE_STEPS = ("run", "settle")


def broken_off(oracle: Oracle, failure: Failure, forecast: Forecast) -> Iterator[Finding]:
    """Mode "failure": what a run that broke off has broken. A system that is stuck with a request larger than
    the whole pool has broken nothing: a request must end once resources suffice."""
    # What a lost store leaves behind says nothing of the system.
    if failure.kind == "store" or (failure.kind == "stuck" and not forecast.fits):
        return
    kind = f"{failure.kind}-{failure.place}" if failure.place else failure.kind
    text = f"the target broke off ({failure.kind}): {failure.message}"
    if failure.kind == "stuck" and oracle.in_lookahead():
        kind, ahead = "stuck-in-lookahead", oracle.geometry.lookahead
        text = f"{text}; the next stop is within the {ahead} tokens before the end that draft modules need"
    if failure.kind == "stuck" and circumstances.between_media(oracle):
        kind = "stuck-between-media"
        text = f"{text}; one item of media stays encoded for draft modules, and the next has no room"
    if failure.kind == "stuck" and oracle.loaded_block_each_other():
        text = f"{text}; requests that have loaded hold blocks, and none of them can go on"
        yield Finding("LV2", "stuck-after-loads", text)
        return
    if failure.kind == "stuck" and (why := oracle.after_failed_load()):
        kind = "load-retried-forever" if why == "retried" else "stuck-after-failed-load"
        yield Finding("LV2", kind, f"{text}; a load failed before")
        return
    if failure.kind == "exception" and oracle.geometry.unfinished and not oracle.geometry.annotated:
        kind = f"{kind}-unfinished"
    yield Finding("LV1", kind, text)


def ends(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Modes "outputs", "ends" and "accounting"."""
    if observation.do not in (*ENGINE_STEPS, "abort"):
        return
    finished = {item.request: item for item in observation.finished}
    refused = forecast.store.refused if forecast.store is not None else frozenset()
    for request, item in finished.items():
        history = oracle.histories[request]
        if request in refused:
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
        for admission in forecast.admissions:
            if admission.history.id == request and hit is None:
                hit = admission.admitted.local + admission.admitted.external
        if item.cached is not None and hit is not None and item.cached != hit:
            yield Finding(
                "AC1",
                "cached",
                f"request {request!r} reported {item.cached} cached tokens, hit {hit}",
                request,
            )
        if observation.do in ENGINE_STEPS and request not in forecast.ends:
            yield Finding("LV1", "ended-early", f"request {request!r} ended before its last token", request)
    for request in forecast.ends:
        if request not in finished:
            yield Finding("LV1", "not-ended", f"request {request!r} has all outputs but did not end", request)
    for request in forecast.live_before:
        if request not in finished and request not in observation.running + observation.waiting:
            yield Finding("LV1", "vanished", f"request {request!r} vanished without an end", request)


def progress(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Mode "progress". One-sided: without room for everything a step may legally wait, or preempt; and with
    asynchronous scheduling the encoder has room again only when the answer of the step before is there."""
    if observation.do not in ENGINE_STEPS or not forecast.roomy:
        return
    if oracle.configuration.asynchronous and oracle.configuration.encoder:
        return
    for request in observation.preempted:
        text = f"request {request!r} was preempted although the pool has room"
        yield Finding("CH2", "preempted", text, request)
    away = forecast.store.away if forecast.store is not None else frozenset()
    left = [request for request in forecast.live_before if request not in away]
    # A request that only waits to be told of its end may hold the slot that another one needs.
    if not forecast.complete and not must_advance(len(observation.scheduled), bool(left)):
        waiting = ", ".join(left)
        if oracle.after_failed_load():
            text = f"a step scheduled nothing although {waiting} had work left; a load failed before"
            yield Finding("LV2", "stalled-after-failed-load", text)
            return
        kind = "stalled-in-lookahead" if oracle.in_lookahead() else "stalled"
        kind = "stalled-between-media" if circumstances.between_media(oracle) else kind
        yield Finding("CH2", kind, f"a step scheduled nothing although {waiting} had work left")


def quiescence(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Mode "quiescence": with nothing running every block but the null block is free."""
    due = oracle.configuration.blocks - 1
    at_rest = not observation.running and (forecast.store is None or forecast.store.at_rest)
    if at_rest and observation.free != due:
        yield Finding("LT3", "free-blocks", f"{observation.free} blocks are free at rest, due were {due}")


def reset(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Mode "reset"."""
    if observation.do != "reset_local":
        return
    if forecast.reset_succeeds not in (None, observation.reset):
        took = "took effect" if observation.reset else "was refused"
        holds = "no request holds a block" if forecast.reset_succeeds else "a request holds blocks"
        yield Finding("LT4", "reset", f"the reset {took} although {holds}")
    if observation.reset:
        gone = {oracle.cache.key_of(entry, oracle.histories) for entry in observation.withdrawn}
        left = len(oracle.cache.visible - gone) + len(observation.published)
        if left:
            yield Finding("LT4", "reset-left", f"{left} entries are visible after a reset")
