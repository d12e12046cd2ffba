"""Lockstep: judges an observed run against the oracle's forecast, step by step, under the rules of the spec.

This is the only place that compares. Each comparison is a small function named after its mode; modes that
are one-sided say why. The first finding ends the comparison, and where one step breaks several rules the
first in registry order is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from reference.history import History
from reference.oracle import AdmissionForecast, ChunkForecast, Forecast, Oracle
from reference.store_oracle import oracles
from spec.chunking import must_advance
from spec.geometry import Geometry
from spec.lookup import window_blocks
from spec.observation import Entry, Observation, Outcome
from spec.rules import ORDER
from spec.trace import Settle, Trace
from tailproof import circumstances
from tailproof.accounting import accounting, units
from tailproof.findings import Divergence, Finding, IncompleteError
from tailproof.store_judge import store_findings
from tailproof.variants import VARIANTS

ENGINE_STEPS = ("run", "settle")
# The end of the kinds of a tail entry that moved past what a resend of the prompt can name.
PAST_HASHES = "-past-hashes"
# Kinds of stray entries that take the block of another entry.
_RENAMED = ("hash-boundary-when-coarse", "promoted-after-export")
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
        failure = observation.failure
        # What a lost store leaves behind says nothing of the system.
        if failure.kind == "store" or (failure.kind == "stuck" and not forecast.fits):
            return
        kind = f"{failure.kind}-{failure.place}" if failure.place else failure.kind
        text = f"the target broke off ({failure.kind}): {failure.message}"
        if failure.kind == "stuck" and oracle.in_lookahead():
            kind, ahead = "stuck-in-lookahead", oracle.geometry.lookahead
            text = (
                f"{text}; the next stop is within the {ahead} tokens before the end that draft modules need"
            )
        if failure.kind == "stuck" and circumstances.between_media(oracle):
            kind = "stuck-between-media"
            text = f"{text}; one item of media stays encoded for draft modules, and the next has no room"
        if failure.kind == "stuck" and oracle.loaded_block_each_other():
            text = f"{text}; requests that have loaded hold blocks, and none of them can go on"
            yield Finding("LV2", "stuck-after-loads", text)
            return
        if failure.kind == "stuck" and (why := oracle.after_failed_load()):
            kind = "load-retried-forever" if why == "retried" else "stuck-after-failed-load"
            yield Finding("LV2", kind, f"{text}; a load failed before")
            return
        if failure.kind == "exception" and oracle.geometry.unfinished and not oracle.geometry.annotated:
            kind = f"{kind}-unfinished"
        yield Finding("LV1", kind, text)
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
    yield from _visible_entries(oracle, observation, forecast)
    yield from _content(oracle, observation, forecast)
    yield from _ends(oracle, observation, forecast)
    yield from _progress(oracle, observation, forecast)
    yield from _quiescence(oracle, observation, forecast)
    yield from _reset(oracle, observation, forecast)
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


def _visible_entries(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Mode "visible entries": must ⊆ visible ⊆ must ∪ may. Entries that may be visible are a choice; what
    vanished is judged where nothing was thrown out for space, since what is thrown out is a choice too; but
    it must be needed, and never what a running request holds."""
    strays = {entry: _stray(oracle, observation, forecast, entry) for entry in forecast.stray}
    moved = [entry for entry, finding in strays.items() if finding.kind == "mid-chunk"]
    for entry in forecast.missing:
        yield _missing(oracle, forecast, entry, moved)
    yield from strays.values()
    if observation.do == "reset_local":
        return
    for entry in forecast.held:
        text = f"{_place(oracle, entry)} vanished while request {entry.request!r} holds its block"
        yield Finding(
            "RT1", f"evicted-in-use{_past_hashes(oracle, entry)}", text, entry.request, entry.position
        )
    if observation.wasted:
        text = f"{observation.wasted} blocks with entries were taken while others held none"
        yield Finding("RT1", "evicted-needlessly", text)
    if forecast.roomy or observation.evicted == 0:
        why = "the pool has room" if forecast.roomy else "no block was taken from the cache"
        told = {oracle.cache.key_of(entry, oracle.histories) for entry in forecast.held}
        for entry in forecast.lost:
            if oracle.cache.key_of(entry, oracle.histories) in told:
                continue
            text = f"{_place(oracle, entry)} vanished although {why}"
            kind = f"lost{_past_hashes(oracle, entry)}"
            if any(found.kind in _RENAMED for found in strays.values()):
                kind, text = "lost-to-another-key", f"{text}: its block was registered under another key"
            yield Finding("RT1", kind, text, entry.request, entry.position)


