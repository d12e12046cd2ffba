"""Compares the visible entries of a prefix cache with those that must, may and must not be there."""

from __future__ import annotations

from collections.abc import Iterator

from reference.history import History
from reference.oracle import Forecast, Oracle
from spec.lookup import window_blocks
from spec.observation import Entry, Observation
from tailproof import circumstances
from tailproof.findings import Finding

# The end of the kinds of a tail entry that moved past what a resend of the prompt can name.
PAST_HASHES = "-past-hashes"
# Kinds of stray entries that take the block of another entry.
_RENAMED = ("hash-boundary-when-coarse", "promoted-after-export")


def visible_entries(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Mode "visible entries": must ⊆ visible ⊆ must ∪ may. Entries that may be visible are a choice; what
    vanished is judged where nothing was thrown out for space, since what is thrown out is a choice too; but
    it must be needed, and never what a running request holds."""
    strays = {entry: _stray(oracle, observation, forecast, entry) for entry in forecast.stray}
    moved = [entry for entry, finding in strays.items() if finding.kind == "mid-chunk"]
    for entry in forecast.missing:
        yield _missing(oracle, forecast, entry, moved)
    yield from strays.values()
    if observation.do == "reset_local":
        return
    for entry in forecast.held:
        text = f"{_place(oracle, entry)} vanished while request {entry.request!r} holds its block"
        yield Finding(
            "RT1", f"evicted-in-use{_past_hashes(oracle, entry)}", text, entry.request, entry.position
        )
    if observation.wasted:
        text = f"{observation.wasted} blocks with entries were taken while others held none"
        yield Finding("RT1", "evicted-needlessly", text)
    if forecast.roomy or observation.evicted == 0:
        why = "the pool has room" if forecast.roomy else "no block was taken from the cache"
        told = {oracle.cache.key_of(entry, oracle.histories) for entry in forecast.held}
        for entry in forecast.lost:
            if oracle.cache.key_of(entry, oracle.histories) in told:
                continue
            text = f"{_place(oracle, entry)} vanished although {why}"
            kind = f"lost{_past_hashes(oracle, entry)}"
            if any(found.kind in _RENAMED for found in strays.values()):
                kind, text = "lost-to-another-key", f"{text}: its block was registered under another key"
            yield Finding("RT1", kind, text, entry.request, entry.position)


def _past_hashes(oracle: Oracle, entry: Entry) -> str:
    """Where hashes cover several tokens to come, vLLM goes by P − 1 all the same, past what a resend of the
    prompt can name: as outputs arrive, it moves the attention entry of the prompt's tail on to there, and it
    keeps states and windows for there."""
    geometry, history = oracle.geometry, oracle.histories[entry.request]
    group = geometry.groups[entry.group]
    if geometry.hash_lookahead < 2:
        return ""
    if group.kind == "full":
        tail = entry.position == geometry.checkpoint(history.prompt) and entry.position % group.block
        return PAST_HASHES if tail else ""
    grid = group.block if group.kind == "mamba" else geometry.grid
    return PAST_HASHES if (history.prompt - 1) // grid * grid > geometry.checkpoint(history.prompt) else ""


def _missing(oracle: Oracle, forecast: Forecast, entry: Entry, stray: list[Entry]) -> Finding:
    history = oracle.histories[entry.request]
    checkpoint = oracle.geometry.checkpoint(history.prompt)
    kind = oracle.geometry.groups[entry.group].kind
    beside = ""
    for chunk in forecast.chunks:
        if (
            kind == "mamba"
            and chunk.history is history
            and chunk.publications.export not in (0, entry.position)
        ):
            beside = "-beside-export"
    if kind == "mamba" and oracle.geometry.unfinished and not oracle.geometry.annotated:
        beside = "-unfinished"
    beside = beside or _past_hashes(oracle, entry)
    group = oracle.geometry.groups[entry.group]
    sparse = oracle.geometry.fine and oracle.configuration.retention is not None
    if group.window and sparse and checkpoint:
        needed = window_blocks(checkpoint, group.block, group.window, group.margin)
        beside = "-sparse" if entry.position in needed else beside
    if kind == "mamba" and entry.position == checkpoint:
        text = f"{_place(oracle, entry)}, the resend checkpoint, was computed but is not visible"
        if any(other.request == entry.request for other in stray):
            text = f"{text}; another position is"
            return Finding("CP7", "registered-elsewhere", text, entry.request, entry.position)
        return Finding("RT2", f"missing-checkpoint{beside}", text, entry.request, entry.position)
    text = f"{_place(oracle, entry)} was computed and must be visible, but is not"
    return Finding("RT1", f"missing-{kind}{beside}", text, entry.request, entry.position)


def _stray(oracle: Oracle, observation: Observation, forecast: Forecast, entry: Entry) -> Finding:
    place = _place(oracle, entry)
    for request in observation.preempted:
        if _has_prefix(oracle, oracle.histories[request], entry):
            rule = "CH3" if oracle.geometry.groups[entry.group].kind == "mamba" else "RT1"
            text = (
                f"{place} is visible, but was not computed: request {request!r} was preempted in the step "
                "that scheduled it"
            )
            return Finding(rule, "scheduled-then-preempted", text, request, entry.position)
    if oracle.geometry.groups[entry.group].kind != "mamba":
        text = f"{place} is visible but was not computed"
        return Finding("RT1", "uncomputed", text, entry.request, entry.position)
    block = oracle.geometry.mamba_block
    for chunk in forecast.chunks:
        if not _has_prefix(oracle, chunk.history, entry):
            continue
        item, left = chunk.scheduled, chunk.publications
        if left.overwritten == entry.position:
            text = f"{place} is visible, but the export of {left.export} took its place"
            return Finding("CH4", "transient", text, item.request, entry.position)
        if item.start % block and item.start < entry.position == -(-item.start // block) * block < item.end:
            text = (
                f"{place} is visible, but no state was computed there: request {item.request!r} computed "
                f"[{item.start}, {item.end}) and registered the block of the state at {item.start} as full"
            )
            return Finding(
                "CH3",
                f"partial-block-as-full{circumstances.partial_block(oracle.geometry, chunk)}",
                text,
                item.request,
                entry.position,
            )
    if oracle.cache.key_of(entry, oracle.histories) in oracle.displaced:
        text = f"{place} became visible after an export had taken its place"
        return Finding("CH4", "promoted-after-export", text, entry.request, entry.position)
    if oracle.cache.key_of(entry, oracle.histories) in oracle.overrun:
        text = (
            f"{place} is visible, but no state was computed there: an earlier chunk began inside its block "
            "and ran past it"
        )
        kind = f"partial-block-as-full{circumstances.smallest(oracle.geometry)}"
        return Finding("CH3", kind, text, entry.request, entry.position)
    text = f"{place} is visible, but no chunk ended or exported there"
    kind = "mid-chunk"
    geometry = oracle.geometry
    for chunk in forecast.chunks:
        boundary = geometry.checkpoint_on(chunk.history.prompt, geometry.unit)
        if not geometry.fine and entry.position == boundary and _has_prefix(oracle, chunk.history, entry):
            kind = "hash-boundary-when-coarse"
    if kind == "mid-chunk" and geometry.unfinished and not geometry.annotated:
        kind = "mid-chunk-unfinished"
    return Finding("CH3", kind, text, entry.request, entry.position)


def _has_prefix(oracle: Oracle, history: History, entry: Entry) -> bool:
    """Whether a request begins with the prefix of an entry."""
    unit = oracle.geometry.unit
    if len(history.ahead) * unit < entry.position:
        return False
    owner = oracle.histories[entry.request]
    return history.number(entry.position, unit) == owner.number(entry.position, unit)


def _place(oracle: Oracle, entry: Entry) -> str:
    name = {"full": "attention", "window": "sliding-window", "mamba": "Mamba"}[
        oracle.geometry.groups[entry.group].kind
    ]
    return f"the {name} entry of group {entry.group} at {entry.position} of request {entry.request!r}"
