"""The argument at a divergence: what was needed, who had registered it, and what was there instead."""

from __future__ import annotations

from collections.abc import Iterator

from reference.history import History
from reference.oracle import AdmissionForecast, Forecast
from spec.geometry import GroupGeometry
from spec.observation import Entry, Observation
from tailproof.evidence import Evidence
from tailproof.judge.findings import Finding
from tailproof.narrate_store import in_store
from tailproof.words import LISTED, count, places


def argument(
    evidence: Evidence, index: int, observation: Observation, forecast: Forecast, finding: Finding
) -> Iterator[str]:
    """Why what was seen breaks the rule: what was needed, and what was there instead."""
    admission = next((one for one in forecast.admissions if one.history.id == finding.request), None)
    family = finding.rule[:2]
    if observation.failure is not None:
        return
    if admission is not None and family in ("PM", "LK", "EL", "SF"):
        yield from _needs(evidence, admission)
        if finding.rule in ("SF1", "SF3"):
            yield from _too_fresh(evidence, admission)
    if observation.store is not None and finding.request and (family == "TS" or finding.rule == "LK4"):
        yield in_store(evidence.oracle, observation, evidence.oracle.histories[finding.request])
    elif family == "SF":
        yield from _reads(evidence, observation, forecast, finding)
    elif finding.kind.startswith("jumped"):
        yield from _jumped(evidence, forecast, finding)
    elif finding.position is not None and finding.kind not in ("lost", "held"):
        yield from _entry(evidence, index, observation, forecast, finding)


def _needs(evidence: Evidence, admission: AdmissionForecast) -> Iterator[str]:
    """What the longer of the observed and the due hit needs, and who registered it."""
    oracle, history = evidence.oracle, admission.history
    hit = max(admission.admitted.local, admission.lookup.hit)
    if hit:
        parts = []
        for group in oracle.geometry.groups:
            if group.kind == "mamba":
                source = _from(evidence, admission, group, hit) or " (not there)"
                parts.append(f"the state at {hit}{source}")
            elif group.kind == "full":
                extent = oracle.cache.extent(history, group, history.known - 1, set(admission.visible))
                found = f"visible through {extent}{_from(evidence, admission, group, extent)}"
                proof = f"the last {group.margin} as proof only; " if group.margin else ""
                parts.append(f"attention through {hit + group.margin} ({proof}{found})")
            else:
                parts.append(f"the window of {group.window} tokens before {hit + group.margin}")
        yield f"To reuse {count(hit, 'token')} {history.id} needs {' and '.join(dict.fromkeys(parts))}."
    seen, due = admission.admitted.junction, admission.lookup.junction
    if seen != due and hit == admission.admitted.local:
        reach = f"{count(due, 'token')} of {history.id}, more than its hit" if due else "no more than the hit"
        junction = f"the junction is {due}" if due else "there is no junction"
        yield f"Attention alone could serve {reach}, so {junction}."


def _too_fresh(evidence: Evidence, admission: AdmissionForecast) -> Iterator[str]:
    """Entries that the reuse touches and that an earlier request registered in the same step."""
    history, hit = admission.history, admission.admitted.local
    found: set[int] = set()
    for entry in admission.admitted.appeared:
        group = evidence.oracle.geometry.groups[entry.group]
        if group.kind == "full" and _same_prefix(evidence, history, entry):
            copied = hit % group.block > 0 and (entry.position - 1) // group.block == hit // group.block
            if copied or entry.position <= hit + group.margin:
                found.add(entry.position)
    if hit and found:
        yield (
            f"The lookup of {history.id} already saw attention at {places(sorted(found))}, registered "
            "earlier in this very step, though the content is written only when the step runs."
        )


def _same_prefix(evidence: Evidence, history: History, entry: Entry) -> bool:
    unit, cache = evidence.oracle.geometry.unit, evidence.oracle.cache
    known = len(history.numbers) * unit >= entry.position
    return known and cache.key(entry.group, history, entry.position) == evidence.key(entry)


def _from(evidence: Evidence, admission: AdmissionForecast, group: GroupGeometry, position: int) -> str:
    """Who registered an entry that a lookup needs."""
    history, unit = admission.history, evidence.oracle.geometry.unit
    if position % unit or not 0 < position <= len(history.numbers) * unit:
        return ""
    key = evidence.oracle.cache.key(group.index, history, position)
    for entry in admission.admitted.appeared:
        if evidence.key(entry) == key:
            return f", by {entry.request} in this step"
    one = evidence.registered.get(key)
    if one is None or key not in admission.visible:
        return ""
    return f", by {one.request} in step {one.index}" + ("" if one.how else ", not computed there")


