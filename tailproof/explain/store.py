"""Tells in words what a step showed of the store, and at the end who holds what and who waits for what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from reference.forecast import AdmissionForecast
from reference.history import History
from reference.oracle import Oracle
from spec.observation import Entry, Observation, Outcome, StoreView, Transfer
from spec.trace import DropKeys, Gate, KillMaster, ResetStore, RestartMaster, Settle, Trace
from spec.trace import Step as TraceStep
from tailproof.explain.evidence import KINDS
from tailproof.explain.words import count, places
from tailproof.judge.step import Step

_CALLS = {"put": "puts", "get": "gets", "lookup": "lookups"}
_ACTIONS = {
    "hold": "are held back",
    "release": "go through again",
    "newest": "are held back but for the latest one",
    "fail": "fail for all keys",
    "raise": "raise an exception",
    "part": "fail for their last key",
    "full": "find no room",
}


def meddling(step: TraceStep) -> str | None:
    """What a step of the trace does to the store, in words; None when it does nothing to it."""
    if isinstance(step, Gate):
        return f"from now on {_CALLS[step.kind]} of engine {step.engine} {_ACTIONS[step.action]}"
    if isinstance(step, DropKeys):
        return (
            f"the store loses its latest {step.count} keys"
            if step.count > 1
            else "the store loses its latest key"
        )
    texts: dict[type, str] = {
        ResetStore: "the store is emptied",
        KillMaster: "the master is killed",
        RestartMaster: "the master is started again, empty",
    }
    return texts.get(type(step))


def is_still(store: StoreView | None) -> bool:
    """Whether a step showed nothing of the store that is worth a line."""
    if store is None:
        return True
    calls = (store.loading, store.loaded, store.failed, store.transfers, store.dropped)
    return not any(calls) and all(answer.known for answer in store.answers)


def shown(step: Step, *, pins: bool) -> Iterator[str]:
    """What a step showed of the store, in words; with `pins`, also which jobs hold blocks and which ended."""
    observation, oracle, store = step.observation, step.oracle, step.observation.store
    if store is None:
        return
    yield from map(_loading, step.expected.loadings)
    yield from (f"the load of {request} has come in" for request in store.loaded)
    yield from (f"the load of {request} has failed" for request in store.failed)
    yield from (f"{one.request} ends with an error" for one in observation.finished if one.reason == "error")
    yield from (f"the store gives no answer for {one.request}" for one in store.answers if not one.known)
    yield from (_transfer(oracle, transfer) for transfer in store.transfers)
    if store.dropped:
        yield f"the store no longer has {entries(oracle, store.dropped)}"
    if pins and store.reported:
        yield f"{_jobs(store.reported)} told to have ended"
    if pins and store.pins:
        yield f"still pinned: {_pinned(store)}"
    if held := _held(store):
        yield f"{held} at a gate"


def _loading(admission: AdmissionForecast) -> str:
    item = admission.admitted
    own = f" on top of {item.local} of its own" if item.local else ""
    return f"{item.request} leaves the queue to load {count(item.external, 'token')}{own}"


def _transfer(oracle: Oracle, transfer: Transfer) -> str:
    verb = "put" if transfer.kind == "put" else "loaded"
    text = f"{entries(oracle, transfer.entries)} {'is' if len(transfer.entries) == 1 else 'are'} {verb}"
    if transfer.error:
        return f"{text}, but the call breaks off ({transfer.error})"
    parts = [text]
    if transfer.failed:
        every = len(transfer.failed) == len(transfer.entries)
        parts.append(f"but {'all of it' if every else entries(oracle, transfer.failed)} fails")
    if transfer.wrong:
        where = "from blocks that hold other content" if transfer.kind == "put" else "with other content"
        parts.append(f"{where}: {entries(oracle, transfer.wrong)}")
    if transfer.unpinned:
        parts.append(f"from blocks that no job holds: {entries(oracle, transfer.unpinned)}")
    return ", ".join(parts)


def entries(oracle: Oracle, listed: Iterable[Entry]) -> str:
    """Entries in words, by request and kind."""
    found: dict[tuple[str, str], list[int]] = {}
    for entry in listed:
        kind = KINDS[oracle.geometry.groups[entry.group].kind]
        found.setdefault((entry.request, kind), []).append(entry.position)
    texts = [f"{kind} at {places(sorted(at))} of {request}" for (request, kind), at in found.items()]
    return " and ".join(texts) or "nothing"


def _jobs(jobs: Sequence[int]) -> str:
    return f"job {jobs[0]} is" if len(jobs) == 1 else f"jobs {', '.join(map(str, jobs))} are"


def _pinned(store: StoreView) -> str:
    return ", ".join(f"{count(pin.blocks, 'block')} by job {pin.job} of {pin.request}" for pin in store.pins)


def _held(store: StoreView) -> str:
    calls = {"put": store.held_puts, "get": store.held_gets, "lookup": store.held_lookups}
    held = [count(number, kind) for kind, number in calls.items() if number]
    waits = "waits" if sum(calls.values()) == 1 else "wait"
    return f"{' and '.join(held)} {waits}" if held else ""


def on_prefix(step: Step, history: History) -> str:
    """What the store holds on the prefix of a request after a step."""
    keys, unit = step.expected.store.seen, step.geometry.unit
    texts = []
    for group in step.geometry.groups:
        reach = range(unit, len(history.numbers) * unit + 1, unit)
        found = [at for at in reach if step.cache.key(group.index, history, at) in keys]
        texts.append(f"{KINDS[group.kind]} at {places(found)}" if found else f"no {KINDS[group.kind]}")
    parts = dict.fromkeys(texts)
    return f"On the prefix of {history.id} the store holds {', '.join(parts)}."


def standing(trace: Trace, outcome: Outcome, index: int) -> Iterator[str]:
    """For each engine, who runs, waits, loads and holds blocks after observation `index`, and which gates are
    not open."""
    seen = outcome.observations[: index + 1]
    gates: dict[tuple[int, str], str] = {}
    for step in trace.steps[: seen[-1].at + 1]:
        if isinstance(step, Gate):
            gates[step.engine, step.kind] = "hold" if step.action == "newest" else step.action
        elif isinstance(step, Settle):
            gates = {at: one for at, one in gates.items() if at[0] != step.engine or one != "hold"}
    for engine in range(len(trace.configuration.roles)):
        mine = [observation for observation in seen if observation.engine == engine]
        told = [one for one in mine if one.store is not None] or mine
        if told:
            shut = [
                f"{_CALLS[kind]} {_ACTIONS[action]}"
                for (at, kind), action in gates.items()
                if at == engine and action != "release"
            ]
            where = "" if trace.configuration.store == "off" else f", at engine {engine}"
            yield _stands(where, told[-1], _still_loading(mine), shut)


def _still_loading(seen: Sequence[Observation]) -> list[str]:
    loading: dict[str, None] = {}
    for observation in seen:
        store = observation.store
        if store is None:
            continue
        for request in (*store.loaded, *store.failed, *(one.request for one in observation.finished)):
            loading.pop(request, None)
        loading.update(dict.fromkeys(item.request for item in store.loading))
    return list(loading)


def _stands(where: str, last: Observation, loading: Sequence[str], shut: Sequence[str]) -> str:
    store = last.store or StoreView()
    waiting = [request for request in last.waiting if request not in loading]
    parts = [
        f"{', '.join(requests)} {verb}{'s' if len(requests) == 1 else ''}"
        for requests, verb in ((last.running, "run"), (waiting, "wait"), (loading, "load"))
        if requests
    ]
    parts.append(f"{count(last.free, 'block')} {'is' if last.free == 1 else 'are'} free")
    if store.pins:
        parts.append(f"{_pinned(store)} are pinned")
    if held := _held(store):
        parts.append(f"{held} at a gate")
    parts.extend(shut)
    if not store.alive:
        parts.append("the master is dead")
    return f"At last{where}: {'; '.join(parts)}."
