"""The store side of one real engine: the connector attached to it, its gate, and what is seen of both."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from adapters.memory import Content
from adapters.mooncake.backend import Backend
from adapters.mooncake.gate import KINDS, Call, Gate
from adapters.vllm.connector import WorkerRole, prepare, transfer_config
from adapters.vllm.directory import Directory
from adapters.vllm.engine import Engine
from adapters.vllm.names import check_instance
from adapters.vllm.side import Side
from spec.observation import Admitted, Answer, Entry, Failure, Observation, Pin, StoreView, Transfer
from spec.trace import Configuration
from spec.trace import Gate as GateStep

if TYPE_CHECKING:
    from adapters.vllm.runner import Sampled

_NULL = 0


class StoreSide(Side):
    """That of engine `number` of a case in a store `role`. `contents` holds what each request's cache must
    hold, for all engines of the case.

    Of the steps of the content check, h (the bytes of loads) and i (those of saves) are its own; `omit`
    leaves steps out.
    """

    idle_steps = 8
    engine: Engine

    def __init__(
        self,
        configuration: Configuration,
        omit: str,
        number: int,
        store: Backend,
        directory: Directory,
        contents: dict[str, Content],
    ) -> None:
        self.number = number
        self._configuration = configuration
        self._store, self._directory, self._contents = store, directory, contents
        self.prefixes = directory.prefixes
        immediate = () if configuration.lookup_async else ("lookup",)
        hollow = [kind for kind, letter in (("get", "h"), ("put", "i")) if letter in omit]
        self.gate = Gate(frozenset(immediate), frozenset(hollow))
        self.worker: WorkerRole | None = None
        self.side: Any = None
        self._told: Any = None
        self._asked: list[tuple[str, Any]] = []
        self._pending: list[Any] = []
        self._external: dict[str, int] = {}
        self._away: set[str] = set()
        self._jobs: dict[int, str] = {}
        self._clear()

    def _clear(self) -> None:
        self._loading: list[str] = []
        self._loaded: tuple[str, ...] = ()
        self._failed: tuple[str, ...] = ()
        self._reported: tuple[int, ...] = ()
        self._answers: list[Answer] = []
        self._transfers: list[Transfer] = []
        self._unpinned: tuple[Entry, ...] = ()
        self._wrong: tuple[Entry, ...] = ()

    # Setting up.

    def configured(self, vllm_config: Any, configuration: Configuration) -> Any:
        """A copy of vLLM's configuration with the connector in it."""
        config = copy.copy(vllm_config)
        config.kv_transfer_config = transfer_config(configuration, configuration.roles[self.number])
        prepare(config)
        return config

    def attach(self, vllm_config: Any, layout: Any, units: tuple[int, int | None], memory: Any) -> None:
        """Set up the worker's half of the connector."""
        # As the engine core hands them to its workers.
        layout.hash_block_size, layout.cache_hit_alignment_tokens = units
        names = [name for group in layout.kv_cache_groups for name in group.layer_names]
        receivers = self._configuration.receivers
        self.worker = WorkerRole(vllm_config, layout, names, memory, self._store, self.gate, receivers)

    def join(self, engine: Engine) -> None:
        """Take note of the engine, and watch its connector."""
        self.engine = engine
        self.side = engine.scheduler.connector.connector_scheduler
        for kind, value in (
            ("MooncakeStoreScheduler", self.side),
            ("LookupKeyClient", self.side.client),
            ("MooncakeStoreWorker", self._role().worker),
            ("LookupKeyServer", self._role().worker.lookup_server),
        ):
            check_instance(kind, value, engine.target.version)
        self._watch_connector()

    def _role(self) -> WorkerRole:
        assert self.worker is not None
        return self.worker

    def _watch_connector(self) -> None:
        """Note lookups and loads; the calls themselves go through unchanged."""
        connector, client = self.engine.scheduler.connector, self.side.client
        look_up, allocated = client.lookup, connector.update_state_after_alloc

        def watched_lookup(request: str, *values: Any, **options: Any) -> Any:
            known = client.futures.get(request)
            if known is not None:
                return look_up(request, *values, **options)
            futures: dict[str, Any] = client.futures
            result = None
            try:
                result = look_up(request, *values, **options)
            finally:
                self._asked.append((request, futures.get(request)))
                if request in futures:
                    self._pending.append(futures[request])
            return result

        def watched_allocation(request: Any, blocks: Any, external: int) -> Any:
            if external > 0:
                self._loading.append(request.request_id)
                self._external[request.request_id] = external
            return allocated(request, blocks, external)

        client.lookup = watched_lookup
        connector.update_state_after_alloc = watched_allocation

    # Steps.

    def opens(self) -> bool:
        """Let what is held at the gates go, before a settle; whether anything was."""
        held = [kind for kind in KINDS if self.gate.actions[kind] == "hold"]
        self.gate.actions.update(dict.fromkeys(held, "release"))
        stood = any(map(self.gate.waiting, held))
        if stood:
            self._drain()
        return stood

    def set_gate(self, step: GateStep) -> None:
        """Set a gate; what it lets go ends now."""
        kind = step.kind
        if step.action == "newest":
            self.gate.settle(kind, self._at_rest(kind))
            if self.gate.waiting(kind):
                self.gate.run(self.gate.let_go(kind, newest=True), self._before, self._after)
                self.gate.settle(kind, self._at_rest(kind))
            self.gate.actions[kind] = "hold"
        else:
            self.gate.actions[kind] = step.action
            self._drain()

    def reset_store(self) -> None:
        """Empty the store as the engine's own API does."""
        kept = dict(self.gate.actions)
        for kind in ("put", "lookup"):
            self.gate.actions[kind] = "release"
        self._drain()
        self.engine.timed(self.engine.scheduler.reset_connector_cache)
        self.gate.actions.update(kept)

    def submitted(self, request: str, content: Content) -> None:
        """A request has arrived, whose cache must hold this."""
        self._contents[request] = content

    def holds_blocks(self) -> bool:
        """Whether loads or saves hold blocks."""
        return bool(self.side._pinned_saves or self._away)

    def execute(self, output: Any, forward: Callable[[], dict[str, Sampled]]) -> dict[str, Sampled]:
        """The connector's part of a step around the forward; what was sampled, by request."""
        for name in self._loading:
            self._away.add(name)
        for meta in output.kv_connector_metadata.requests:
            if meta.store_job_id is not None:
                self._jobs[meta.store_job_id] = meta.req_id
        began = time.perf_counter()
        with self._role().step(output) as told:
            ours = time.perf_counter()
            sampled = forward()
            ours = time.perf_counter() - ours
        self._told = told
        self._drain()
        self.engine.seconds += time.perf_counter() - began - ours
        failed = set(told.failed_recving or ())
        self._failed = tuple(sorted(failed))
        self._loaded = tuple(sorted(set(told.finished_recving or ()) - failed))
        saves = told.kv_connector_worker_meta
        self._reported = tuple(sorted(saves.completed_saves)) if saves is not None else ()
        return sampled

    def answer(self) -> dict[str, Any]:
        """What the worker tells the scheduler of loads and saves."""
        return {"kv_connector_output": self._told}

    def promoted(self, scheduled: Sequence[str]) -> set[str]:
        """Of the scheduled requests those that loaded."""
        gone = {*scheduled} & self._away
        self._away -= gone
        return gone

    def unsettled(self) -> bool:
        """Whether loads or saves are left to wait for."""
        return bool(self.side._pinned_saves or self.engine.scheduler.requests)

    def moved(self, observation: Observation) -> bool:
        """Whether a step brought loads or saves forward."""
        view = observation.store
        assert view is not None
        return any((view.loading, view.loaded, view.failed, view.reported))

    # The gate.

    def _drain(self) -> None:
        for kind in ("put", "get", "lookup"):
            if kind not in self.gate.immediate:
                self.gate.drain(kind, self._at_rest(kind), self._before, self._after)
        self._note_answers()

    def _at_rest(self, kind: str) -> Any:
        if kind == "put":
            return self._role().puts_at_rest
        return self._role().gets_at_rest if kind == "get" else self._lookups_at_rest

    def _lookups_at_rest(self, waiting: int) -> bool:
        self._pending = [future for future in self._pending if not future.done()]
        return bool(waiting or not self._pending or not self._role().worker.lookup_server.thread.is_alive())

    def _note_answers(self) -> None:
        """Which lookups have been answered, in the order of their asking."""
        calls = self.gate.passed
        for call in calls:
            self._answers.append(Answer(self._next_asked(), _known(call)))
        calls.clear()

    def _next_asked(self) -> str:
        """Whose lookup reaches the store next; those of requests that went away before never do."""
        request, future = self._asked.pop(0)
        while future is not None and future.cancelled():
            request, future = self._asked.pop(0)
        return request

    def _before(self, call: Call) -> None:
        if call.kind != "put" or call.probe:
            return
        pinned = {block for blocks, _ in self.side._pinned_saves.values() for block in blocks}
        blocks = [self._role().block(address) for address in call.addresses]
        entries = [self._directory.entry(key) for key in call.keys]
        self._unpinned = tuple(
            entry for entry, block in zip(entries, blocks, strict=True) if block not in pinned
        )
        self._wrong = self._not_right(entries, blocks)

    def _after(self, call: Call) -> None:
        if call.kind == "lookup":
            if self._asked:
                self._answers.append(Answer(self._next_asked(), _known(call)))
            return
        if call.probe:
            return
        entries = [self._directory.entry(key) for key in call.keys]
        results = call.results or [-1] * len(entries)
        failed = tuple(entry for entry, result in zip(entries, results, strict=True) if result < 0)
        wrong, unpinned = self._wrong, self._unpinned
        if call.kind == "get":
            unpinned = ()
            blocks = [self._role().block(address) for address in call.addresses]
            good = [index for index, result in enumerate(results) if result >= 0]
            wrong = self._not_right([entries[one] for one in good], [blocks[one] for one in good])
        self._transfers.append(Transfer(call.kind, tuple(entries), failed, wrong, unpinned, call.error))

    def _not_right(self, entries: list[Entry], blocks: list[int]) -> tuple[Entry, ...]:
        """The entries whose block does not hold the content of their prefix."""
        return tuple(
            entry for entry, block in zip(entries, blocks, strict=True) if not self._holds(block, entry)
        )

    def _holds(self, block: int, entry: Entry) -> bool:
        import torch

        content, group = self._contents[entry.request], self.engine.geometry.groups[entry.group]
        if group.kind == "mamba":
            return self.engine.memory.holds_state(block, int(content.state[entry.position]))
        start = (entry.position - 1) // group.block * group.block
        held = self.engine.memory.pages[block, : entry.position - start]
        return bool(torch.equal(held, content.kv[start : entry.position]))

    # What is seen.

    def seen(self) -> dict[str, Any]:
        """What has happened of the store since this was last asked, and its failure if it has one."""
        for request in self._failed:
            self._away.discard(request)
        stored, dropped = self._directory.changes()
        fault = self._store.fault()
        # Versions before 0.30 have no jobs that begin with the end of a request.
        ending = getattr(self.side, "_finished_partial_tail_metas", {})
        late = {meta.store_job_id: meta.req_id for meta in ending.values()}
        self._jobs.update(late)
        view = StoreView(
            loading=tuple(self._load(request) for request in self._loading),
            loaded=self._loaded,
            failed=self._failed,
            answers=tuple(self._answers),
            transfers=tuple(self._transfers),
            stored=stored,
            dropped=dropped,
            pins=tuple(
                Pin(job, self._jobs.get(job, ""), len(blocks), job not in late)
                for job, (blocks, _) in sorted(self.side._pinned_saves.items())
            ),
            reported=self._reported,
            miscounted=self._miscounted(),
            held_puts=self.gate.waiting("put"),
            held_gets=self.gate.waiting("get"),
            held_lookups=self.gate.waiting("lookup"),
            alive=self._store.servers.master.alive,
        )
        self._clear()
        failure = {"failure": Failure("store", fault)} if fault else {}
        return {"engine": self.number, "store": view, **failure}

    def _load(self, request: str) -> Admitted:
        live, external = self.engine.scheduler.requests[request], self._external[request]
        return self.engine.admitted(request, live.num_computed_tokens - external, external)

    def _miscounted(self) -> int:
        counts: Counter[int] = Counter()
        for manager in self.engine.scheduler.kv_cache_manager.coordinator.single_type_managers:
            for blocks in manager.req_to_blocks.values():
                counts.update(block.block_id for block in blocks if not block.is_null)
        for held, _ in self.side._pinned_saves.values():
            counts.update(held)
        return sum(block.ref_cnt != counts[block.block_id] for block in self.engine.pool.blocks[_NULL + 1 :])

    def close(self) -> None:
        """End the case: what stands at the gates goes through, then threads and sockets end."""
        if self.worker is None or self.side is None:
            return
        self.gate.actions = dict.fromkeys(KINDS, "release")
        self._drain()
        self.worker.close(self.side)
        self.worker = None


def _known(call: Call) -> bool:
    return not call.error and not call.fate and call.results is not None and min(call.results, default=0) >= 0