def _past_hashes(oracle: Oracle, entry: Entry) -> str:
    """Where hashes cover several tokens to come, vLLM goes by P − 1 all the same, past what a resend of the
    prompt can name: as outputs arrive, it moves the attention entry of the prompt's tail on to there, and it
    keeps states and windows for there."""
    geometry, history = oracle.geometry, oracle.histories[entry.request]
    group = geometry.groups[entry.group]
    if geometry.hash_lookahead < 2:
        return ""
    if group.kind == "full":
        tail = entry.position == geometry.checkpoint(history.prompt) and entry.position % group.block
        return PAST_HASHES if tail else ""
    grid = group.block if group.kind == "mamba" else geometry.grid
    return PAST_HASHES if (history.prompt - 1) // grid * grid > geometry.checkpoint(history.prompt) else ""


def _missing(oracle: Oracle, forecast: Forecast, entry: Entry, stray: list[Entry]) -> Finding:
    history = oracle.histories[entry.request]
    checkpoint = oracle.geometry.checkpoint(history.prompt)
    kind = oracle.geometry.groups[entry.group].kind
    beside = ""
    for chunk in forecast.chunks:
        if (
            kind == "mamba"
            and chunk.history is history
            and chunk.publications.export not in (0, entry.position)
        ):
            beside = "-beside-export"
    if kind == "mamba" and oracle.geometry.unfinished and not oracle.geometry.annotated:
        beside = "-unfinished"
    beside = beside or _past_hashes(oracle, entry)
    group = oracle.geometry.groups[entry.group]
    sparse = oracle.geometry.fine and oracle.configuration.retention is not None
    if group.window and sparse and checkpoint:
        needed = window_blocks(checkpoint, group.block, group.window, group.margin)
        beside = "-sparse" if entry.position in needed else beside
    if kind == "mamba" and entry.position == checkpoint:
        text = f"{_place(oracle, entry)}, the resend checkpoint, was computed but is not visible"
        if any(other.request == entry.request for other in stray):
            text = f"{text}; another position is"
            return Finding("CP7", "registered-elsewhere", text, entry.request, entry.position)
        return Finding("RT2", f"missing-checkpoint{beside}", text, entry.request, entry.position)
    text = f"{_place(oracle, entry)} was computed and must be visible, but is not"
    return Finding("RT1", f"missing-{kind}{beside}", text, entry.request, entry.position)


