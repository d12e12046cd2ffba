"""One engine: vLLM's real `Scheduler` and `KVCacheManager` on a trace, with exact content and no model."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from adapters.memory import Memory
from adapters.protocol import AdapterError
from adapters.vllm import boundaries
from adapters.vllm.building import Requests, Target, build_scheduler
from adapters.vllm.names import check_instance
from adapters.vllm.reading import Prefixes, counters, free_blocks, holders
from adapters.vllm.side import Side
from spec.exact_model import with_media
from spec.geometry import Geometry
from spec.liveness import settle_bound
from spec.observation import (
    Admitted,
    Counters,
    Entry,
    Event,
    Failure,
    Finished,
    Observation,
    Scheduled,
)
from spec.trace import (
    NAMES,
    Abort,
    Configuration,
    ResetLocal,
    Run,
    Settle,
    Step,
    Submit,
    TraceError,
    prompt_tokens,
)

if TYPE_CHECKING:
    from adapters.vllm.runner import Sampled


class Engine:
    """One real scheduler with its worker stand-in, and what goes on with a store beside it (`side`).

    Raises:
        TraceError: when the configuration needs what this version does not have.
        GeometryError: when the layout is refused.
        AdapterError: when vLLM resolves other sizes than the spec does.
    """

    def __init__(self, target: Target, configuration: Configuration, omit: str, side: Side) -> None:
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
        from vllm.v1.request import RequestStatus
        from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

        from adapters.vllm.runner import Runner

        self.configuration = configuration
        self.side = side
        self.target = target
        boundaries.refuse(configuration, target.release, target.version)
        self.geometry = Geometry.of(configuration)
        self.seconds = 0.0
        self._made = Requests(target, configuration, self.geometry)
        self._draft_tokens: Any = DraftTokenIds
        self._model_output: Any = ModelRunnerOutput
        self._aborted: Any = RequestStatus.FINISHED_ABORTED
        words = max(group.block for group in self.geometry.groups)
        self.memory = Memory(configuration.blocks, words)
        self.scheduler, self._units = self.timed(
            build_scheduler, target, configuration, self.geometry, side, self.memory.raw
        )
        manager = self.scheduler.kv_cache_manager
        self.pool = manager.block_pool
        self._evicted = self._wasted = 0
        self._events: list[Any] = []
        self._in_flight: deque[tuple[Any, dict[str, Sampled]]] = deque()
        self.lookups: dict[str, tuple[set[bytes], set[bytes]]] = {}
        for kind, value in (
            ("Scheduler", self.scheduler),
            ("KVCacheManager", manager),
            ("KVCacheCoordinator", manager.coordinator),
            ("BlockPool", self.pool),
            ("FreeKVCacheBlockQueue", self.pool.free_block_queue),
            ("BlockHashToBlockMap", self.pool.cached_block_hash_to_block),
        ):
            check_instance(kind, value, target.version)
        if manager.coordinator.enable_partial_hash_hits != self.geometry.fine:
            raise AdapterError(
                f"vLLM {target.version} decides fine-grained hits as "
                f"{manager.coordinator.enable_partial_hash_hits}, the spec as {self.geometry.fine}"
            )
        self.runner = Runner(
            configuration,
            self.geometry,
            lambda copies: self.timed(
                copy_kv_cache_blocks_inplace, [self.memory.raw], configuration.blocks, copies
            ),
            boundaries.prefill_checkpoints(target.release, self.geometry.hash_lookahead),
            omit,
            self.memory,
            self._units,
        )
        self._requests: dict[str, Any] = {}
        self._counters = Counters()
        self._sampled: dict[str, list[int]] = {}
        self._cached: dict[str, int | None] = {}
        self.prefixes = side.prefixes or Prefixes(configuration.unit, configuration.events)
        self._visible: set[bytes] = set()
        self._running: set[str] = set()
        self._watch_lookups(manager)
        self._watch_allocations()
        if configuration.events:
            self.scheduler.kv_event_publisher.publish = lambda batch: self._events.extend(batch.events)
        self._output_checked = False
        side.join(self)

    def _watch_lookups(self, manager: Any) -> None:
        """Note what is visible at the moment of each lookup; the call itself goes through unchanged."""
        lookup = manager.get_computed_blocks

        def watched(request: Any, *limits: Any) -> Any:
            began = time.perf_counter()
            now = set(self.pool.cached_block_hash_to_block._cache)
            self.lookups[request.request_id] = (now - self._visible, self._visible - now)
            self.seconds -= time.perf_counter() - began
            return lookup(request, *limits)

        manager.get_computed_blocks = watched

    def _watch_allocations(self) -> None:
        """Count the blocks handed out with entries in them; the call itself goes through unchanged."""
        allocate = self.pool.get_new_blocks

        def watched(count: int) -> Any:
            began = time.perf_counter()
            taken = list(islice(free_blocks(self.pool), count))
            evicted = sum(block.block_hash is not None for block in taken)
            if evicted:
                rest = islice(free_blocks(self.pool), count, None)
                self._evicted += evicted
                self._wasted += min(evicted, sum(block.block_hash is None for block in rest))
            self.seconds -= time.perf_counter() - began
            return allocate(count)

        self.pool.get_new_blocks = watched

    def units(self) -> tuple[int, int] | None:
        """The hash unit and the grid of hits that vLLM hands to its workers, in tokens (EL2)."""
        unit, grid = self._units
        return None if grid is None else (unit, grid)

    def timed(self, call: Callable[..., Any], *values: Any, **options: Any) -> Any:
        """The result of a call into vLLM, whose time counts."""
        began = time.perf_counter()
        try:
            return call(*values, **options)
        finally:
            self.seconds += time.perf_counter() - began

    def target_seconds(self) -> float:
        """Seconds spent inside vLLM so far."""
        return self.seconds

    def step(self, at: int, step: Step) -> Iterator[Observation]:
        """Run one step of the trace.

        Raises:
            TraceError: for a step that concerns the store.
            AdapterError: when the target did what the adapter cannot follow.
        """
        if isinstance(step, Submit):
            yield self._submit(at, step)
        elif isinstance(step, Run):
            for _ in range(step.steps):
                yield self._engine_step(at, "run", step.accept)
        elif isinstance(step, Settle):
            if self.side.opens():
                yield self.look(at, "gate")
            yield from self._settle(at, step.accept)
        elif isinstance(step, Abort):
            yield self._abort(at, step)
        elif isinstance(step, ResetLocal):
            yield self._reset(at, step)
        else:
            raise TraceError(f"steps[{at}] ({NAMES[type(step)]}): not a step of the core tier")

    def _submit(self, at: int, step: Submit) -> Observation:
        before = self.seconds
        self._made.refuse(at, step)
        tokens = prompt_tokens(step.prompt, self.prefixes.turns)
        self.runner.submit(step.id, with_media(tokens, step.media), step.outputs, step.root)
        self.side.submitted(step.id, self.runner.requests[step.id].content)
        self.prefixes.turns[step.id] = tokens + self.runner.requests[step.id].content.sampled
        request = self.timed(self._made.make, step, tokens)
        if not self._requests:
            check_instance("Request", request, self.target.version)
        self._requests[step.id] = request
        self._sampled[step.id] = []
        self.prefixes.learn(step.id, request.block_hashes)
        self.timed(self.scheduler.add_request, request)
        return self._observe(at, "submit", before)

    def _abort(self, at: int, step: Abort) -> Observation:
        before = self.seconds
        ended = self.timed(self.scheduler.finish_requests, step.id, self._aborted)
        finished = tuple(self._finish(request.request_id, "abort") for request in ended)
        return self._observe(at, "abort", before, finished=finished)

    def _reset(self, at: int, step: ResetLocal) -> Observation:
        before = self.seconds
        done = False
        try:
            done = self.timed(self.scheduler.reset_prefix_cache, reset_running_requests=step.running)
        except RuntimeError:
            # How vLLM refuses a forced reset while loads or saves hold blocks; its requests live on.
            if not (step.running and self.side.holds_blocks()):
                raise
        return self._observe(at, "reset_local", before, reset=bool(done))

    def _settle(self, at: int, accept: int) -> Iterator[Observation]:
        idle = steps = 0
        tokens = sum(request.num_prompt_tokens + request.max_tokens for request in self._requests.values())
        bound = settle_bound(tokens, len(self._requests))
        idle_steps = self.side.idle_steps
        while self._requests or self._in_flight or self.side.unsettled():
            observation = self._engine_step(at, "settle", accept)
            steps += 1
            moved = observation.scheduled or observation.finished or self.side.moved(observation)
            idle = 0 if moved else idle + 1
            if not self._requests and idle >= idle_steps:
                yield observation
                return
            if self._requests and (idle >= idle_steps or steps > bound):
                left = ", ".join(self._requests)
                what = f"{idle} steps scheduled nothing" if idle else f"{steps} steps were not enough"
                failure = Failure(
                    "stuck", f"{what}, still unfinished: {left}", "\n".join(holders(self.scheduler))
                )
                yield self._observe(at, "settle", self.seconds, failure=failure)
                return
            yield observation

    def close(self) -> None:
        """Give up what the case held."""
        self.side.close()

    def look(self, at: int, do: str, before: float | None = None) -> Observation:
        """What is to be seen now; `before` tells the seconds spent in vLLM until the step began."""
        return self._observe(at, do, self.seconds if before is None else before)

    def _engine_step(self, at: int, do: str, accept: int) -> Observation:
        """One schedule and one update; asynchronous scheduling updates with the outputs of the step before,
        as the engine core does with two batches in flight."""
        before = self.seconds
        self.lookups.clear()
        self._evicted = self._wasted = 0
        self._events = []
        self._counters = Counters()
        scheduled: tuple[Scheduled, ...] = ()
        admitted: tuple[Admitted, ...] = ()
        preempted: tuple[str, ...] = ()
        self.runner.failed, self.runner.verified = [], 0
        if self._requests or not self._in_flight:
            output = self.timed(self.scheduler.schedule)
            if not self._output_checked:
                check_instance("SchedulerOutput", output, self.target.version)
                check_instance("CachedRequestData", output.scheduled_cached_reqs, self.target.version)
                self._output_checked = True
            sampled = self.side.execute(output, lambda: self.runner.execute(output, accept))
            scheduled, admitted = self._read_schedule(output)
            preempted = tuple(sorted(set(output.preempted_req_ids or ()) & self._running))
            self._in_flight.append((output, sampled))
        finished: tuple[Finished, ...] = ()
        updated = not self.configuration.asynchronous or not scheduled or len(self._in_flight) > 1
        if updated:
            finished = self._update(*self._in_flight.popleft())
        return self._observe(
            at,
            do,
            before,
            scheduled=scheduled,
            admitted=admitted,
            preempted=preempted,
            finished=finished,
            failed_reads=tuple(self.runner.failed),
            evicted=self._evicted,
            wasted=self._wasted,
            events=self._published_events() if updated else None,
            counters=self._counters if updated else None,
            verified=self.runner.verified,
        )

    def _read_schedule(self, output: Any) -> tuple[tuple[Scheduled, ...], tuple[Admitted, ...]]:
        fresh = {new.req_id for new in output.scheduled_new_reqs}
        fresh |= set(output.scheduled_cached_reqs.resumed_req_ids)
        scheduled = tuple(Scheduled(item.id, item.start, item.end, item.drafts) for item in self.runner.work)
        fresh -= self.side.promoted([item.request for item in scheduled])
        found = [self.admitted(item.request, item.start, 0) for item in scheduled if item.request in fresh]
        return scheduled, tuple(found)

    def admitted(self, request: str, local: int, external: int) -> Admitted:
        """A request that leaves the queue with these hits, in tokens, and what its lookup saw."""
        appeared, gone = self.lookups.get(request, (set(), set()))
        return Admitted(
            request,
            local,
            external,
            junction=self.scheduler.requests[request].shared_prefix_boundary,
            appeared=self.prefixes.entries(appeared),
            gone=self.prefixes.entries(gone),
        )

    def _update(self, output: Any, sampled: dict[str, Sampled]) -> tuple[Finished, ...]:
        requests = [name for name in sampled if name in self._requests or self.configuration.asynchronous]
        # The scheduler keeps the tokens that the prefix really has, so that a wrong sample stays one failure.
        fed = []
        for name in requests:
            live, took = self.runner.requests.get(name), sampled[name]
            right = live.content.sampled[took.first : took.first + len(took.tokens)] if live else took.tokens
            fed.append(right)
        answer = self._model_output(
            **self.side.answer(),
            req_ids=requests,
            req_id_to_index={request: index for index, request in enumerate(requests)},
            sampled_token_ids=fed,
        )
        outputs = self.timed(self.scheduler.update_from_output, output, answer)
        finished = []
        for batch in outputs.values():
            if batch.scheduler_stats is not None:
                self._counters = counters(batch.scheduler_stats.prefix_cache_stats)
            for item in batch.outputs:
                if item.prefill_stats is not None:
                    self._cached[item.request_id] = item.prefill_stats.num_cached_tokens
                if item.request_id in sampled:
                    taken = sampled[item.request_id].tokens[: len(item.new_token_ids)]
                    self._sampled[item.request_id].extend(taken)
                if item.finish_reason is not None:
                    finished.append(self._finish(item.request_id, str(item.finish_reason)))
        for request in requests:
            if request in self._requests:
                self.prefixes.learn(request, self._requests[request].block_hashes)
        if self.configuration.speculative and not self.configuration.asynchronous:
            proposing = [name for name in requests if sampled[name].tokens and name in self._requests]
            tokens = [[1] * self.configuration.speculative for _ in proposing]
            if proposing:
                self.timed(self.scheduler.update_draft_token_ids, self._draft_tokens(proposing, tokens))
        return tuple(finished)

    def _finish(self, request: str, reason: str) -> Finished:
        self.prefixes.learn(request, self._requests.pop(request).block_hashes)
        self.runner.forget(request)
        return Finished(request, reason, tuple(self._sampled.pop(request)), self._cached.pop(request, None))

    def _published_events(self) -> tuple[Event, ...] | None:
        return tuple(map(self.prefixes.event, self._events)) if self.configuration.events else None

    def _observe(self, at: int, do: str, before: float, **seen: Any) -> Observation:
        visible = set(self.pool.cached_block_hash_to_block._cache)
        published: tuple[Entry, ...] = ()
        withdrawn: tuple[Entry, ...] = ()
        if visible != self._visible:
            published = self.prefixes.entries(visible - self._visible)
            withdrawn = self.prefixes.entries(self._visible - visible)
            self._visible = visible
        running = tuple(request.request_id for request in self.scheduler.running)
        self._running = set(running)
        seen |= self.side.seen()
        return Observation(
            at=at,
            do=do,
            published=published,
            withdrawn=withdrawn,
            running=running,
            waiting=tuple(name for name in self._requests if name not in running),
            free=self.pool.get_num_free_blocks(),
            seconds=self.seconds - before,
            **seen,
        )
