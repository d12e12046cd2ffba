"""Reads what vLLM shows: keys and events as entries of known prefixes, counters, who holds which block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from adapters.protocol import AdapterError
from spec.observation import Counters, Entry, Event


class Prefixes:
    """Which prefix each hash of the target stands for; the first request to have it names it.

    `turns` are the tokens of each request, prompt and outputs.
    """

    def __init__(self, unit: int, events: bool) -> None:
        from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
        from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, maybe_convert_block_hash

        self.turns: dict[str, list[int]] = {}
        self._unit = unit
        self._events = events
        self._places: dict[bytes, tuple[str, int]] = {}
        self._published: dict[Any, tuple[str, int]] = {}
        self._known: dict[str, int] = {}
        self._get_block_hash: Any = get_block_hash
        self._get_group_id: Any = get_group_id
        self._published_hash: Any = maybe_convert_block_hash
        self._kinds = {BlockStored: "stored", BlockRemoved: "removed", AllBlocksCleared: "cleared"}

    def learn(self, request: str, hashes: Sequence[bytes]) -> None:
        """Take over the hashes that a request has by now."""
        for index in range(self._known.get(request, 0), len(hashes)):
            place = (request, (index + 1) * self._unit)
            self._places.setdefault(hashes[index], place)
            if self._events:
                self._published.setdefault(self._published_hash(hashes[index]), place)
        self._known[request] = len(hashes)

    def entries(self, keys: Iterable[bytes]) -> tuple[Entry, ...]:
        """The entries that cache keys stand for, in a fixed order.

        Raises:
            AdapterError: for a key of no known prefix.
        """
        return tuple(sorted(map(self._entry, keys), key=_order))

    def _entry(self, key: bytes) -> Entry:
        found = self._places.get(self._get_block_hash(key))
        if found is None:
            raise AdapterError("a prefix-cache key of the target belongs to no known prefix")
        request, position = found
        return Entry(self._get_group_id(key), position, request)

    def place(self, block_hash: bytes) -> tuple[str, int]:
        """The request that names a prefix, and the prefix's length in tokens, by its hash alone.

        Raises:
            AdapterError: for a hash of no known prefix.
        """
        found = self._places.get(block_hash)
        if found is None:
            raise AdapterError("a store key of the target belongs to no known prefix")
        return found

    def event(self, event: Any) -> Event:
        """A KV event of the target.

        Raises:
            AdapterError: when it names a prefix that nobody has.
        """
        kind = self._kinds[type(event)]
        if kind == "cleared":
            return Event(kind)
        places = [self._published.get(key) for key in event.block_hashes]
        if None in places:
            raise AdapterError("a KV event of the target names a prefix that nobody has")
        entries = tuple(Entry(event.group_idx, place[1], place[0]) for place in places if place)
        if kind == "removed":
            return Event(kind, entries)
        start = 0 if event.parent_block_hash is None else self._published[event.parent_block_hash][1]
        matches = True
        if entries:
            # The owner of the entry may go on differently from the request that published it again.
            end = entries[-1].position
            whole = self.turns[entries[-1].request]
            matches = list(event.token_ids)[: end - start] == whole[start:end]
        return Event(kind, entries, start, len(event.token_ids), matches)


def _order(entry: Entry) -> tuple[int, int, str]:
    return entry.group, entry.position, entry.request


def holders(scheduler: Any) -> Iterator[str]:
    """Who holds how many blocks, and who waits for what, in one line each."""
    manager = scheduler.kv_cache_manager
    pool, managers = manager.block_pool, manager.coordinator.single_type_managers
    yield f"{pool.get_num_free_blocks()} of {pool.num_gpu_blocks - 1} blocks are free"
    running = {request.request_id for request in scheduler.running}
    for name, request in scheduler.requests.items():
        held = [sum(not block.is_null for block in one.req_to_blocks.get(name, ())) for one in managers]
        groups = ", ".join(f"{count} of group {index}" for index, count in enumerate(held))
        state = "runs" if name in running else "waits"
        yield (
            f"{name} {state} with {request.num_computed_tokens} of {request.num_tokens} tokens computed and "
            f"holds {sum(held)} blocks ({groups})"
        )


def free_blocks(pool: Any) -> Iterator[Any]:
    """The blocks that can be handed out, in order."""
    queue = pool.free_block_queue
    block = queue.fake_free_list_head.next_free_block
    while block is not queue.fake_free_list_tail:
        yield block
        block = block.next_free_block


def counters(stats: Any) -> Counters:
    """The prefix-cache counters of one step."""
    return Counters(
        stats.requests,
        stats.queries,
        stats.hits,
        stats.preempted_requests,
        stats.preempted_queries,
        stats.preempted_hits,
    )
