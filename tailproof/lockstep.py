"""Lockstep: judges an observed run against the oracle's forecast, step by step, under the rules of the spec.

This is the only place that compares. Each comparison is a small function named after its mode; modes that
are one-sided say why. The first finding ends the comparison, and where one step breaks several rules the
first in registry order is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reference.oracle import AdmissionForecast, ChunkForecast, Forecast, Oracle
from reference.store_oracle import oracles
from spec.geometry import Geometry
from spec.observation import Observation, Outcome
from spec.rules import ORDER
from spec.trace import Settle, Trace
from tailproof import circumstances
from tailproof.accounting import accounting, units
from tailproof.findings import Divergence, Finding, IncompleteError
from tailproof.judge_endings import broken_off, ends, progress, quiescence, reset
from tailproof.judge_entries import PAST_HASHES, visible_entries
from tailproof.store_judge import store_findings
from tailproof.variants import VARIANTS

# Rules whose breach costs hits or tells something wrong, and leaves the content of the cache right.
_LOSSES = frozenset(
    ("CP7", "PM1", "LK1", "LK2", "LK4", "RT2", "CH1", "CH2", "AC2", "AC3", "TS1", "TS3", "TS5", "TS6", "TS7")
)


def compare(
    trace: Trace, outcome: Outcome, visit: Callable[[Observation, Forecast], None] | None = None
) -> Divergence | None:
    """Judge a whole run; the first divergence, None when every comparison holds.

    `visit` is called with every observation and its forecast, for coverage counts.

    Raises:
        IncompleteError: when the outcome ends before its trace without a failure, or the content check has
            not read all that it must.
    """
    return next(divergences(trace, outcome, visit), None)


def divergences(
    trace: Trace,
    outcome: Outcome,
    visit: Callable[[Observation, Forecast], None] | None = None,
    passes: Callable[[Finding], bool] = lambda finding: False,
) -> Iterator[Divergence]:
    """Judge a whole run, going on after findings that `passes` lets pass and that leave the rest of the run
    judgeable: what was lost is lost, but nothing wrong is in the cache. One divergence per step at most.

    Raises:
        IncompleteError: as `compare` does.
    """
    engines = oracles(trace)
    oracle = engines[0]
    if outcome.observations and (wrong := units(oracle, outcome)):
        yield Divergence(wrong, 0, outcome.observations[0].at)
        return
    for index, observation in enumerate(outcome.observations):
        oracle = engines[observation.engine]
        forecast = oracle.forecast(observation)
        findings = sorted(judge(oracle, observation, forecast), key=lambda one: ORDER[one.rule])
        if visit is not None:
            visit(observation, forecast)
        if findings:
            serious = [one for one in findings if not (passes(one) and harmless(one))]
            yield Divergence((serious or findings)[0], index, observation.at)
            if serious:
                return
        if observation.verified is not None and observation.verified != forecast.verified:
            raise IncompleteError(
                f"steps[{observation.at}]: the content check read {observation.verified} tokens and "
                f"states, due were {forecast.verified}"
            )
        oracle.adopt(observation, forecast)
    if outcome.observations and outcome.observations[-1].failure is not None:
        return
    seen = {observation.at for observation in outcome.observations}
    if missing := sorted(set(range(len(trace.steps))) - seen - _silent(trace)):
        raise IncompleteError(f"the outcome has no observation of steps[{missing[0]}]")


def seek(trace: Trace, outcome: Outcome, rule: str, kind: str) -> Divergence | None:
    """The divergence of a rule and kind, looked for past others where that can be; else the first one.

    Raises:
        IncompleteError: as `compare` does.
    """
    found = list(divergences(trace, outcome, passes=lambda one: (one.rule, one.kind) != (rule, kind)))
    return next(
        (one for one in found if (one.rule, one.finding.kind) == (rule, kind)), next(iter(found), None)
    )


def harmless(finding: Finding) -> bool:
    """Whether a finding leaves the content of the cache right, so that the rest of a run can be judged."""
    lost = finding.kind.startswith("missing") or finding.kind.endswith(PAST_HASHES)
    return finding.rule in _LOSSES or (finding.rule == "RT1" and lost)


def _silent(trace: Trace) -> set[int]:
    """Steps that may give no observation: a settle with nothing left to do."""
    return {index for index, step in enumerate(trace.steps) if isinstance(step, Settle)}


def judge(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """All findings of one observation. A system that is stuck with a request larger than the whole pool has
    broken nothing: a request must end once resources suffice."""
    if observation.failure is not None:
        yield from broken_off(oracle, observation.failure, forecast)
        return
    for admission in forecast.admissions:
        yield from _hit_length(oracle, admission)
        yield from _junction(oracle.geometry, admission)
    for admission in forecast.loadings:
        yield from _junction(oracle.geometry, admission)
    if forecast.store is not None:
        yield from store_findings(oracle, observation, forecast)
    for chunk in forecast.chunks:
        yield from _chunk(oracle.geometry, chunk, forecast.store.misused if forecast.store else frozenset())
    yield from visible_entries(oracle, observation, forecast)
    yield from _content(oracle, observation, forecast)
    yield from ends(oracle, observation, forecast)
    yield from progress(oracle, observation, forecast)
    yield from quiescence(oracle, observation, forecast)
    yield from reset(oracle, observation, forecast)
    yield from accounting(oracle, observation, forecast)


def _hit_length(oracle: Oracle, admission: AdmissionForecast) -> Iterator[Finding]:
    """Mode "hit length": exact, over the entries visible at the moment of the lookup."""
    geometry = oracle.geometry
    history, request = admission.history, admission.history.id
    hit, due = admission.admitted.local, admission.lookup.hit
    limit = history.known - 1
    text = f"request {request!r} of {history.known} tokens hit {hit}, due was {due}"
    if hit > limit or hit % geometry.grid:
        yield Finding("PM2", "hit-bounds", f"{text}: above P − 1 or off the grid {geometry.grid}", request)
    elif hit > due:
        yield _too_long(oracle, admission, text)
    elif hit < due:
        yield _too_short(oracle, admission, text)
    if hit and hit in admission.fresh:
        yield Finding(
            "SF3",
            "same-step",
            f"request {request!r} reuses the state at {hit} that was published in the same step",
            request,
            hit,
        )


def _too_long(oracle: Oracle, admission: AdmissionForecast, text: str) -> Finding:
    history, hit = admission.history, admission.admitted.local
    visible = set(admission.visible)
    states = all(oracle.cache.states(history, group, visible)(hit) for group in oracle.geometry.mamba)
    if not states:
        return Finding("LK1", "hit-without-state", f"{text}: no state is visible there", history.id)
    windows = oracle.geometry.windows
    if not all(oracle.cache.window(history, group, visible)(hit) for group in windows):
        return Finding("LK1", "hit-without-window", f"{text}: a window is not visible there", history.id)
    if all(extent >= hit for extent in admission.lookup.extents):
        return Finding("PM3", "no-drop", f"{text}: the margin was not dropped", history.id)
    return Finding("PM4", "hit-beyond-attention", f"{text}: attention does not reach it", history.id)


def _too_short(oracle: Oracle, admission: AdmissionForecast, text: str) -> Finding:
    """Name the rule by the wrong variant of the lookup that would have given the observed hit."""
    history, hit = admission.history, admission.admitted.local
    for variant in VARIANTS:
        if variant.hit(oracle.geometry, history, set(admission.visible)) == hit:
            return Finding(variant.rule, variant.kind, f"{text}: {variant.reason}", history.id)
    return Finding("LK1", "hit-too-short", f"{text}: every group serves more", history.id)


def _junction(geometry: Geometry, admission: AdmissionForecast) -> Iterator[Finding]:
    """Mode "junction": exact where all attention has one layout, else between two bounds (LK5). Not compared
    when the hit is already wrong, since it depends on it."""
    seen, least, highest = admission.admitted.junction, admission.lookup.junction, admission.lookup.highest
    if admission.admitted.local != admission.lookup.hit:
        return
    above = seen > admission.lookup.hit and seen % geometry.grid == 0 and least <= seen <= highest
    if not above and (seen or least):
        request = admission.history.id
        due = f"{least}" if least == highest else f"{least} to {highest}"
        yield Finding("LK5", "junction", f"request {request!r} got junction {seen}, due was {due}", request)


def _chunk(
    geometry: Geometry, chunk: ChunkForecast, misused: frozenset[str] = frozenset()
) -> Iterator[Finding]:
    """Mode "chunks": how far a chunk goes is the system's choice, what it must not pass is not."""
    item, request = chunk.scheduled, chunk.history.id
    span = f"request {request!r} computed [{item.start}, {item.end})"
    if chunk.expected_start is None and request in misused:
        yield Finding("LV2", "failed-load-used", f"{span}, behind a load that failed", request)
    elif chunk.expected_start is None:
        yield Finding("CH5", "not-admitted", f"{span}, but was neither running nor admitted", request)
    elif item.start != chunk.expected_start:
        yield Finding("CH5", "contiguous", f"{span}, due was a start at {chunk.expected_start}", request)
    if item.end <= item.start:
        yield Finding("CH2", "empty-chunk", f"{span}: nothing", request)
    if chunk.prefill and 0 < chunk.history.known - item.end < geometry.lookahead:
        text = f"{span}, nearer to its end than the {geometry.lookahead} tokens that draft modules read ahead"
        yield Finding("CH1", "ends-in-lookahead", text, request, item.end)
    for name, stop in chunk.stops.items():
        if item.start < stop < item.end:
            rule = "CP7" if name == "checkpoint" else "CH1"
            kind = f"jumped-{name}{circumstances.jumped(geometry, chunk, name)}"
            yield Finding(rule, kind, f"{span} and jumped over its {name} stop {stop}", request, stop)


