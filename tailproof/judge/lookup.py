"""Compares lookups: hits and junctions, of the engine's own cache and of the store (PM, LK, EL1, SF3)."""

from __future__ import annotations

from collections.abc import Iterator

from reference.forecast import AdmissionForecast
from reference.wrong_lookups import VARIANTS
from tailproof.judge.findings import Finding
from tailproof.judge.step import Step, exercises, judges


@judges("PM2", "SF3")
def local_hits(step: Step) -> Iterator[Finding]:
    """Mode "hit length": exact, over the entries visible at the moment of the lookup."""
    geometry = step.geometry
    for admission in step.expected.admissions:
        history, request = admission.history, admission.history.id
        hit, due = admission.admitted.local, admission.lookup.hit
        limit = history.known - 1
        text = f"request {request!r} of {history.known} tokens hit {hit}, due was {due}"
        if hit > limit or hit % geometry.grid:
            text = f"{text}: above P − 1 or off the grid {geometry.grid}"
            yield Finding("PM2", "hit-bounds", text, request)
        elif hit > due:
            yield _too_long(step, admission, text)
        elif hit < due:
            yield _too_short(step, admission, text)
        if hit and hit in admission.fresh:
            text = f"request {request!r} reuses the state at {hit} that was published in the same step"
            yield Finding("SF3", "same-step", text, request, hit)


@judges("LK1", "PM3", "PM4", of="part")
def _too_long(step: Step, admission: AdmissionForecast, text: str) -> Finding:
    history, hit = admission.history, admission.admitted.local
    visible, geometry, cache = set(admission.visible), step.geometry, step.cache
    if not all(cache.states(history, group, visible)(hit) for group in geometry.mamba):
        return Finding("LK1", "hit-without-state", f"{text}: no state is visible there", history.id)
    if not all(cache.window(history, group, visible)(hit) for group in geometry.windows):
        return Finding("LK1", "hit-without-window", f"{text}: a window is not visible there", history.id)
    if all(extent >= hit for extent in admission.lookup.extents):
        return Finding("PM3", "no-drop", f"{text}: the margin was not dropped", history.id)
    return Finding("PM4", "hit-beyond-attention", f"{text}: attention does not reach it", history.id)


@judges("PM1", "PM3", "LK1", "LK2", "EL1", of="part")
def _too_short(step: Step, admission: AdmissionForecast, text: str) -> Finding:
    """Name the rule by the wrong variant of the lookup that would have given the observed hit."""
    history, hit = admission.history, admission.admitted.local
    for variant in VARIANTS:
        if variant.hit(step.geometry, history, set(admission.visible)) == hit:
            text = f"{text}: {variant.reason}"
            return Finding(variant.rule, variant.kind, text, history.id, lasting=False)
    text = f"{text}: every group serves more"
    return Finding("LK1", "hit-too-short", text, history.id, lasting=False)


@judges("LK5")
def junctions(step: Step) -> Iterator[Finding]:
    """Mode "junction": exact where all attention has one layout, else between two bounds (LK5). Not compared
    when the hit is already wrong, since it depends on it."""
    for admission in (*step.expected.admissions, *step.expected.loadings):
        seen, least, highest = (
            admission.admitted.junction,
            admission.lookup.junction,
            admission.lookup.highest,
        )
        if admission.admitted.local != admission.lookup.hit:
            continue
        on_grid = seen % step.geometry.grid == 0
        above = seen > admission.lookup.hit and on_grid and least <= seen <= highest
        if not above and (seen or least):
            request = admission.history.id
            due = f"{least}" if least == highest else f"{least} to {highest}"
            yield Finding(
                "LK5", "junction", f"request {request!r} got junction {seen}, due was {due}", request
            )


@judges("LK4")
def external_hits(step: Step) -> Iterator[Finding]:
    """Mode "external hit": over the keys that the store held when it was asked (LK4). Exact but for one
    choice: a block that ends with the request may count as proof for a hit before its last token, which is
    safe."""
    if step.observation.store is None:
        return
    due, align = step.expected.store, step.geometry.align
    for admission in (*step.expected.admissions, *step.expected.loadings):
        item, request = admission.admitted, admission.history.id
        owed, local = due.external.get(request, 0), admission.lookup.hit
        total = item.local + item.external
        text = (
            f"request {request!r} of {admission.history.known} tokens took {item.local} from its own cache "
            f"and {item.external} from the store, which serves {owed}"
        )
        if owed > local and total < owed:
            yield Finding("LK4", "external-too-short", text, request, lasting=False)
        elif item.external and total > due.widest.get(request, 0):
            yield Finding("LK4", "external-too-long", text, request, lasting=False)
        elif item.external and (total <= local or item.local != local // align * align):
            yield _local_loss(step, admission, f"{text}; its own cache serves {local}")


@judges("PM1", "PM3", "LK1", "LK2", "EL1", of="part")
def _local_loss(step: Step, admission: AdmissionForecast, text: str) -> Finding:
    """The store made up for what the local lookup lost, or took what it need not."""
    seen, align, request = admission.admitted.local, step.geometry.align, admission.history.id
    for variant in VARIANTS:
        hit = variant.hit(step.geometry, admission.history, set(admission.visible))
        if hit < admission.lookup.hit and hit // align * align == seen:
            text = f"{text}: {variant.reason}"
            return Finding(variant.rule, variant.kind, text, request, lasting=False)
    return Finding("LK4", "external-cut", text, request, lasting=False)


@exercises("LK1", "PM1", "PM2", "PM3", "PM4", "EL1", "LK2", "LK5", "SF3")
def looked_up(step: Step) -> Iterator[str]:
    """Hits of the engine's own cache."""
    geometry = step.geometry
    for admission in step.expected.admissions:
        history, hit = admission.history, admission.lookup.hit
        if history.known > geometry.grid:
            yield "LK1"
        if hit:
            yield "PM2"
            if geometry.eagle:
                yield "PM3"
                if history.known % geometry.unit == 0:
                    yield "PM1"
            if geometry.fine and hit % geometry.align:
                yield "EL1"
        if admission.lookup.junction:
            yield "LK5"
        if hit and len({group.layout for group in geometry.attention}) > 1:
            yield "LK2"
        if admission.fresh:
            yield "SF3"
        deeper = history.numbers[hit // geometry.unit : (history.known - 1) // geometry.unit]
        if any((group.index, number) in admission.visible for group in geometry.mamba for number in deeper):
            yield "PM4"


@exercises("LK4")
def looked_up_in_the_store(step: Step) -> Iterator[str]:
    """Lookups that the store had something for."""
    if step.view.loading or any(step.expected.store.external.values()):
        yield "LK4"
