"""The slow engine: a whole system that obeys the spec, run as a target of its own (`reference`).

First come first served, unlimited memory; every rule is one small method of `reference.slow_rules`. It
publishes exactly what must be visible and nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from reference.cache import Key, Lookup
from reference.history import History
from reference.plan import Plan
from reference.publish import Publications
from reference.side import SlowSide
from reference.slow_rules import SlowRules
from spec.exact_model import first_state, next_state, states
from spec.liveness import settle_bound
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


class SlowEngine(SlowRules):
    """One engine of the reference, alive for one trace; `side` is what it does with a store."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.side = SlowSide(self)

    def join(self, first: SlowEngine) -> None:
        """Share the requests and the identities of prefixes with the first engine of a case."""
        self.prefixes, self.histories, self.expected = first.prefixes, first.histories, first.expected

    def target_seconds(self) -> float:
        """Seconds spent in the engine; all of them."""
        return time.perf_counter() - self._began

    def step(self, at: int, step: Step) -> Iterator[Observation]:
        """Run one step of the trace.

        Raises:
            TraceError: for a step that concerns the store.
        """
        if isinstance(step, Submit):
            yield self._submit(at, step)
        elif isinstance(step, Run):
            for _ in range(step.steps):
                yield self._engine_step(at, "run", step.accept)
        elif isinstance(step, Settle):
            if self.side.opens():
                yield self.observe(at, "gate")
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
        self.expected[step.id] = states([*history.tokens, *history.sampled], step.root)
        self.sampled[step.id] = []
        self.waiting.append(history)
        return self.observe(at, "submit")

    def _abort(self, at: int, step: Abort) -> Observation:
        history = self.histories[step.id]
        if history.state == "finished":
            return self.observe(at, "abort")
        return self.observe(at, "abort", finished=(self.finish(history, "abort"),))

    def _reset(self, at: int, step: ResetLocal) -> Observation:
        if step.running:
            for history in reversed(self.running):
                self._preempt(history)
            self.running, self.ending = [], []
        if self.side.holds_blocks():
            return self.observe(at, "reset_local", reset=False)
        gone: tuple[Entry, ...] = ()
        if self.reset_clears():
            gone = tuple(self.owners[key] for key in self.cache.visible)
            self.cache.visible.clear()
            self.content.clear()
            self.pending.append(Event("cleared"))
        return self.observe(at, "reset_local", withdrawn=gone, reset=True)

    def _preempt(self, history: History) -> None:
        """Put a running request back to the head of the queue, without its blocks."""
        history.state, history.computed = "waiting", 0
        self.held.pop(history.id, None)
        self.late.pop(history.id, None)
        if self.configuration.asynchronous:
            history.forget(self.prefixes)
            del self.sampled[history.id][history.told :]
        self.waiting.insert(0, history)
        self.side.preempted(history)

    def _lag(self, ended: list[History]) -> list[Finished]:
        """With asynchronous scheduling the end of a request is known a step later."""
        if not self.configuration.asynchronous:
            return [self.finish(history, "length") for history in ended]
        known = [history for history in self.ending if history in self.running]
        self.ending = ended
        return [self.finish(history, "length") for history in known]

    def _settle(self, at: int, accept: int) -> Iterator[Observation]:
        idle = steps = 0
        live = [*self.running, *self.waiting]
        tokens = sum(history.prompt + history.submit.outputs for history in live)
        while self.running or self.waiting or self.side.unsettled():
            observation = self._engine_step(at, "settle", accept)
            steps += 1
            idle = 0 if observation.scheduled or self.side.moved(observation) else idle + 1
            if idle >= IDLE_STEPS or steps > settle_bound(tokens, len(live)):
                failure = Failure(
                    "stuck", f"{steps} steps were not enough, {idle} of the last scheduled nothing"
                )
                yield self.observe(at, "settle", failure=failure)
                return
            yield observation

    def _engine_step(self, at: int, do: str, accept: int) -> Observation:
        plan = Plan(self.configuration.budget)
        told = {history.id: history.produced for history in self.running}
        for history in list(self.running):
            self._continue(history, plan)
        for history in self.side.queue():
            if plan.budget <= 0 or len(self.running) >= self.configuration.live:
                break
            if not self.side.admit(history, plan):
                break
        self.side.decided(plan)
        ended: list[History] = []
        failed: list[FailedRead] = []
        for item in plan.scheduled:
            begins = item.request in plan.beginners
            if begins:
                history = self.histories[item.request]
                missed = self._adopt(history, item.start)
                failed.extend(self.side.adopted(history, item.start, missed))
            if self._compute(item, accept, begins):
                ended.append(self.histories[item.request])
            plan.published.update(self._register_late(self.histories[item.request], plan.fresh))
        finished = [*self._lag(ended), *self.side.conclude()]
        for request, count in told.items():
            self.histories[request].told = count
        new = tuple(entry for key, entry in plan.published.items() if key in plan.fresh)
        return self.observe(
            at,
            do,
            scheduled=tuple(plan.scheduled),
            admitted=tuple(plan.admitted),
            finished=tuple(finished),
            published=new,
            failed_reads=tuple(failed),
            events=self._events(new),
            counters=_sum(plan.counters),
        )

    def _continue(self, history: History, plan: Plan) -> None:
        """Schedule the next chunk of a running request, if there is one."""
        if history in self.ending:
            return
        drafts = self.configuration.speculative if history.computed >= history.prefill_end else 0
        item = self.schedule(history, history.computed, plan.budget, drafts)
        if item is not None and self.may_run(history):
            plan.take(item)
            plan.published.update(self._register(item, plan.fresh))

    def begin(self, history: History, found: Lookup, plan: Plan) -> bool:
        """Let a waiting request begin after its hit; False when it must wait."""
        if self.must_wait(history, found.hit, plan.fresh):
            return False
        history.junction = found.junction
        appeared = plan.appeared()
        item = self.schedule(history, found.hit, plan.budget, 0)
        if item is None:
            return False
        plan.admitted.append(Admitted(history.id, found.hit, 0, found.junction, appeared))
        plan.counters.append(self.counted(history, found.hit))
        self.start(history, item, plan)
        return True

    def start(self, history: History, item: Scheduled, plan: Plan) -> None:
        """Move a request from the queue to the running ones, with its first chunk."""
        self.waiting.remove(history)
        self.running.append(history)
        history.state = "running"
        plan.take(item)
        plan.beginners.add(history.id)
        plan.published.update(self._register(item, plan.fresh))

    def _events(self, new: tuple[Entry, ...]) -> tuple[Event, ...] | None:
        if not self.configuration.events:
            return None
        events = (*self.pending, *(event for entry in new if (event := self.told(entry)) is not None))
        self.pending = []
        return events

    def schedule(self, history: History, start: int, budget: int, drafts: int) -> Scheduled | None:
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
        return self._publish(history, self.published(history, left), fresh)

    def _register_late(self, history: History, fresh: set[Key]) -> dict[Key, Entry]:
        """What can be named only now, since its hash covers tokens that the step has just made known."""
        return self._publish(history, self.late.pop(history.id, set()), fresh, again=True)

    def _publish(
        self, history: History, places: Iterable[tuple[int, int]], fresh: set[Key], again: bool = False
    ) -> dict[Key, Entry]:
        entries: dict[Key, Entry] = {}
        for group, position in places:
            if position > len(history.numbers) * self.geometry.unit:
                if not again or self.geometry.groups[group].kind == "full":
                    self.late.setdefault(history.id, set()).add((group, position))
                continue
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
            self.held[history.id] = first_state(history.submit.root)
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
                found = self.side.read(group.index, history, position) if position % unit == 0 else None
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
            self.cached[history.id] = self.side.reported(history, self.reported(history, item.start))
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
            self.side.computed(history, position, state)
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
                        self.side.computed(history, history.known, state)
            history.computed = self.advanced(history, sure + accepted)
            if self.has_ended(history):
                return True
        self.held[history.id] = state
        return False

    def _store(self, history: History, left: Publications, position: int, state: int) -> None:
        if position > len(history.final_numbers) * self.geometry.unit:
            return
        for group in self.geometry.groups:
            if (group.index, position) in left.must:
                key = self.cache.key(group.index, history, position)
                self.content[key] = self.stored(group.kind, history, position, state)

    def finish(self, history: History, reason: str) -> Finished:
        history.state = "finished"
        for queue in (self.running, self.waiting):
            if history in queue:
                queue.remove(history)
        leak = self.blocks_of(history) - self.released(history)
        self.leaked += leak
        self.side.ended(history, reason)
        return Finished(history.id, reason, tuple(self.sampled[history.id]), self.cached.get(history.id))

    def observe(
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
            free=self.configuration.blocks - 1 - self.side.blocks_held() - self.leaked,
            reset=reset,
            events=events,
            counters=counters,
            failure=failure,
            **self.side.seen(),
        )


def _sum(counters: Iterable[Counters]) -> Counters:
    total = Counters()
    for one in counters:
        total = Counters(*(getattr(total, name) + getattr(one, name) for name in Counters.__slots__))
    return total
