"""Compares what goes into the store and what is there with what saves owe (TS1 to TS7 but TS4's pins)."""

from __future__ import annotations

from collections.abc import Iterator

from reference.cache import Key
from reference.forecast import ChunkForecast, Forecast, Owed
from reference.history import History
from spec.observation import Entry, Observation, Transfer
from spec.tail import completes, tail_span
from spec.trace import Configuration
from tailproof.judge.findings import Finding
from tailproof.judge.step import Step, exercises, judges

SAVERS = ("producer", "both")


def in_store(step: Step, entry: Entry) -> str:
    """A key of the store in words."""
    kind = "Mamba" if step.kind(entry) == "mamba" else "attention"
    return f"the {kind} key of group {entry.group} at {entry.position} of request {entry.request!r}"


@judges("TS1", "TS2", "TS3", "TS4", "TS5", "TS6")
def puts(step: Step) -> Iterator[Finding]:
    """Mode "puts": exact, for each entry of each put that ended."""
    present = dict(step.expected.store.shelf)
    for transfer in step.view.transfers:
        if transfer.kind == "get":
            continue
        for entry in transfer.entries:
            key, good = step.key(entry), entry not in transfer.failed
            uncomputed = not _computed(step, entry)
            if uncomputed:
                yield _bad(step, "TS2", "uncomputed", entry, "before it was computed")
            elif entry in transfer.wrong:
                yield _bad(step, "TS2", "wrong", entry, "from a block that does not hold it")
            if entry in transfer.unpinned:
                yield _bad(step, "TS4", "unpinned", entry, "from a block that no store job holds")
            if good and key in present:
                yield _bad(step, "TS3", "again", entry, "though the store held it already")
            elif not uncomputed:
                yield from _stray_put(step, entry, key)
            if good:
                present.setdefault(key, entry)


def _bad(step: Step, rule: str, what: str, entry: Entry, words: str, request: str = "") -> Finding:
    text = f"{in_store(step, entry)} was put {words}"
    # A key put twice, or one too many, costs room; only what is wrong in the store stays wrong.
    lasting = rule in ("TS2", "TS4")
    return Finding(
        rule, f"put-{what}", text, request or entry.request, entry.position, entry, lasting=lasting
    )


def _holders(step: Step, entry: Entry) -> list[History]:
    """The requests of this engine that begin with an entry's prefix."""
    engine = step.oracle.engine
    return [
        history
        for history in step.histories.values()
        if history.submit.engine == engine and step.begins(history, entry)
    ]


def _computed(step: Step, entry: Entry) -> bool:
    """Whether the engine has computed, or reused, the prefix of an entry. Requests that were preempted
    had it, and what they put may be on its way."""
    reached = {chunk.history.id: chunk.publications.sure for chunk in step.expected.chunks}
    return any(
        max(history.computed, history.reached_before, reached.get(history.id, 0)) >= entry.position
        for history in _holders(step, entry)
    )


def _stray_put(step: Step, entry: Entry, key: Key) -> Iterator[Finding]:
    """A put where no save ends, named after what would make it right."""
    geometry, group = step.geometry, step.geometry.groups[entry.group]
    where = "where no save ends"
    if group.kind == "mamba":
        expected = step.expected
        if key not in expected.computed and key not in expected.may and key not in step.cache.visible:
            yield _bad(step, "TS1", "stray", entry, where)
        return
    if entry.position % group.block == 0:
        return
    holders = _holders(step, entry)
    tails = [geometry.checkpoint(one.prompt) + group.margin for one in holders]
    if geometry.fine and entry.position in tails:
        return
    for one in holders:
        if entry.position == geometry.checkpoint(one.known) + group.margin:
            words = "as if the checkpoint were that of more than the prompt"
            yield _bad(step, "TS6", "horizon", entry, words, one.id)
            return
        if entry.position == one.junction + group.margin:
            yield _bad(step, "TS5", "junction", entry, "as if a tail ended at the junction", one.id)
            return
    yield _bad(step, "TS1", "stray", entry, where)


def missing_keys(step: Step) -> list[Owed]:
    """What the saves owe and the store does not hold, once they have ended."""
    due = step.expected.store
    if step.view.held_puts:
        return []
    return [one for one in due.owed if one.key not in due.seen and one.key not in due.present]