def _content(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Mode "content": every read of every step is exact."""
    hits = {admission.history.id: admission.admitted.local for admission in forecast.admissions}
    for read in observation.failed_reads:
        where = f"group {read.group} of request {read.request!r}"
        if read.what == "kv":
            text = f"{where} read wrong KV at token {read.position}"
            kind = "kv-of-hit" if hits.get(read.request, 0) > read.position else "kv"
            if kind == "kv-of-hit" and _chained(oracle, forecast, read.request, read.group):
                kind = "kv-of-chained-copy"
                text = f"{text}, in a block that an earlier request of the step copied too"
            elif kind == "kv-of-hit" and _in_progress(oracle, forecast, read.request, read.position):
                kind = "kv-in-progress"
                text = f"{text}, which another request computes in the same step"
            yield Finding("SF1", kind, text, read.request, read.position)
        elif read.what == "stale":
            text = f"{where} reads a block past token {read.position} that holds a state, not cleared"
            yield Finding("SF1", "stale-bytes", text, read.request, read.position)
        else:
            what = "the null block" if read.what == "null" else "a wrong state"
            kind, why = read.what, ""
            history, unit = oracle.histories[read.request], oracle.geometry.unit
            on_grid = read.position % unit == 0 and read.position <= len(history.numbers) * unit
            if on_grid and oracle.cache.key(read.group, history, read.position) in oracle.passed:
                kind = f"state-of-passed-boundary{circumstances.smallest(oracle.geometry)}"
                why = ", a block end that an earlier chunk ran past"
            if kind == "state" and oracle.geometry.unfinished and not oracle.geometry.annotated:
                kind = "state-unfinished"
            text = f"{where} read {what} for the state after {read.position}{why}"
            yield Finding("SF2", kind, text, read.request, read.position)


def _chained(oracle: Oracle, forecast: Forecast, request: str, group: int) -> bool:
    """Whether an earlier admission of the step resumes inside the same block of the same prefix, so that both
    get copies of it."""
    block = oracle.geometry.groups[group].block
    later = next(item for item in forecast.admissions if item.history.id == request)
    hit = later.admitted.local
    for earlier in forecast.admissions[: forecast.admissions.index(later)]:
        other = earlier.admitted.local
        if hit % block and other % block and hit // block == other // block:
            shared = min(hit, other)
            if earlier.history.tokens[:shared] == later.history.tokens[:shared]:
                return True
    return False


def _in_progress(oracle: Oracle, forecast: Forecast, request: str, position: int) -> bool:
    """Whether another request computes the token at `position` of the same prefix in this step, so that a
    copy made before the step holds nothing yet."""
    prefix = oracle.histories[request].tokens[: position + 1]
    return any(
        chunk.history.id != request
        and chunk.scheduled.start <= position < chunk.scheduled.end
        and chunk.history.tokens[: position + 1] == prefix
        for chunk in forecast.chunks
    )
