"""The argument at a divergence: what was needed, who had registered it, and what was there instead."""

from __future__ import annotations

from collections.abc import Iterator

from reference.forecast import AdmissionForecast
from spec.geometry import GroupGeometry
from spec.observation import Entry
from tailproof.explain.evidence import Evidence
from tailproof.explain.store import on_prefix
from tailproof.explain.words import LISTED, count, places
from tailproof.judge.entries import missing_entries, stray_entries
from tailproof.judge.findings import Finding
from tailproof.judge.saves import learned_junction
from tailproof.judge.step import Step


def argument(evidence: Evidence, index: int, step: Step, finding: Finding) -> Iterator[str]:
    """Why what was seen breaks the rule: what was needed, and what was there instead."""
    observation = step.observation
    admission = next((one for one in step.expected.admissions if one.history.id == finding.request), None)
    family = finding.rule[:2]
    if observation.failure is not None:
        return
    if admission is not None and family in ("PM", "LK", "EL", "SF"):
        yield from _needs(evidence, admission)
        if finding.rule in ("SF1", "SF3"):
            yield from _too_fresh(step, admission)
    asked = step.histories.get(finding.request or "")
    if observation.store is not None and asked and (family == "TS" or finding.rule == "LK4"):
        yield on_prefix(step, asked)
    elif family == "SF":
        yield from _reads(evidence, step, finding)
    elif finding.stop:
        yield from _jumped(evidence, step, finding)
    elif finding.entry is not None and family in ("CP", "CH", "RT"):
        yield from _entry(evidence, index, step, finding.entry)


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


def _too_fresh(step: Step, admission: AdmissionForecast) -> Iterator[str]:
    """Entries that the reuse touches and that an earlier request registered in the same step."""
    history, hit = admission.history, admission.admitted.local
    found: set[int] = set()
    for entry in admission.admitted.appeared:
        group = step.geometry.groups[entry.group]
        if group.kind == "full" and step.begins(history, entry):
            copied = hit % group.block > 0 and (entry.position - 1) // group.block == hit // group.block
            if copied or entry.position <= hit + group.margin:
                found.add(entry.position)
    if hit and found:
        yield (
            f"The lookup of {history.id} already saw attention at {places(sorted(found))}, registered "
            "earlier in this very step, though the content is written only when the step runs."
        )


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


def _reads(evidence: Evidence, step: Step, finding: Finding) -> Iterator[str]:
    """For a wrong read: where its content should have come from."""
    if finding.request is None or finding.group is None or finding.position is None:
        return
    history, group = step.histories[finding.request], step.geometry.groups[finding.group]
    if group.kind == "mamba":
        if finding.position % step.geometry.unit == 0 and finding.position <= history.known:
            entry = Entry(group.index, finding.position, history.id)
            yield from _origin(evidence, entry)
            yield from _states(evidence, entry)
        return
    prefix = history.tokens[: finding.position + 1]
    begin = finding.position // group.block * group.block
    sharing = [
        chunk.history.id
        for chunk in step.expected.chunks
        if chunk.history is not history
        and chunk.history.tokens[: finding.position + 1] == prefix
        and begin <= chunk.scheduled.start < begin + group.block
    ]
    if sharing:
        yield (
            f"The block [{begin}, {begin + group.block}) was being filled by {' and '.join(sharing)} in this "
            f"step: {history.id} got a copy of it, made before anything was computed."
        )


def _origin(evidence: Evidence, entry: Entry) -> Iterator[str]:
    """How a state without content came to be visible: whose chunk ran past it."""
    one = evidence.registered.get(evidence.key(entry))
    if one is None or one.how:
        return
    at, passing = entry.position, evidence.passing(entry)
    if passing is None:
        return
    index, chunk = passing
    start, end = chunk.scheduled.start, chunk.scheduled.end
    owner, block = chunk.history.id, evidence.oracle.geometry.mamba_block
    whose = "its chunk" if owner == one.request else f"{owner}'s chunk"
    when = "" if index == one.index else f" of step {index}"
    inside = f", which began inside that block with the state at {start} in it," if start % block else ""
    made = "neither ended nor exported there"
    if at == chunk.publications.overwritten and index != one.index:
        made = f"put the export of {chunk.publications.export} into its place"
    yield (
        f"{one.request} registered the state at {at} in step {one.index}, but {whose} [{start}, {end})"
        f"{when}{inside} {made}."
    )