@judges("TS1", "TS6", "TS7")
def keys(step: Step) -> Iterator[Finding]:
    """Mode "store keys": exact but for what saves may leave out after a failure; read from the master."""
    due, missing = step.expected.store, missing_keys(step)
    for owed in missing:
        yield _missing(step, owed, missing)
    for key, entry in due.seen.items():
        if key not in due.expected:
            text = f"{in_store(step, entry)} is in the store though nothing put it there"
            yield Finding("TS1", "key-unexpected", text, entry.request, entry.position, entry, lasting=False)
    for key, entry in due.expected.items():
        if key not in due.seen:
            text = f"{in_store(step, entry)} is not in the store though it was put and not removed"
            yield Finding("TS1", "key-vanished", text, entry.request, entry.position, entry, lasting=False)


def _missing(step: Step, owed: Owed, missing: list[Owed]) -> Finding:
    entry = owed.entry
    kind = "state" if step.kind(entry) == "mamba" else "tail" if owed.tail else "block"
    text = f"{in_store(step, entry)} is not in the store though the prompt's saves have ended"
    tail = [one for one in missing if one.request == owed.request and one.tail]
    rule, suffix = "TS1", "-resumed" if owed.resumed else ""
    if kind == "tail" and owed.resumed:
        rule = "TS6"
    elif kind == "tail" and not owed.state and len(tail) > 1:
        rule, suffix = "TS7", "-without-state"
    return Finding(rule, f"missing-{kind}{suffix}", text, owed.request, entry.position, entry, lasting=False)


def succeeded(transfer: Transfer) -> tuple[Entry, ...]:
    """The entries that a transfer has moved."""
    gone = set(transfer.failed)
    return () if transfer.error else tuple(entry for entry in transfer.entries if entry not in gone)


def completed(
    configuration: Configuration, observation: Observation, forecast: Forecast
) -> Iterator[ChunkForecast]:
    """The chunks of a step that complete a prompt on an engine that saves prompts."""
    if configuration.roles[observation.engine] in SAVERS:
        for chunk in forecast.chunks:
            end = min(chunk.scheduled.end, chunk.publications.sure)
            if completes(chunk.scheduled.start, end, chunk.history.prompt):
                yield chunk


def learned_junction(chunk: ChunkForecast, forecast: Forecast) -> int:
    """The junction that the request of a chunk knows of by now, 0 for none."""
    learned = {one.history.id: one.admitted.junction for one in forecast.admissions}
    return learned.get(chunk.history.id, chunk.history.junction)


@exercises("TS1", "TS5", "TS6", "TS7")
def prompts_saved(step: Step) -> Iterator[str]:
    """Prompts that are complete now and whose saves can be judged: where a put fails, the saves of the engine
    may be incomplete, and nothing is said of them."""
    store = step.observation.store
    if store is None or not store.alive:
        return
    if not all(succeeded(one) == one.entries for one in store.transfers if one.kind == "put"):
        return
    geometry = step.geometry
    for chunk in completed(step.configuration, step.observation, step.expected):
        history, checkpoint = chunk.history, geometry.checkpoint(chunk.history.prompt)
        if checkpoint:
            yield "TS1"
        if not geometry.fine or not checkpoint:
            continue
        if learned_junction(chunk, step.expected):
            yield "TS5"
        if history.known > history.prompt:
            yield "TS6"
        sizes = (history.prompt, history.known, geometry.unit, geometry.align)
        spans = [tail_span(*sizes, group.margin, geometry.eagle) for group in geometry.attention]
        if any(span.start < span.end for span in spans):
            yield "TS7"


@exercises("TS2", "TS3", "TS4", "SF1", "SF2")
def transferred(step: Step) -> Iterator[str]:
    """Puts, and loads that came in."""
    for transfer in step.view.transfers:
        if transfer.kind == "put":
            if transfer.entries:
                yield from ("TS2", "TS4")
            if succeeded(transfer):
                yield "TS3"
            continue
        loaded = {step.kind(entry) for entry in succeeded(transfer)}
        if "mamba" in loaded:
            yield "SF2"
        if loaded - {"mamba"}:
            yield "SF1"
