"""What an engine puts into a store: which puts are as they must be, and which keys its saves owe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference.cache import Key
from reference.history import History
from reference.oracle import ChunkForecast, Forecast
from reference.store_forecast import BadPut, Owed
from spec.observation import Entry, Observation, Transfer
from spec.tail import Span, normal_span, tail_blocks, tail_key, tail_span

if TYPE_CHECKING:
    from reference.store_oracle import StoreOracle


def put_and_loaded(
    oracle: StoreOracle, transfers: tuple[Transfer, ...], base: Forecast
) -> tuple[dict[Key, Entry], list[BadPut], tuple[Entry, ...]]:
    """The keys present after the transfers, the puts that must not be, and the loads of other bytes."""
    present = dict(oracle.shelf.keys)
    bad: list[BadPut] = []
    spoiled: list[Entry] = []
    reached = {chunk.history.id: chunk.publications.sure for chunk in base.chunks}
    for transfer in transfers:
        if transfer.kind == "get":
            spoiled.extend(transfer.wrong)
            continue
        for entry in transfer.entries:
            key = oracle.cache.key_of(entry, oracle.histories)
            good = entry not in transfer.failed
            uncomputed = not _computed(oracle, entry, reached)
            if uncomputed:
                bad.append(BadPut("uncomputed", entry))
            elif entry in transfer.wrong:
                bad.append(BadPut("wrong", entry))
            if entry in transfer.unpinned:
                bad.append(BadPut("unpinned", entry))
            if good and key in present:
                bad.append(BadPut("again", entry))
            elif not uncomputed and (stray := _stray_put(oracle, entry, key, base)) is not None:
                bad.append(stray)
            if good:
                present.setdefault(key, entry)
    return present, bad, tuple(spoiled)


def _holders(oracle: StoreOracle, entry: Entry) -> list[History]:
    """The requests of this engine that begin with an entry's prefix."""
    owner, unit = oracle.histories[entry.request], oracle.geometry.unit
    number = owner.number(entry.position, unit)
    return [
        history
        for history in oracle.histories.values()
        if history.submit.engine == oracle.engine
        and len(history.ahead) * unit >= entry.position
        and history.number(entry.position, unit) == number
    ]


def _computed(oracle: StoreOracle, entry: Entry, reached: dict[str, int]) -> bool:
    """Whether the engine has computed, or reused, the prefix of an entry. Requests that were preempted
    had it, and what they put may be on its way."""
    return any(
        max(history.computed, history.most, reached.get(history.id, 0)) >= entry.position
        for history in _holders(oracle, entry)
    )


def _stray_put(oracle: StoreOracle, entry: Entry, key: Key, base: Forecast) -> BadPut | None:
    group = oracle.geometry.groups[entry.group]
    if group.kind == "mamba":
        known = key in oracle.materialised or key in base.may or key in oracle.cache.visible
        return None if known else BadPut("stray", entry)
    if entry.position % group.block == 0:
        return None
    holders = _holders(oracle, entry)
    if oracle.geometry.fine and any(
        entry.position == oracle.geometry.checkpoint(one.prompt) + group.margin for one in holders
    ):
        return None
    for one in holders:
        if entry.position == oracle.geometry.checkpoint(one.known) + group.margin:
            return BadPut("horizon", entry, one.id)
        if entry.position == one.junction + group.margin:
            return BadPut("junction", entry, one.id)
    return BadPut("stray", entry)


def newly_owed(oracle: StoreOracle, observation: Observation, base: Forecast) -> list[Owed]:
    """The keys that the saves of prompts completed in this step bring (TS1, TS6, TS7)."""
    owed: list[Owed] = []
    for chunk in base.chunks:
        history = chunk.history
        begins = any(item.request == history.id for item in observation.admitted)
        covered = history.id in oracle.covered and not begins
        if covered or chunk.publications.sure < history.prompt or history.id in oracle.excused:
            continue
        made = set() if begins else oracle.made.get(history.id, set())
        now = made_by(oracle, chunk, observation)
        began = oracle.shelf.clock if begins else oracle.began.get(history.id, 0)
        for key, entry, tail in _due_keys(oracle, history, made | now):
            # What the store lost after it was saved is not saved again.
            if oracle.shelf.lost.get(key, -1) >= began:
                continue
            owed.append(Owed(key, entry, history.id, tail, history.id in oracle.again, bool(now)))
    return owed


def made_by(oracle: StoreOracle, chunk: ChunkForecast, observation: Observation) -> set[int]:
    """The positions of states that a chunk computed and that became visible in the engine's own cache."""
    visible = oracle.cache.visible | {
        oracle.cache.key_of(one, oracle.histories) for one in observation.published
    }
    states = {group.index for group in oracle.geometry.mamba}
    return {
        position
        for group, position in chunk.publications.must
        if group in states and oracle.cache.key(group, chunk.history, position) in visible
    }


def _due_keys(oracle: StoreOracle, history: History, made: set[int]) -> list[tuple[Key, Entry, bool]]:
    geometry, prompt = oracle.geometry, history.prompt
    normal = normal_span(prompt, geometry.align)
    checkpoint = geometry.checkpoint(prompt)
    places: dict[tuple[int, int], bool] = {}
    for group in geometry.attention:
        span = Span(0, 0)
        if geometry.fine:
            span = tail_span(
                prompt, history.known, geometry.unit, geometry.align, group.margin, geometry.eagle
            )
        indices = tail_blocks(span, group.block)
        for index in range(indices.start, indices.end):
            places[group.index, tail_key(index, span, group.block)] = True
        for end in range(group.block, normal.end + 1, group.block):
            places[group.index, end] = False
    if checkpoint and checkpoint in made:
        places.update(((group.index, checkpoint), True) for group in geometry.mamba)
    return [
        (oracle.cache.key(group, history, at), Entry(group, at, history.id), tail)
        for (group, at), tail in places.items()
    ]