def _stray(oracle: Oracle, observation: Observation, forecast: Forecast, entry: Entry) -> Finding:
    place = _place(oracle, entry)
    for request in observation.preempted:
        if _has_prefix(oracle, oracle.histories[request], entry):
            rule = "CH3" if oracle.geometry.groups[entry.group].kind == "mamba" else "RT1"
            text = (
                f"{place} is visible, but was not computed: request {request!r} was preempted in the step "
                "that scheduled it"
            )
            return Finding(rule, "scheduled-then-preempted", text, request, entry.position)
    if oracle.geometry.groups[entry.group].kind != "mamba":
        text = f"{place} is visible but was not computed"
        return Finding("RT1", "uncomputed", text, entry.request, entry.position)
    block = oracle.geometry.mamba_block
    for chunk in forecast.chunks:
        if not _has_prefix(oracle, chunk.history, entry):
            continue
        item, left = chunk.scheduled, chunk.publications
        if left.overwritten == entry.position:
            text = f"{place} is visible, but the export of {left.export} took its place"
            return Finding("CH4", "transient", text, item.request, entry.position)
        if item.start % block and item.start < entry.position == -(-item.start // block) * block < item.end:
            text = (
                f"{place} is visible, but no state was computed there: request {item.request!r} computed "
                f"[{item.start}, {item.end}) and registered the block of the state at {item.start} as full"
            )
            return Finding(
                "CH3",
                f"partial-block-as-full{circumstances.partial_block(oracle.geometry, chunk)}",
                text,
                item.request,
                entry.position,
            )
    if oracle.cache.key_of(entry, oracle.histories) in oracle.displaced:
        text = f"{place} became visible after an export had taken its place"
        return Finding("CH4", "promoted-after-export", text, entry.request, entry.position)
    if oracle.cache.key_of(entry, oracle.histories) in oracle.overrun:
        text = (
            f"{place} is visible, but no state was computed there: an earlier chunk began inside its block "
            "and ran past it"
        )
        kind = f"partial-block-as-full{circumstances.smallest(oracle.geometry)}"
        return Finding("CH3", kind, text, entry.request, entry.position)
    text = f"{place} is visible, but no chunk ended or exported there"
    kind = "mid-chunk"
    geometry = oracle.geometry
    for chunk in forecast.chunks:
        boundary = geometry.checkpoint_on(chunk.history.prompt, geometry.unit)
        if not geometry.fine and entry.position == boundary and _has_prefix(oracle, chunk.history, entry):
            kind = "hash-boundary-when-coarse"
    if kind == "mid-chunk" and geometry.unfinished and not geometry.annotated:
        kind = "mid-chunk-unfinished"
    return Finding("CH3", kind, text, entry.request, entry.position)


def _has_prefix(oracle: Oracle, history: History, entry: Entry) -> bool:
    """Whether a request begins with the prefix of an entry."""
    unit = oracle.geometry.unit
    if len(history.ahead) * unit < entry.position:
        return False
    owner = oracle.histories[entry.request]
    return history.number(entry.position, unit) == owner.number(entry.position, unit)


def _place(oracle: Oracle, entry: Entry) -> str:
    name = {"full": "attention", "window": "sliding-window", "mamba": "Mamba"}[
        oracle.geometry.groups[entry.group].kind
    ]
    return f"the {name} entry of group {entry.group} at {entry.position} of request {entry.request!r}"


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


def _ends(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Modes "outputs", "ends" and "accounting"."""
    if observation.do not in (*ENGINE_STEPS, "abort"):
        return
    finished = {item.request: item for item in observation.finished}
    refused = forecast.store.refused if forecast.store is not None else frozenset()
    for request, item in finished.items():
        history = oracle.histories[request]
        if request in refused:
            continue
        ended = observation.do in ENGINE_STEPS
        due = tuple(history.sampled if ended else history.sampled[: len(item.outputs)])
        count = len(item.outputs)
        if item.outputs == due[:count] != due:
            text = f"request {request!r} ended with {count} of {len(due)} outputs"
            yield Finding("LV1", "too-few-outputs", text, request)
        elif item.outputs != due:
            same = [one == other for one, other in zip(item.outputs, due, strict=False)]
            at = same.index(False) if False in same else len(same)
            yield Finding("SF4", "output", f"request {request!r}: output {at} differs", request)
        hit = history.hit
        for admission in forecast.admissions:
            if admission.history.id == request and hit is None:
                hit = admission.admitted.local + admission.admitted.external
        if item.cached is not None and hit is not None and item.cached != hit:
            yield Finding(
                "AC1",
                "cached",
                f"request {request!r} reported {item.cached} cached tokens, hit {hit}",
                request,
            )
        if observation.do in ENGINE_STEPS and request not in forecast.ends:
            yield Finding("LV1", "ended-early", f"request {request!r} ended before its last token", request)
    for request in forecast.ends:
        if request not in finished:
            yield Finding("LV1", "not-ended", f"request {request!r} has all outputs but did not end", request)
    for request in forecast.live_before:
        if request not in finished and request not in observation.running + observation.waiting:
            yield Finding("LV1", "vanished", f"request {request!r} vanished without an end", request)


def _progress(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Mode "progress". One-sided: without room for everything a step may legally wait, or preempt; and with
    asynchronous scheduling the encoder has room again only when the answer of the step before is there."""
    if observation.do not in ENGINE_STEPS or not forecast.roomy:
        return
    if oracle.configuration.asynchronous and oracle.configuration.encoder:
        return
    for request in observation.preempted:
        text = f"request {request!r} was preempted although the pool has room"
        yield Finding("CH2", "preempted", text, request)
    away = forecast.store.away if forecast.store is not None else frozenset()
    left = [request for request in forecast.live_before if request not in away]
    # A request that only waits to be told of its end may hold the slot that another one needs.
    if not forecast.complete and not must_advance(len(observation.scheduled), bool(left)):
        waiting = ", ".join(left)
        if oracle.after_failed_load():
            text = f"a step scheduled nothing although {waiting} had work left; a load failed before"
            yield Finding("LV2", "stalled-after-failed-load", text)
            return
        kind = "stalled-in-lookahead" if oracle.in_lookahead() else "stalled"
        kind = "stalled-between-media" if circumstances.between_media(oracle) else kind
        yield Finding("CH2", kind, f"a step scheduled nothing although {waiting} had work left")


def _quiescence(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Mode "quiescence": with nothing running every block but the null block is free."""
    due = oracle.configuration.blocks - 1
    at_rest = not observation.running and (forecast.store is None or forecast.store.at_rest)
    if at_rest and observation.free != due:
        yield Finding("LT3", "free-blocks", f"{observation.free} blocks are free at rest, due were {due}")


def _reset(oracle: Oracle, observation: Observation, forecast: Forecast) -> Iterator[Finding]:
    """Mode "reset"."""
    if observation.do != "reset_local":
        return
    if forecast.reset_succeeds not in (None, observation.reset):
        took = "took effect" if observation.reset else "was refused"
        holds = "no request holds a block" if forecast.reset_succeeds else "a request holds blocks"
        yield Finding("LT4", "reset", f"the reset {took} although {holds}")
    if observation.reset:
        gone = {oracle.cache.key_of(entry, oracle.histories) for entry in observation.withdrawn}
        left = len(oracle.cache.visible - gone) + len(observation.published)
        if left:
            yield Finding("LT4", "reset-left", f"{left} entries are visible after a reset")
