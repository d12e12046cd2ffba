"""What an engine puts into a store: the keys that are there afterwards, and those that its saves owe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference.cache import Key
from reference.history import History
from reference.oracle import ChunkForecast, Forecast
from reference.store_forecast import Owed
from spec.observation import Entry, Observation, Transfer
from spec.tail import Span, normal_span, tail_blocks, tail_key, tail_span

if TYPE_CHECKING:
    from reference.store_oracle import StoreOracle


def put_keys(oracle: StoreOracle, transfers: tuple[Transfer, ...]) -> dict[Key, Entry]:
    """The keys that the store holds after the transfers of a step."""
    present = dict(oracle.shelf.keys)
    for transfer in transfers:
        if transfer.kind != "get":
            for entry in transfer.entries:
                if entry not in transfer.failed:
                    present.setdefault(oracle.cache.key_of(entry, oracle.histories), entry)
    return present


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