def _reads(
    evidence: Evidence, observation: Observation, forecast: Forecast, finding: Finding
) -> Iterator[str]:
    """For a wrong read: where its content should have come from."""
    read = next((one for one in observation.failed_reads if one.request == finding.request), None)
    if read is None:
        return
    oracle = evidence.oracle
    history, group = oracle.histories[read.request], oracle.geometry.groups[read.group]
    if group.kind == "mamba":
        if read.position % oracle.geometry.unit == 0 and read.position <= history.known:
            entry = Entry(read.group, read.position, history.id)
            yield from _origin(evidence, entry)
            yield from _states(evidence, entry)
        return
    prefix = history.tokens[: read.position + 1]
    begin = read.position // group.block * group.block
    sharing = [
        chunk.history.id
        for chunk in forecast.chunks
        if chunk.history.id != read.request
        and chunk.history.tokens[: read.position + 1] == prefix
        and begin <= chunk.scheduled.start < begin + group.block
    ]
    if sharing:
        yield (
            f"The block [{begin}, {begin + group.block}) was being filled by {' and '.join(sharing)} in this "
            f"step: {read.request} got a copy of it, made before anything was computed."
        )


def _origin(evidence: Evidence, entry: Entry) -> Iterator[str]:
    """How an entry without content came to be visible."""
    one = evidence.registered.get(evidence.key(entry))
    if one is None or one.how or one.span is None:
        return
    start, end = one.span
    block = evidence.oracle.geometry.mamba_block
    inside = f", which began inside that block with the state at {start} in it," if start % block else ""
    yield (
        f"{one.request} registered the state at {entry.position} in step {one.index}, but its chunk "
        f"[{start}, {end}){inside} neither ended nor exported there."
    )


def _states(evidence: Evidence, entry: Entry) -> Iterator[str]:
    """Which states there are instead of one that was never computed."""
    computed = dict(evidence.computed_before(entry.group, evidence.oracle.histories[entry.request]))
    if entry.position in computed:
        return
    nearest = sorted(sorted(computed, key=lambda at: abs(at - entry.position))[:LISTED])
    listed = ", ".join(f"{at} ({computed[at]})" for at in nearest)
    yield f"On this prefix states were computed {f'only at {listed}' if listed else 'nowhere'}."


def _jumped(evidence: Evidence, forecast: Forecast, finding: Finding) -> Iterator[str]:
    chunk = next((one for one in forecast.chunks if one.history.id == finding.request), None)
    if chunk is None or finding.position is None:
        return
    history, item, export = chunk.history, chunk.scheduled, chunk.publications.export
    stop = finding.position
    wants = {
        "jumped-checkpoint": f"{stop} is the checkpoint of {history.id}'s prompt of {history.prompt} tokens",
        "jumped-junction": f"{history.id}'s junction asks for a state at {stop}, for others with its prefix",
        "jumped-block": f"{stop} is the last block end that a lookup could use",
    }
    why = wants.get(finding.kind.removesuffix("-resumed"), f"{stop} is a required stop")
    if finding.kind.endswith("-resumed"):
        why = f"{why}; started again, it prefills its outputs too, {history.known} tokens"
    exported = f"only {export} was exported" if export else "nothing was exported"
    yield f"{why}. The chunk [{item.start}, {item.end}) passes {stop}, and {exported}."
    group = evidence.oracle.geometry.mamba[0].index
    before = [at for at, _ in evidence.computed_before(group, history) if at < stop]
    nearest = max([*before, item.start])
    left = f"the nearest computed below is at {nearest}" if nearest else "none is computed below either"
    yield f"So {history.id} leaves no state at {stop}; {left}."


def _entry(
    evidence: Evidence, index: int, observation: Observation, forecast: Forecast, finding: Finding
) -> Iterator[str]:
    """For an entry that is missing, or visible and should not be."""
    kinds = [group.kind for group in evidence.oracle.geometry.groups]
    missing = next((one for one in forecast.missing if one.position == finding.position), None)
    stray = next((one for one in forecast.stray if one.position == finding.position), None)
    if missing is not None and finding.rule in ("RT1", "RT2", "CP7"):
        yield from _missing(evidence, observation, forecast, missing)
    elif stray is not None and kinds[stray.group] == "mamba":
        evidence.learn(index, observation, forecast)
        yield from _origin(evidence, stray)
        yield from _states(evidence, stray)


def _missing(evidence: Evidence, observation: Observation, forecast: Forecast, entry: Entry) -> Iterator[str]:
    chunk = next((one for one in forecast.chunks if one.history.id == entry.request), None)
    if chunk is None:
        return
    at, item, left = entry.position, chunk.scheduled, chunk.publications
    if evidence.oracle.geometry.groups[entry.group].kind != "mamba":
        yield f"{entry.request} has computed the tokens through {at}, so the entry must be there."
        return
    learned = {one.history.id: one.admitted.junction for one in forecast.admissions}
    junction = learned.get(entry.request, chunk.history.junction)
    kept = evidence.why_kept(chunk.history, at, junction) or "to be kept"
    exported = f" and exported {left.export}" if left.export not in (0, at) else ""
    made = f"exported {at}" if at == left.export else f"ended at {at}{exported}"
    others = sorted({one.position for one in observation.published if one.group == entry.group})
    registered = f"states at {places(others)} only" if others else "no state"
    yield (
        f"{entry.request}'s chunk [{item.start}, {left.sure}) {made}. {at} is {kept}, so its state must be "
        f"found later; the step registered {registered}."
    )
