"""The slow engine: a whole system that obeys the spec, run as a target of its own (`reference`).

First come first served, unlimited memory, every rule one small method, so that a planted fault is a
subclass that overrides one of them. It publishes exactly what must be visible and nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from reference.cache import Key, Lookup, SlowCache
from reference.exact_model import first_state, next_state, output_token, states
from reference.history import History, Prefixes
from reference.publish import Publications, publications
from spec.chunking import can_export, junction_stop, required_stops, settle_bound
from spec.geometry import Geometry
from spec.lookup import window_blocks
from spec.observation import (
    Admitted,
    Counters,
    Entry,
    Event,
    FailedRead,
    Failure,
    Finished,
    Observation,
    Scheduled,
)
from spec.trace import NAMES, Abort, Configuration, ResetLocal, Run, Settle, Step, Submit, TraceError

IDLE_STEPS = 3


class SlowEngine:
    """One configuration of the reference, alive for one trace."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.geometry = self.layout(Geometry.of(configuration))
        self.prefixes = Prefixes(configuration.unit)
        self.cache = SlowCache(self.geometry)
        self.histories: dict[str, History] = {}
        self.content: dict[Key, int] = {}
        self.owners: dict[Key, Entry] = {}
        self.running: list[History] = []
        self.waiting: list[History] = []
        self.expected: dict[str, list[int]] = {}
        self.held: dict[str, int] = {}
        self.sampled: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.leaked = 0
        self.pending: list[Event] = []
        self.ending: list[History] = []
        self._began = time.perf_counter()

    # The rules, one method each.

    def layout(self, geometry: Geometry) -> Geometry:
        """The geometry that the engine works with."""
        return geometry

    def lookup(self, history: History) -> Lookup:
        """What a request may reuse."""
        return self.cache.lookup(history)

    def publications(self, history: History, start: int, end: int, drafts: int) -> Publications:
        """What a chunk leaves behind."""
        return publications(self.configuration, self.geometry, history, start, end, drafts)

    def published(self, history: History, left: Publications) -> set[tuple[int, int]]:
        """The entries (group, position) that a chunk makes visible."""
        return set(left.must)

    def chunk_end(self, history: History, start: int, budget: int) -> int:
        """Where the next prefill chunk ends; `start` when the budget allows none."""
        block = self.geometry.mamba_block
        end = min(history.known, start + budget)
        export = self.export(history, start, end)
        if end < history.prefill_end:
            aligned = end // block * block
            if aligned > start or block <= self.configuration.budget:
                end = aligned
        stops = self.stops(history, start, export)
        if start % block and not export:
            stops["boundary"] = start // block * block + block
        lookahead = self.geometry.lookahead
        stops = {name: at for name, at in stops.items() if not 0 < history.known - at < lookahead}
        end = min((stop for stop in stops.values() if start < stop < end), default=end)
        left = history.known - end
        if 0 < left < lookahead:
            end -= lookahead - left
        return max(end, start)

    def export(self, history: History, start: int, end: int) -> int:
        """What the chunk [start, end) would export at the end of the prefill, 0 for nothing."""
        geometry = self.geometry
        position = geometry.checkpoint(end)
        valid = end >= history.prefill_end and can_export(
            start,
            end,
            position,
            geometry.unit,
            geometry.mamba_block,
            geometry.mamba[0].checkpoint_alignment,
        )
        return position if valid else 0

    def stops(self, history: History, start: int, export: int) -> dict[str, int]:
        """The required stops past `start`, by name."""
        geometry = self.geometry
        return required_stops(
            start=start,
            prompt=history.prompt,
            tokens=history.known,
            can_export=geometry.mamba[0].checkpoint_alignment is not None,
            export=export,
            junction=junction_stop(
                history.junction, history.prompt, geometry.mamba_block, geometry.junctions
            ),
            checkpoint=geometry.checkpoint,
            block_checkpoint=geometry.block_checkpoint,
            lookahead=geometry.lookahead,
        )

    def must_wait(self, history: History, hit: int, fresh: set[Key]) -> bool:
        """Whether a request must wait a step because the state at its hit is being computed in this one."""
        return hit > 0 and any(
            self.cache.key(group.index, history, hit) in fresh for group in self.geometry.mamba
        )

    def stored(self, kind: str, history: History, position: int, state: int) -> int:
        """The content kept under an entry of a group kind at `position`."""
        return state

    def sample(self, history: History, state: int) -> int:
        """The token sampled from a state."""
        return output_token(state)

    def reported(self, history: History, hit: int) -> int:
        """The tokens reported as reused."""
        return hit

    def released(self, history: History) -> int:
        """Blocks given back when a request ends, of those it held."""
        return self.blocks_of(history)

    def may_run(self, history: History) -> bool:
        """Whether a running request may be scheduled at all."""
        return True

    def advanced(self, history: History, computed: int) -> int:
        """Where the next chunk of a request begins when `computed` tokens are done."""
        return computed

    def has_ended(self, history: History) -> bool:
        """Whether a request has all its outputs."""
        return history.produced >= history.submit.outputs

    def units(self) -> tuple[int, int] | None:
        """The hash unit and the grid of hits in use."""
        return self.geometry.unit, self.geometry.grid

    def reset_clears(self) -> bool:
        """Whether a reset really empties the cache."""
        return True

    def told(self, entry: Entry) -> Event | None:
        """The KV event for an entry that became visible."""
        block = self.geometry.groups[entry.group].block
        start = (entry.position - 1) // block * block
        return Event("stored", (entry,), start, entry.position - start)

    def counted(self, history: History, hit: int) -> Counters:
        """What an admission adds to the counters."""
        if history.hit is None:
            return Counters(requests=1, queries=history.known, hits=hit)
        return Counters(preempted_requests=1, preempted_queries=history.known, preempted_hits=hit)

    # The machinery.

    def target_seconds(self) -> float:
        """Seconds spent in the engine; all of them."""
        return time.perf_counter() - self._began

    def step(self, at: int, step: Step) -> Iterator[Observation]:
        """Run one step of the trace.

        Raises:
            TraceError: for a step of the store tier.
        """
        if isinstance(step, Submit):
            yield self._submit(at, step)
        elif isinstance(step, Run):
            for _ in range(step.steps):
                yield self._engine_step(at, "run", step.accept)
        elif isinstance(step, Settle):
            yield from self._settle(at, step.accept)
        elif isinstance(step, Abort):
            yield self._abort(at, step)
        elif isinstance(step, ResetLocal):
            yield self._reset(at, step)
        else:
            raise TraceError(f"steps[{at}] ({NAMES[type(step)]}): not a step of the core tier")

    def _submit(self, at: int, step: Submit) -> Observation:
        history = History.of(step, self.prefixes, self.histories)
        self.histories[step.id] = history
        self.expected[step.id] = states([*history.tokens, *history.sampled], step.salt)
        self.sampled[step.id] = []
        self.waiting.append(history)
        return self._observe(at, "submit")

    def _abort(self, at: int, step: Abort) -> Observation:
        history = self.histories[step.id]
        if history.state == "finished":
            return self._observe(at, "abort")
        return self._observe(at, "abort", finished=(self._finish(history, "abort"),))

    def _reset(self, at: int, step: ResetLocal) -> Observation:
        if step.running:
            for history in reversed(self.running):
                history.state, history.computed = "waiting", 0
                self.held.pop(history.id, None)
                if self.configuration.asynchronous:
                    history.forget(self.configuration.unit)
                    del self.sampled[history.id][history.told :]
                self.waiting.insert(0, history)
            self.running, self.ending = [], []
        if self.running:
            return self._observe(at, "reset_local", reset=False)
        gone: tuple[Entry, ...] = ()
        if self.reset_clears():
            gone = tuple(self.owners[key] for key in self.cache.visible)
            self.cache.visible.clear()
            self.content.clear()
            self.pending.append(Event("cleared"))
        return self._observe(at, "reset_local", withdrawn=gone, reset=True)

    def _lag(self, ended: list[History]) -> list[Finished]:
        """With asynchronous scheduling the end of a request is known a step later."""
        if not self.configuration.asynchronous:
            return [self._finish(history, "length") for history in ended]
        known = [history for history in self.ending if history in self.running]
        self.ending = ended
        return [self._finish(history, "length") for history in known]

    def _settle(self, at: int, accept: int) -> Iterator[Observation]:
        idle = steps = 0
        live = [*self.running, *self.waiting]
        tokens = sum(history.prompt + history.submit.outputs for history in live)
        while self.running or self.waiting:
            observation = self._engine_step(at, "settle", accept)
            steps += 1
            idle = 0 if observation.scheduled else idle + 1
            if idle >= IDLE_STEPS or steps > settle_bound(tokens, len(live)):
                failure = Failure(
                    "stuck", f"{steps} steps were not enough, {idle} of the last scheduled nothing"
                )
                yield self._observe(at, "settle", failure=failure)
                return
            yield observation

    def _engine_step(self, at: int, do: str, accept: int) -> Observation:
        budget = self.configuration.budget
        scheduled: list[Scheduled] = []
        admitted: list[Admitted] = []
        failed: list[FailedRead] = []
        published: dict[Key, Entry] = {}
        fresh: set[Key] = set()
        counters: list[Counters] = []
        told = {history.id: history.produced for history in self.running}
        for history in list(self.running):
            if history in self.ending:
                continue
            drafts = self.configuration.speculative if history.computed >= history.prefill_end else 0
            item = self._schedule(history, history.computed, budget, drafts)
            if item is not None and self.may_run(history):
                budget -= item.end - item.start
                scheduled.append(item)
                published.update(self._register(item, fresh))
        while budget > 0 and self.waiting and len(self.running) < self.configuration.live:
            history = self.waiting[0]
            found = self.lookup(history)
            if self.must_wait(history, found.hit, fresh):
                break
            history.junction = found.junction
            appeared = tuple(published[key] for key in fresh)
            item = self._schedule(history, found.hit, budget, 0)
            if item is None:
                break
            budget -= item.end - item.start
            self.running.append(self.waiting.pop(0))
            history.state = "running"
            scheduled.append(item)
            admitted.append(Admitted(history.id, found.hit, 0, found.junction, appeared))
            counters.append(self.counted(history, found.hit))
            published.update(self._register(item, fresh))
        ended: list[History] = []
        fresh_requests = {item.request for item in admitted}
        for item in scheduled:
            if item.request in fresh_requests:
                failed.extend(self._adopt(self.histories[item.request], item.start))
            if self._compute(item, accept, item.request in fresh_requests):
                ended.append(self.histories[item.request])
        finished = self._lag(ended)
        for request, count in told.items():
            self.histories[request].told = count
        new = tuple(entry for key, entry in published.items() if key in fresh)
        return self._observe(
            at,
            do,
            scheduled=tuple(scheduled),
            admitted=tuple(admitted),
            finished=tuple(finished),
            published=new,
            failed_reads=tuple(failed),
            events=self._events(new),
            counters=_sum(counters),
        )

    def _events(self, new: tuple[Entry, ...]) -> tuple[Event, ...] | None:
        if not self.configuration.events:
            return None
        events = (*self.pending, *(event for entry in new if (event := self.told(entry)) is not None))
        self.pending = []
        return events

    def _schedule(self, history: History, start: int, budget: int, drafts: int) -> Scheduled | None:
        if start < history.prefill_end:
            end = self.chunk_end(history, start, budget)
            drafts = 0
        else:
            end = min(history.known + drafts, start + budget)
            drafts = max(end - history.known, 0)
        return Scheduled(history.id, start, end, drafts) if end > start else None

    def _register(self, item: Scheduled, fresh: set[Key]) -> dict[Key, Entry]:
        history = self.histories[item.request]
        left = self.publications(history, item.start, item.end, item.drafts)
        entries: dict[Key, Entry] = {}
        for group, position in self.published(history, left):
            key = self.cache.key(group, history, position)
            if key not in self.cache.visible:
                entries[key] = Entry(group, position, history.id)
        fresh.update(entries)
        self.owners.update(entries)
        self.cache.publish(entries)
        return entries

    def _adopt(self, history: History, hit: int) -> list[FailedRead]:
        """Read what the hit promises; the request goes on from the state that it found."""
        if hit == 0:
            self.held[history.id] = first_state(history.submit.salt)
            return []
        failed: list[FailedRead] = []
        unit = self.geometry.unit
        expected = self.expected[history.id]
        held = expected[hit] if hit < len(expected) else 0
        for group in self.geometry.groups:
            at: Iterable[int] = [hit] if group.kind == "mamba" else range(group.block, hit + 1, group.block)
            if group.kind == "window":
                at = window_blocks(hit, group.block, group.window, 0)
            for position in at:
                found = None
                if position % unit == 0:
                    found = self.content.get(self.cache.key(group.index, history, position))
                if found != expected[position]:
                    what = "state" if group.kind == "mamba" else "kv"
                    failed.append(FailedRead(history.id, group.index, position, what))
                    if group.kind == "mamba" and found is not None:
                        held = found
        self.held[history.id] = held
        return failed

    def _compute(self, item: Scheduled, accept: int, admitted: bool) -> bool:
        """Compute a chunk; whether the request has all its outputs now."""
        history = self.histories[item.request]
        if history.hit is None:
            history.hit = item.start
            self.cached[history.id] = self.reported(history, item.start)
        sure = item.end - item.drafts
        state = self.held[history.id]
        left = self.publications(history, item.start, item.end, item.drafts)
        kept = {position for _, position in left.must}
        for position in kept:
            if position <= item.start:
                # Published late, because draft modules were still at work on it.
                self._store(history, left, position, self.expected[history.id][position])
        for position, token in enumerate(history.tokens[item.start : sure], item.start + 1):
            state = next_state(state, token)
            if position in kept:
                self._store(history, left, position, state)
        history.computed = self.advanced(history, sure)
        if sure >= history.known:
            accepted = 0 if admitted else min(accept, item.drafts)
            for draft in range(1 + accepted):
                if history.produced < history.submit.outputs:
                    self.sampled[history.id].append(self.sample(history, state))
                    history.produce(1, self.prefixes)
                    if draft < accepted:
                        state = next_state(state, history.tokens[-1])
            history.computed = self.advanced(history, sure + accepted)
            if self.has_ended(history):
                return True
        self.held[history.id] = state
        return False

    def _store(self, history: History, left: Publications, position: int, state: int) -> None:
        for group in self.geometry.groups:
            if (group.index, position) in left.must:
                key = self.cache.key(group.index, history, position)
                self.content[key] = self.stored(group.kind, history, position, state)

    def _finish(self, history: History, reason: str) -> Finished:
        history.state = "finished"
        for queue in (self.running, self.waiting):
            if history in queue:
                queue.remove(history)
        leak = self.blocks_of(history) - self.released(history)
        self.leaked += leak
        return Finished(history.id, reason, tuple(self.sampled[history.id]), self.cached.get(history.id))

    def blocks_of(self, history: History) -> int:
        """Blocks that a running request holds."""
        return sum(-(-history.known // group.block) for group in self.geometry.groups)

    def _observe(
        self,
        at: int,
        do: str,
        *,
        scheduled: tuple[Scheduled, ...] = (),
        admitted: tuple[Admitted, ...] = (),
        finished: tuple[Finished, ...] = (),
        published: tuple[Entry, ...] = (),
        withdrawn: tuple[Entry, ...] = (),
        failed_reads: tuple[FailedRead, ...] = (),
        reset: bool | None = None,
        events: tuple[Event, ...] | None = None,
        counters: Counters | None = None,
        failure: Failure | None = None,
    ) -> Observation:
        held = sum(self.blocks_of(history) for history in self.running)
        return Observation(
            at=at,
            do=do,
            scheduled=scheduled,
            admitted=admitted,
            finished=finished,
            published=published,
            withdrawn=withdrawn,
            failed_reads=failed_reads,
            running=tuple(history.id for history in self.running),
            waiting=tuple(history.id for history in self.waiting),
            free=self.configuration.blocks - 1 - held - self.leaked,
            reset=reset,
            events=events,
            counters=counters,
            failure=failure,
        )


def _sum(counters: Iterable[Counters]) -> Counters:
    total = Counters()
    for one in counters:
        total = Counters(*(getattr(total, name) + getattr(one, name) for name in Counters.__slots__))
    return total