def _states(evidence: Evidence, entry: Entry) -> Iterator[str]:
    """Which states there are instead of one that was never computed."""
    computed = dict(evidence.computed_before(entry.group, evidence.oracle.histories[entry.request]))
    if entry.position in computed:
        return
    nearest = sorted(sorted(computed, key=lambda at: abs(at - entry.position))[:LISTED])
    listed = ", ".join(f"{at} ({computed[at]})" for at in nearest)
    yield f"On this prefix states were computed {f'only at {listed}' if listed else 'nowhere'}."


def _jumped(evidence: Evidence, step: Step, finding: Finding) -> Iterator[str]:
    chunk = next((one for one in step.expected.chunks if one.history.id == finding.request), None)
    if chunk is None or finding.position is None:
        return
    history, item, export = chunk.history, chunk.scheduled, chunk.publications.export
    stop = finding.position
    why = {
        "checkpoint": f"{stop} is the checkpoint of {history.id}'s prompt of {history.prompt} tokens",
        "junction": f"{history.id}'s junction asks for a state at {stop}, for others with its prefix",
        "block": f"{stop} is the last block end that a lookup could use",
    }[finding.stop]
    if history.known > history.prompt:
        why = f"{why}; started again, it prefills its outputs too, {history.known} tokens"
    exported = f"only {export} was exported" if export else "nothing was exported"
    yield f"{why}. The chunk [{item.start}, {item.end}) passes {stop}, and {exported}."
    group = step.geometry.mamba[0].index
    before = [at for at, _ in evidence.computed_before(group, history) if at < stop]
    nearest = max([*before, item.start])
    left = f"the nearest computed below is at {nearest}" if nearest else "none is computed below either"
    yield f"So {history.id} leaves no state at {stop}; {left}."


def _entry(evidence: Evidence, index: int, step: Step, entry: Entry) -> Iterator[str]:
    """For an entry that is missing, or visible and should not be."""
    if entry in missing_entries(step):
        yield from _missing(evidence, step, entry)
    elif entry in stray_entries(step):
        yield from _dropped(step, entry)
        if step.kind(entry) == "mamba":
            evidence.learn(index, step)
            yield from _origin(evidence, entry)
            yield from _states(evidence, entry)


def _dropped(step: Step, entry: Entry) -> Iterator[str]:
    """Requests that would have computed a stray entry, had they not been preempted in the very step."""
    for request in step.observation.preempted:
        if step.begins(step.histories[request], entry):
            yield (
                f"{request}, which has this prefix, was preempted in this very step: what it was to compute, "
                "and was registered for, was never computed."
            )


def _missing(evidence: Evidence, step: Step, entry: Entry) -> Iterator[str]:
    chunk = next((one for one in step.expected.chunks if one.history.id == entry.request), None)
    if chunk is None:
        return
    at, item, left = entry.position, chunk.scheduled, chunk.publications
    if step.kind(entry) != "mamba":
        yield f"{entry.request} has computed the tokens through {at}, so the entry must be there."
        return
    kept = evidence.why_kept(chunk.history, at, learned_junction(chunk, step.expected)) or "to be kept"
    exported = f" and exported {left.export}" if left.export not in (0, at) else ""
    made = f"exported {at}" if at == left.export else f"ended at {at}{exported}"
    others = sorted({one.position for one in step.observation.published if one.group == entry.group})
    registered = f"states at {places(others)} only" if others else "no state"
    yield (
        f"{entry.request}'s chunk [{item.start}, {left.sure}) {made}. {at} is {kept}, so its state must be "
        f"found later; the step registered {registered}."
    )
