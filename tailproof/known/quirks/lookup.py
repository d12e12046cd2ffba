"""Wrong variants of LK: how vLLM's coordinators and the store's look a prefix up.

Source: vllm/v1/core/kv_cache_coordinator.py, `find_longest_cache_hit`; SlidingWindowManager; and
vllm/distributed/kv_transfer/kv_connector/v1/mooncake/store, coordinator.py and worker.py.
"""

from __future__ import annotations

from reference.cache import Key, SlowCache
from reference.forecast import AdmissionForecast
from reference.history import History
from reference.wrong_lookups import Hit, bounded_by_the_one_before
from spec.geometry import Geometry
from spec.lookup import greatest_hit
from tailproof.judge.findings import Finding
from tailproof.judge.step import Step
from tailproof.known.quirks.case import Case, quirk


def short_window_run(geometry: Geometry, history: History, visible: set[Key]) -> int:
    """The hit when a sliding-window group that drops aligns a run shorter than its window before it drops,
    and again after, so that such a run loses one more alignment."""
    hit, grid = SlowCache(geometry).lookup(history, visible).hit, geometry.grid
    for group in geometry.windows:
        need = -(-(group.window - 1) // group.block) * group.block
        if group.margin and group.block < grid and hit < need:
            states = [SlowCache(geometry).states(history, other, visible) for other in geometry.mamba]
            return greatest_hit(max(hit - grid, 0), grid, states)
    return hit


def _admission(case: Case, finding: Finding) -> AdmissionForecast | None:
    expected = case.step.expected
    both = (*expected.admissions, *expected.loadings)
    return next((one for one in both if one.history.id == finding.request), None)


def _local(case: Case, finding: Finding, hit: Hit) -> bool:
    """Whether the engine's own cache was looked up like that: the hit is too short, and just that long; with
    a store behind it, the whole alignments of it."""
    admission = _admission(case, finding)
    if admission is None or finding.rule not in ("LK1", "LK2", "PM1", "PM3", "EL1", "LK4"):
        return False
    seen, align = admission.admitted.local, case.step.geometry.align
    given = hit(case.step.geometry, admission.history, set(admission.visible))
    if given >= admission.lookup.hit:
        return False
    whole = admission.admitted.external > 0 and given // align * align == seen
    return given == seen or whole


@quirk("lookup.bounded_by_the_one_before")
def bounds_by_the_layout_before(case: Case, finding: Finding) -> bool:
    """Each attention layout is scanned only to its margin past what the one before it could serve."""
    return finding.rule != "LK4" and _local(case, finding, bounded_by_the_one_before)


@quirk("lookup.short_window_run")
def aligns_a_short_run_twice(case: Case, finding: Finding) -> bool:
    """A run shorter than its window is aligned before the drop and again after it."""
    return _local(case, finding, short_window_run)


def _external(case: Case, finding: Finding, hit: Hit) -> bool:
    """Whether the store was looked up like that."""
    admission = _admission(case, finding)
    if admission is None or finding.kind != "external-too-short":
        return False
    item = admission.admitted
    given = hit(case.step.geometry, admission.history, set(case.step.expected.store.shelf))
    # What the store gives is left alone where the engine's own cache has as much.
    return given == item.local + item.external or (not item.external and given <= item.local)


@quirk("lookup.external_bounded")
def bounds_the_store_by_the_layout_before(case: Case, finding: Finding) -> bool:
    """The lookup in the store mirrors the engine's own, with its bound for the second layout."""
    return _external(case, finding, bounded_by_the_one_before)


@quirk("lookup.proof_not_asked")
def asks_for_whole_alignments(case: Case, finding: Finding) -> bool:
    """With coarse hits the store is asked only for keys up to the last alignment of the request."""
    step = case.step
    if step.geometry.fine:
        return False
    return _external(case, finding, lambda geometry, history, keys: _asked(step, history, keys))


def _asked(step: Step, history: History, keys: set[Key]) -> int:
    geometry, cache = step.geometry, step.cache
    end = history.known // geometry.align * geometry.align
    places = ((group, at) for group in geometry.groups for at in range(geometry.unit, end + 1, geometry.unit))
    known = {key for group, at in places if (key := cache.key(group.index, history, at)) in keys}
    return cache.lookup(history, known).hit
