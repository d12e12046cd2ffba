"""Engines that throw entries out: the hit after it is the greatest that is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reference.cache import Key, Lookup
from reference.engine import SlowEngine
from reference.history import History
from spec.observation import Admitted, Entry, Observation
from tailproof.generate.core import case
from tailproof.generate.drawing import Axes
from tailproof.judge.lockstep import compare, divergences
from tailproof.targets import opening as targets
from tailproof.targets.opening import Target, open_target


class Evicts(SlowEngine):
    """When a request arrives, throws out what earlier ones left in the cache, oldest first, and tells so."""

    most = 3

    def _engine_step(self, at: int, do: str, accept: int) -> Observation:
        arriving = bool(self.waiting) and not self.running
        keys = [key for key in self.owners if key in self.cache.visible][: self.most] if arriving else []
        self.cache.visible.difference_update(keys)
        entries = tuple(self.owners[key] for key in keys)
        observation = super()._engine_step(at, do, accept)
        back = {self.key(one) for one in observation.published}
        lost = {self.key(entry) for entry in entries}

        def gone(item: Admitted) -> tuple[Entry, ...]:
            appeared = {self.key(one) for one in item.appeared}
            return tuple(entry for entry in entries if self.key(entry) not in appeared)

        return replace(
            observation,
            admitted=tuple(replace(item, gone=gone(item)) for item in observation.admitted),
            withdrawn=tuple(entry for entry in entries if self.key(entry) not in back),
            published=tuple(one for one in observation.published if self.key(one) not in lost),
            evicted=len(keys),
            wasted=0,
        )

    def key(self, entry: Entry) -> Key:
        return self.cache.key(entry.group, self.histories[entry.request], entry.position)


class EvictsAndHits(Evicts):
    """As if what was thrown out were still there: the hit is that of before."""

    def lookup(self, history: History) -> Lookup:
        visible = self.cache.visible | set(self.owners)
        return self.cache.lookup(history, visible)


class EvictsAndGivesUp(Evicts):
    """After an eviction nothing is reused any more."""

    def lookup(self, history: History) -> Lookup:
        found = self.cache.lookup(history)
        return replace(found, hit=0, junction=0) if len(self.owners) > len(self.cache.visible) else found


Engine = type[SlowEngine]


def kinds_of(engine: Engine, monkeypatch: pytest.MonkeyPatch, cases: int) -> set[str]:
    """The kinds of the first finding of each case of small pools, on an engine."""
    monkeypatch.setitem(targets.FAULTS, "under-pressure", engine)
    opened = open_target(Target.parse("reference+under-pressure"), print)
    kinds: set[str] = set()
    for index in range(cases):
        trace = case(21, index, Axes(pressure=1.0))
        divergence = compare(trace, opened.run(trace))
        if divergence is not None:
            kinds.add(divergence.finding.kind)
    return kinds


@pytest.mark.rule("LK1")
def test_the_hit_after_an_eviction_is_the_greatest_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds_of(EvictsAndHits, monkeypatch, 60) >= {"hit-without-state", "hit-beyond-attention"}
    assert "hit-too-short" in kinds_of(EvictsAndGivesUp, monkeypatch, 60)


@pytest.mark.rule("RT1")
def test_evictions_under_pressure_are_followed_without_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only cases whose pool turns out to hold everything may be judged as if nothing had to go."""
    monkeypatch.setitem(targets.FAULTS, "under-pressure", Evicts)
    opened = open_target(Target.parse("reference+under-pressure"), print)
    evictions = 0
    for index in range(80):
        trace = case(21, index, Axes(pressure=1.0))
        trace = replace(trace, configuration=replace(trace.configuration, blocks=2, events=False))
        outcome = opened.run(trace)
        evictions += sum(bool(one.evicted) for one in outcome.observations)
        assert [one.finding for one in divergences(trace, outcome)] == []
    assert evictions > 100
