"""Compares what was seen of the external store with the oracle's forecast: hits, keys, pins, loads."""

from __future__ import annotations

from collections.abc import Iterator

from reference.oracle import AdmissionForecast, ChunkForecast, Forecast, Oracle
from reference.store_forecast import BadPut, Owed, StoreForecast
from spec.observation import Entry, Observation, StoreView
from tailproof.findings import Finding
from tailproof.variants import VARIANTS

_PUTS = {
    "uncomputed": ("TS2", "was put before it was computed"),
    "wrong": ("TS2", "was put from a block that does not hold it"),
    "again": ("TS3", "was put though the store held it already"),
    "unpinned": ("TS4", "was put from a block that no store job holds"),
    "junction": ("TS5", "was put, as if a tail ended at the junction"),
    "horizon": ("TS6", "was put, as if the checkpoint were that of more than the prompt"),
    "stray": ("TS1", "was put, where no save ends"),
}


def store_findings(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """All findings about the store of one observation."""
    view, due = observation.store, forecast.store
    assert view is not None
    assert due is not None
    for admission in (*forecast.admissions, *forecast.loadings):
        yield from _external_hit(oracle, admission, due, view)
    for put in due.bad:
        yield _bad_put(oracle, put, forecast)
    for entry in due.spoiled:
        text = f"{_name(oracle, entry)} came out of the store with other content"
        rule = "SF2" if oracle.geometry.groups[entry.group].kind == "mamba" else "SF1"
        yield Finding(rule, "loaded-wrong", text, entry.request, entry.position)
    yield from _keys(oracle, due)
    yield from _pins(view, due)
    yield from _loads(oracle, observation, due)


def _external_hit(
    oracle: Oracle, admission: AdmissionForecast, due: StoreForecast, view: StoreView
) -> Iterator[Finding]:
    """Mode "external hit": over the keys that the store held when it was asked (LK4). Exact but for one
    choice: a block that ends with the request may count as proof for a hit before its last token, which is
    safe."""
    item, request = admission.admitted, admission.history.id
    owed, local = due.external[request], admission.lookup.hit
    total = item.local + item.external
    text = (
        f"request {request!r} of {admission.history.known} tokens took {item.local} from its own cache and "
        f"{item.external} from the store, which serves {owed}"
    )
    whole = local // oracle.geometry.align * oracle.geometry.align
    if owed > local and total < owed:
        yield Finding("LK4", f"external-{_variant(oracle, admission, total)}", text, request)
    elif item.external and total > due.widest[request]:
        yield Finding("LK4", "external-too-long", text, request)
    elif item.external and (owed <= local or item.local != whole):
        yield _local_loss(oracle, admission, f"{text}; its own cache serves {local}")


def _local_loss(oracle: Oracle, admission: AdmissionForecast, text: str) -> Finding:
    """The store made up for what the local lookup lost, or took what it need not."""
    seen, align, request = admission.admitted.local, oracle.geometry.align, admission.history.id
    for variant in VARIANTS:
        hit = variant.hit(oracle.geometry, admission.history, set(admission.visible))
        if hit < admission.lookup.hit and hit // align * align == seen:
            return Finding(variant.rule, variant.kind, f"{text}: {variant.reason}", request)
    return Finding("LK4", "external-cut", text, request)


def _variant(oracle: Oracle, admission: AdmissionForecast, total: int) -> str:
    """The wrong way of looking up that gives what was seen, where one does."""
    keys, geometry = set(oracle.shelf_keys()), oracle.geometry
    asked = admission.history.known // geometry.align * geometry.align
    if (
        not geometry.fine
        and total == oracle.cache.lookup(admission.history, _up_to(oracle, admission, asked)).hit
    ):
        return "proof-not-asked"
    for variant in VARIANTS:
        if variant.hit(oracle.geometry, admission.history, keys) == total:
            return variant.kind
    return "missed" if admission.admitted.external == 0 else "too-short"


def _up_to(oracle: Oracle, admission: AdmissionForecast, end: int) -> set[tuple[int, int]]:
    """The keys of the store for prefixes of a request of at most `end` tokens."""
    unit, history, keys = oracle.geometry.unit, admission.history, oracle.shelf_keys()
    places = ((group, at) for group in oracle.geometry.groups for at in range(unit, end + 1, unit))
    return {key for group, at in places if (key := oracle.cache.key(group.index, history, at)) in keys}


def _bad_put(oracle: Oracle, put: BadPut, forecast: Forecast) -> Finding:
    rule, words = _PUTS[put.what]
    request, kind = put.request or put.entry.request, f"put-{put.what}"
    text = f"{_name(oracle, put.entry)} {words}"
    if put.what == "wrong" and (chunk := _ran_past(oracle, put.entry, forecast)) is not None:
        item = chunk.scheduled
        kind, request = "put-partial-block-as-full", item.request
        text = (
            f"{text}: request {request!r} computed [{item.start}, {item.end}) and offered the block of the "
            f"state at {item.start} as that of the block's end"
        )
    elif put.what == "wrong" and oracle.cache.key_of(put.entry, oracle.histories) in oracle.overrun:
        kind, text = (
            "put-partial-block-as-full",
            f"{text}: an earlier chunk began inside it and ran past its end",
        )
    return Finding(rule, kind, text, request, put.entry.position)


def _ran_past(oracle: Oracle, entry: Entry, forecast: Forecast) -> ChunkForecast | None:
    """The chunk that began inside the Mamba block that ends at an entry, and ran past its end."""
    if oracle.geometry.groups[entry.group].kind != "mamba":
        return None
    block = oracle.geometry.mamba_block
    for chunk in forecast.chunks:
        start, end = chunk.scheduled.start, chunk.scheduled.end
        if start % block and start < entry.position == -(-start // block) * block < end:
            return chunk
    return None


def _keys(oracle: Oracle, due: StoreForecast) -> Iterator[Finding]:
    """Mode "store keys": exact but for what saves may leave out after a failure; read from the master."""
    for owed in due.missing:
        yield _missing(oracle, owed, due)
    for entry in due.unexpected:
        text = f"{_name(oracle, entry)} is in the store though nothing put it there"
        yield Finding("TS1", "key-unexpected", text, entry.request, entry.position)
    for entry in due.vanished:
        text = f"{_name(oracle, entry)} is not in the store though it was put and not removed"
        yield Finding("TS1", "key-vanished", text, entry.request, entry.position)


def _missing(oracle: Oracle, owed: Owed, due: StoreForecast) -> Finding:
    entry = owed.entry
    kind = (
        "state" if oracle.geometry.groups[entry.group].kind == "mamba" else "tail" if owed.tail else "block"
    )
    text = f"{_name(oracle, entry)} is not in the store though the prompt's saves have ended"
    tail = [one for one in due.missing if one.request == owed.request and one.tail]
    if kind == "tail" and owed.resumed:
        return Finding("TS6", f"missing-{kind}-resumed", text, owed.request, entry.position)
    if kind == "tail" and not owed.state and len(tail) > 1:
        return Finding("TS7", f"missing-{kind}-without-state", text, owed.request, entry.position)
    geometry = oracle.geometry
    exports = geometry.mamba[0].checkpoint_alignment is not None
    if kind == "state" and exports and not geometry.fine and geometry.align > geometry.mamba_block:
        text = f"{text}: it was exported, and nothing offers an export past the last block that is cached"
        return Finding("TS1", "missing-state-of-coarse-export", text, owed.request, entry.position)
    suffix = "-resumed" if owed.resumed else ""
    return Finding("TS1", f"missing-{kind}{suffix}", text, owed.request, entry.position)


def _pins(view: StoreView, due: StoreForecast) -> Iterator[Finding]:
    """Modes "pins" and "reference counts"."""
    now = {pin.job: pin for pin in view.pins}
    for pin in due.kept:
        if pin.job not in now:
            text = f"store job {pin.job} of {pin.request!r} lost its pins before its end was reported"
            yield Finding("LT2", "pin-released-early", text, pin.request)
        elif now[pin.job].blocks != pin.blocks:
            text = (
                f"store job {pin.job} of {pin.request!r} held {pin.blocks} blocks, now {now[pin.job].blocks}"
            )
            yield Finding("LT2", "pin-changed", text, pin.request)
    for pin in due.overdue:
        text = f"store job {pin.job} of {pin.request!r} has ended, but its end is not reported"
        yield Finding("LT2", "pin-overdue", text, pin.request)
    for job in sorted(due.freed & now.keys()):
        text = f"store job {job} of {now[job].request!r} keeps its pins though its end was reported"
        yield Finding("LT2", "pin-kept", text, now[job].request)
    for pin in due.foreign:
        text = f"store job {pin.job} began for {pin.request!r}, which neither ran nor ended in the step"
        yield Finding("TS4", "pin-foreign", text, pin.request or None)
    if view.miscounted:
        text = f"{view.miscounted} blocks have another reference count than their owners and pins"
        yield Finding("LT1", "miscounted", text)


def _loads(oracle: Oracle, observation: Observation, due: StoreForecast) -> Iterator[Finding]:
    """Mode "loads"."""
    for request in due.unreported:
        text = f"request {request!r} waits for its load, but nothing loads and nothing was reported"
        kind = "load-unreported"
        if request in oracle.loads_after_reset():
            kind, text = "load-lost-in-reset", f"{text}; a reset had preempted it just before"
        yield Finding("LV2", kind, text, request)
    ended = {item.request: item for item in observation.finished}
    for request in due.refused:
        if request not in ended:
            text = f"request {request!r} did not end though its load failed and failures end requests here"
            yield Finding("LV2", "failure-not-told", text, request)
        elif ended[request].reason != "error":
            text = f"request {request!r} ended with {ended[request].reason!r} after its load failed"
            yield Finding("LV2", "failure-misnamed", text, request)


def _name(oracle: Oracle, entry: Entry) -> str:
    kind = "Mamba" if oracle.geometry.groups[entry.group].kind == "mamba" else "attention"
    return f"the {kind} key of group {entry.group} at {entry.position} of request {entry.request!r}"
