"""Explains a divergence as an argument from what was observed, with one picture of the token axis."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from reference.forecast import AdmissionForecast
from reference.oracle import Oracle, oracles
from spec.geometry import Geometry
from spec.observation import Observation, Outcome
from spec.rules import RULES
from spec.trace import TURN, Abort, Configuration, Submit, Trace, prompt_length
from tailproof.explain.argument import argument
from tailproof.explain.axis import Mark, Span, draw
from tailproof.explain.evidence import KINDS, Evidence, Registration
from tailproof.explain.store import is_still, meddling, shown, standing, store_setting
from tailproof.explain.words import LISTED, count, places
from tailproof.judge.findings import Divergence
from tailproof.judge.saves import learned_junction
from tailproof.judge.step import Step

_MOST_LINES = 16
_LEAST_EVENTS = 4
_ARRIVES = " arrives with "
_WIDTH = 72
_DEFAULTS = Configuration(groups=(), unit=1)

_LIES_AT = re.compile(r'File "[^"]*/((?:vllm|adapters|torch)/)')


def explain_divergence(trace: Trace, outcome: Outcome, divergence: Divergence) -> list[str]:
    """The lines that a report shows under a divergence: the claim, what led to it, why that is wrong.

    About 16 lines; the detail of a target that broke off comes in full.
    """
    rule, failure = RULES[divergence.rule], outcome.observations[divergence.index].failure
    head = [
        f"{rule.id} is broken: {divergence.finding.message}.",
        f"The rule: {rule.statement}",
        f"Why it matters: {rule.reason}",
        f"Setting: {setting(trace.configuration)}.",
    ]
    told, reasons = _story(trace, outcome, divergence)
    picture = _picture(trace, outcome, divergence)
    room = max(_MOST_LINES - len(head) - len(reasons) - len(picture), _LEAST_EVENTS)
    told = _shortened(told, room)
    # Where a package lies on one machine is nobody else's business.
    detail = _LIES_AT.sub(r'File "\1', failure.detail).splitlines() if failure is not None else []
    if failure is not None and failure.kind != "stuck":
        detail = detail[-LISTED:]
    return [*head, *told, *reasons, *detail, *picture]


def _shortened(lines: list[str], room: int) -> list[str]:
    """At most `room` lines: the oldest are left out, but arrivals stay as long as others can go."""
    if len(lines) <= room:
        return lines
    left_out = len(lines) - room + 1
    oldest_first = sorted(range(len(lines)), key=lambda at: (_ARRIVES in lines[at], at))
    gone = set(oldest_first[:left_out])
    kept = [line for at, line in enumerate(lines) if at not in gone]
    kept.insert(min(gone), f"({left_out} lines left out)")
    return kept


def setting(configuration: Configuration) -> str:
    """A configuration in words; what is left at its default and means nothing is left out."""
    geometry = Geometry.of(configuration)
    parts = [f"U {geometry.unit}", f"Mamba block {geometry.mamba_block}"]
    blocks = sorted({group.block for group in geometry.attention} - {geometry.mamba_block})
    parts.extend(f"attention block {block}" for block in blocks)
    for group in configuration.groups:
        if group.kind == "window":
            parts.append(f"a sliding window of {group.window} in blocks of {group.block}")
    if configuration.dcp > 1:
        parts.append(f"DCP {configuration.dcp}")
    if configuration.eagle:
        drafts = [
            f"{index} (replicated)" if group.replicated else str(index)
            for index, group in enumerate(configuration.groups)
            if group.draft
        ]
        marked = f"group {', '.join(drafts)} marked as draft" if drafts else "no group marked"
        plural = "" if configuration.speculative == 1 else "s"
        own = " in modules of their own" if configuration.multi_module else ""
        parts.append(f"EAGLE with {configuration.speculative} draft{plural}{own}, {marked}")
    else:
        parts.append("no EAGLE")
    if geometry.hash_lookahead:
        plural = "" if geometry.hash_lookahead == 1 else "s"
        parts.append(f"hashes that cover {geometry.hash_lookahead} more token{plural}")
    alignment = geometry.mamba[0].checkpoint_alignment
    parts.append("states at chunk ends" if alignment is None else f"exports aligned to {alignment}")
    retention = configuration.retention
    parts.append("dense retention" if retention is None else f"retention {retention}")
    if geometry.junctions:
        parts.append("junction checkpoints")
    for name, text in (
        ("budget", "{} tokens a step"),
        ("long_prefill", "at most {} tokens of a long prefill a step"),
        ("blocks", "a pool of {} blocks"),
        ("live", "at most {} running"),
        ("policy", "policy {}"),
    ):
        if getattr(configuration, name) != getattr(_DEFAULTS, name):
            parts.append(text.format(getattr(configuration, name)))
    if configuration.asynchronous:
        parts.append("asynchronous scheduling")
    if configuration.events:
        parts.append("KV events")
    parts.extend(store_setting(configuration))
    return ", ".join(parts)


def _story(trace: Trace, outcome: Outcome, divergence: Divergence) -> tuple[list[str], list[str]]:
    """What happened until the divergence, and the argument at it."""
    engines = [Evidence(oracle) for oracle in oracles(trace)]
    lines: list[str] = []
    arrivals: list[tuple[int, str]] = []
    quiet: list[tuple[int, Observation]] = []
    for index, observation in enumerate(outcome.observations[: divergence.index + 1]):
        evidence = engines[observation.engine]
        oracle, last = evidence.oracle, index == divergence.index
        step, told = Step(observation, oracle.forecast(observation), oracle), oracle.step(observation)
        if isinstance(told, Submit):
            arrivals.append((index, _arrival(oracle, told)))
        elif not last and _is_quiet(oracle, observation):
            quiet.append((index, observation))
        if not isinstance(told, Submit) or last:
            lines.extend(_arrived(arrivals))
            arrivals.clear()
        if not quiet or quiet[-1][0] < index:
            lines.extend(_computed(quiet))
            quiet.clear()
            lines.extend(_told(evidence, index, step, divergence.rule))
        if last:
            reasons = list(argument(evidence, index, step, divergence.finding))
            if _concerns_blocks(divergence, observation):
                reasons.extend(standing(trace, outcome, index))
            return lines, reasons
        evidence.learn(index, step)
        oracle.adopt(observation, step.expected)
    return lines, []


def _is_quiet(oracle: Oracle, observation: Observation) -> bool:
    """Whether an engine step did nothing but compute, and register attention at most."""
    other = (
        observation.admitted,
        observation.preempted,
        observation.withdrawn,
        observation.failed_reads,
        observation.failure,
        any(oracle.geometry.groups[entry.group].kind == "mamba" for entry in observation.published),
    )
    return observation.do in ("run", "settle") and not any(other) and is_still(observation.store)


def _concerns_blocks(divergence: Divergence, observation: Observation) -> bool:
    """Whether who holds what is part of the explanation."""
    stuck = observation.failure is not None and observation.failure.kind in ("stuck", "hang")
    return stuck or divergence.rule[:2] == "LT"


def _arrived(arrivals: Sequence[tuple[int, str]]) -> list[str]:
    if not arrivals:
        return []
    return [f"{_steps(arrivals[0][0], arrivals[-1][0])}: {'; '.join(text for _, text in arrivals)}."]


def _computed(quiet: Sequence[tuple[int, Observation]]) -> list[str]:
    """One line for steps in a row that only computed."""
    if not quiet:
        return []
    spans: dict[str, tuple[int, int]] = {}
    seen: set[int] = set()
    for _, observation in quiet:
        for item in observation.scheduled:
            spans[item.request] = (spans.get(item.request, (item.start, 0))[0], item.end)
        seen.update(entry.position for entry in observation.published)
    chunks = [f"{request} computes [{start}, {end})" for request, (start, end) in spans.items()]
    registered = f"attention at {places(sorted(seen))}" if seen else "nothing"
    did = f"{', '.join(chunks)}; {registered} is registered" if chunks else "nothing is computed"
    return [f"{_steps(quiet[0][0], quiet[-1][0])}: {did}."]


def _steps(first: int, last: int) -> str:
    if last - first < 2:
        return f"step {first}" if first == last else f"steps {first}, {last}"
    return f"steps {first} to {last}"


def _told(evidence: Evidence, index: int, step: Step, rule: str) -> Iterator[str]:
    """A step that did more than compute."""
    oracle, observation, forecast = step.oracle, step.observation, step.expected
    where = f"step {index}{_at_engine(oracle)}:"
    told = oracle.step(observation)
    if isinstance(told, Abort):
        yield f"{where} {told.id} is aborted."
    elif observation.do == "reset_local":
        again = [one.id for one in oracle.live() if one.state == "running"] if observation.reset else []
        took = "takes effect" if observation.reset else "is refused"
        tail = f"; {' and '.join(again)} must start again" if again else ""
        yield f"{where} a reset of the local cache {took}{tail}."
    elif meddled := meddling(told):
        yield f"{where} {meddled}."
    registrations = evidence.registrations(index, step)
    admissions = {one.history.id: one for one in forecast.admissions}
    for chunk in forecast.chunks:
        item, parts = chunk.scheduled, []
        admission = admissions.pop(item.request, None)
        if admission is not None:
            parts.append(_admitted(admission))
        drafts = f" with {count(item.drafts, 'draft')}" if item.drafts else ""
        parts.append(f"computes [{item.start}, {item.end}){drafts}")
        if chunk.publications.export:
            parts.append(f"exports its state at {chunk.publications.export}")
        mine = [one for one in registrations if one.request == item.request and one.span]
        registered = _registered(evidence, mine, learned_junction(chunk, forecast))
        yield f"{where} {item.request} {', '.join(parts)}, registers {registered}."
    for admission in admissions.values():
        yield f"{where} {admission.history.id} {_admitted(admission)}."
    for request in observation.preempted:
        yield f"{where} {request} is preempted."
    if others := [one for one in registrations if one.span is None]:
        owners = " and ".join(dict.fromkeys(one.request for one in others))
        yield f"{where} {owners} computes nothing, but there appears {_registered(evidence, others, 0)}."
    if of_store := list(shown(step, pins=rule[:2] == "LT")):
        yield f"{where} {'; '.join(of_store)}."


def _at_engine(oracle: Oracle) -> str:
    return f", engine {oracle.engine}" if oracle.configuration.second != "off" else ""


def _arrival(oracle: Oracle, step: Submit) -> str:
    history = oracle.histories[step.id]
    checkpoint = f"checkpoint {oracle.geometry.checkpoint(history.prompt)}"
    where = f", at{_at_engine(oracle).removeprefix(',')}" if _at_engine(oracle) else ""
    salt = f" under the salt {step.salt!r}" if step.salt else ""
    salt += f" with the adapter {step.adapter!r}" if step.adapter else ""
    salt += "".join(f", media {name!r} on [{at}, {at + size})" for name, at, size in step.media)
    for other in oracle.histories.values():
        alike = (other.submit.prompt, other.submit.media) == (step.prompt, step.media)
        if other.order < history.order and alike:
            return f"{step.id}{_ARRIVES}the prompt of {other.id}{salt}{where}"
    parts = " + ".join(_part(name, length) for name, length in step.prompt)
    size = count(history.prompt, "token")
    return f"{step.id}{_ARRIVES}{size} ({parts}){salt}, {checkpoint}{where}"


def _part(name: str, length: int) -> str:
    if name.startswith(TURN):
        return f"{length} of prompt and outputs of {name.removeprefix(TURN)}"
    return f"{length} of '{name}'"


def _admitted(admission: AdmissionForecast) -> str:
    hit, due = admission.admitted.local, admission.lookup.hit
    text = f"reuses {count(hit, 'token')}" if hit else "finds nothing to reuse"
    if hit != due:
        text = f"{text} (due was {due})"
    if admission.admitted.junction:
        text = f"{text}, learns of a junction at {admission.admitted.junction}"
    return text


def _registered(evidence: Evidence, registrations: Sequence[Registration], junction: int) -> str:
    parts: dict[str, None] = {}
    positions: dict[str, set[int]] = {}
    for one in registrations:
        entry = one.entry
        kind = evidence.oracle.geometry.groups[entry.group].kind
        if kind == "mamba":
            history = evidence.oracle.histories[one.request]
            kept = evidence.why_kept(history, entry.position, junction)
            reasons = ", ".join(part for part in (one.how or "not computed here", kept) if part)
            parts.setdefault(f"the state at {entry.position} ({reasons})")
        else:
            name = KINDS[kind] if one.how else f"{KINDS[kind]} that was not computed"
            positions.setdefault(name, set()).add(entry.position)
    listed = [*parts, *(f"{name} at {places(sorted(seen))}" for name, seen in positions.items())]
    return ", ".join(listed) or "nothing"


def _picture(trace: Trace, outcome: Outcome, divergence: Divergence) -> list[str]:
    """The token axis of the request that the finding concerns, when the step ran it."""
    request, observation = divergence.finding.request, outcome.observations[divergence.index]
    item = next((item for item in observation.scheduled if item.request == request), None)
    submit = next((submit for submit in trace.submits() if submit.id == request), None)
    if item is None or submit is None:
        return []
    prompt = prompt_length(submit.prompt)
    checkpoint = Geometry.of(trace.configuration).checkpoint(prompt)
    marks = [Mark(prompt, "P"), Mark(checkpoint, "checkpoint")]
    if divergence.finding.position is not None:
        marks.append(Mark(divergence.finding.position, divergence.rule))
    if item.start > 0 and item.start not in {mark.position for mark in marks}:
        marks.append(Mark(item.start, "start"))
    spans = [Span(item.start, item.end, "recomputed", "this step")]
    if item.start:
        spans.insert(0, Span(0, item.start, "reused", "before"))
    return [f"The tokens of {request}:", *draw(marks, _WIDTH, spans)]
