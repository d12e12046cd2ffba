"""Explains a divergence as an argument from what was observed, with one picture of the token axis."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from reference.forecast import AdmissionForecast
from reference.oracle import Oracle, oracles
from spec.geometry import Geometry
from spec.notation import setting_line
from spec.observation import Observation, Outcome
from spec.rules import RULES
from spec.trace import TURN, Abort, Submit, Trace, prompt_length
from tailproof.explain.argument import argument
from tailproof.explain.axis import Mark, Span, draw
from tailproof.explain.evidence import KINDS, Evidence, Registration
from tailproof.explain.store import entries, is_still, meddling, shown, standing
from tailproof.explain.words import LISTED, count, places
from tailproof.judge.findings import Divergence
from tailproof.judge.saves import learned_junction
from tailproof.judge.step import Step

_MOST_LINES = 16
_LEAST_EVENTS = 4
_ARRIVES = " arrives with "
_WIDTH = 72

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
        f"Setting: {setting_line(trace.configuration)}",
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


def happened(trace: Trace, outcome: Outcome, *, pins: bool = False) -> list[str]:
    """A whole run in words: what each step reused, computed, registered and lost, who ended, what went to and
    came from the store, and who holds what at last. Steps in a row that only decode have one line. With
    `pins`, also which jobs hold blocks."""
    teller = _Teller(trace, outcome, whole=True, pins=pins)
    for index in range(len(outcome.observations)):
        teller.take(index)
    return [*teller.lines, *standing(trace, outcome, len(outcome.observations) - 1)]


def _story(trace: Trace, outcome: Outcome, divergence: Divergence) -> tuple[list[str], list[str]]:
    """What happened until the divergence, and the argument at it."""
    last, rule = divergence.index, divergence.rule
    teller = _Teller(trace, outcome, pins=rule[:2] == "LT")
    for index in range(last):
        teller.take(index)
    evidence, step = teller.take(last, last=True)
    reasons = list(argument(evidence, last, step, divergence.finding))
    if trace.configuration.store != "off" and _concerns_blocks(divergence, step.observation):
        reasons.extend(standing(trace, outcome, last))
    return teller.lines, reasons


class _Teller:
    """Tells of a run step by step. Arrivals in a row share a line, and so do quiet steps."""

    def __init__(self, trace: Trace, outcome: Outcome, *, whole: bool = False, pins: bool = False) -> None:
        self.lines: list[str] = []
        self._outcome = outcome
        self._engines = [Evidence(oracle) for oracle in oracles(trace)]
        self._whole, self._pins = whole, pins
        self._arrivals: list[tuple[int, str]] = []
        self._quiet: list[tuple[int, Observation]] = []

    def take(self, index: int, *, last: bool = False) -> tuple[Evidence, Step]:
        """Tell of an observation and follow it, which the last one is not."""
        observation = self._outcome.observations[index]
        evidence = self._engines[observation.engine]
        oracle = evidence.oracle
        step, told = Step(observation, oracle.forecast(observation), oracle), oracle.step(observation)
        last = last or index == len(self._outcome.observations) - 1
        if isinstance(told, Submit):
            self._arrivals.append((index, _arrival(oracle, told)))
        elif not last and self._is_quiet(oracle, observation):
            self._quiet.append((index, observation))
        if not isinstance(told, Submit) or last:
            self.lines += _arrived(self._arrivals)
            self._arrivals.clear()
        if not self._quiet or self._quiet[-1][0] < index:
            self.lines += _computed(self._quiet)
            self._quiet.clear()
            self.lines += _told(evidence, index, step, pins=self._pins)
            if self._whole:
                self.lines += _ended(index, step)
        if not last or self._whole:
            evidence.learn(index, step)
            oracle.adopt(observation, step.expected)
        return evidence, step

    def _is_quiet(self, oracle: Oracle, observation: Observation) -> bool:
        """Whether an engine step did nothing but compute, and register attention at most; in a whole story,
        nothing but decode."""
        if self._whole:
            more = any(one.end - one.start - one.drafts > 1 for one in observation.scheduled)
            if more or observation.finished or observation.published or not observation.scheduled:
                return False
        other = (
            observation.admitted,
            observation.preempted,
            observation.withdrawn,
            observation.failed_reads,
            observation.failure,
            any(oracle.geometry.groups[entry.group].kind == "mamba" for entry in observation.published),
        )
        return observation.do in ("run", "settle") and not any(other) and is_still(observation.store)


def _ended(index: int, step: Step) -> Iterator[str]:
    """What only a whole story tells of a step: what the cache lost, and how requests ended."""
    seen, parts = step.observation, []
    if seen.withdrawn:
        parts.append(f"the cache no longer has {entries(step.oracle, seen.withdrawn)}")
    for one in seen.finished:
        reused = "" if one.cached is None else f", {count(one.cached, 'token')} said to be reused"
        parts.append(f"{one.request} ends ({one.reason}) with {count(len(one.outputs), 'output')}{reused}")
    if seen.failure is not None:
        parts.append(f"it breaks off ({seen.failure.kind}): {seen.failure.message}")
    if parts:
        yield f"step {index}{_at_engine(step.oracle)}: {'; '.join(parts)}."


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


def _told(evidence: Evidence, index: int, step: Step, *, pins: bool) -> Iterator[str]:
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
    if of_store := list(shown(step, pins=pins)):
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
