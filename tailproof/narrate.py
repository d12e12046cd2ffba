"""Explains a divergence as an argument from what was observed, with one picture of the token axis."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.protocol import trace_document
from reference.history import History
from reference.oracle import Forecast, Oracle
from spec.geometry import Geometry
from spec.observation import Observation, Outcome
from spec.rules import RULES
from spec.trace import Configuration, Trace, prompt_length
from tailproof.axis import Mark, Span, draw
from tailproof.lockstep import Divergence

_MOST_LINES = 14
_WIDTH = 72


def explain_divergence(trace: Trace, outcome: Outcome, divergence: Divergence) -> list[str]:
    """The lines that a report shows under a divergence."""
    rule = RULES[divergence.rule]
    lines = [
        f"{rule.id} is broken: {divergence.finding.message}.",
        f"The rule: {rule.statement}",
        f"Why it matters: {rule.reason}",
        f"Setting: {setting(trace.configuration)}.",
    ]
    events = list(_events(trace, outcome, divergence))
    if len(events) > _MOST_LINES:
        left_out = len(events) - _MOST_LINES
        events = [f"({left_out} earlier events left out)", *events[-_MOST_LINES:]]
    return [*lines, *events, *_picture(trace, outcome, divergence)]


def _picture(trace: Trace, outcome: Outcome, divergence: Divergence) -> list[str]:
    """The token axis of the request that the finding concerns, when the step ran it."""
    request, observation = divergence.finding.request, outcome.observations[divergence.index]
    item = next((item for item in observation.scheduled if item.request == request), None)
    submit = next((submit for submit in trace.submits() if submit.id == request), None)
    if item is None or submit is None:
        return []
    prompt = prompt_length(submit.prompt)
    checkpoint = Geometry.of(trace.configuration).checkpoint(prompt)
    marks = [Mark(prompt, "P"), Mark(checkpoint, "C")]
    if divergence.finding.position is not None:
        marks.append(Mark(divergence.finding.position, divergence.rule))
    spans = [Span(item.start, item.end, "recomputed", "this step")]
    if item.start:
        spans.insert(0, Span(0, item.start, "reused", "before"))
    return [f"The tokens of {request}:", *draw(marks, _WIDTH, spans)]


def setting(configuration: Configuration) -> str:
    """A configuration in words."""
    geometry = Geometry.of(configuration)
    parts = [f"U {geometry.unit}", f"Mamba block {geometry.mamba_block}"]
    blocks = sorted({group.block for group in geometry.attention} - {geometry.mamba_block})
    parts.extend(f"attention block {block}" for block in blocks)
    if configuration.eagle:
        drafts = [str(index) for index, group in enumerate(configuration.groups) if group.draft]
        marked = f"group {', '.join(drafts)} marked as draft" if drafts else "no group marked"
        parts.append(f"EAGLE with {configuration.speculative} drafts, {marked}")
    else:
        parts.append("no EAGLE")
    alignment = geometry.mamba[0].checkpoint_alignment
    parts.append("states at chunk ends" if alignment is None else f"exports aligned to {alignment}")
    retention = configuration.retention
    parts.append("dense retention" if retention is None else f"retention {retention}")
    if geometry.junctions:
        parts.append("junction checkpoints")
    parts.append(f"{configuration.budget} tokens a step")
    return ", ".join(parts)


def _events(trace: Trace, outcome: Outcome, divergence: Divergence) -> Iterator[str]:
    oracle = Oracle(trace)
    for index, observation in enumerate(outcome.observations[: divergence.index + 1]):
        forecast = oracle.forecast(observation)
        yield from _told(oracle, index, observation, forecast)
        if index < divergence.index:
            oracle.adopt(observation, forecast)


def _told(oracle: Oracle, index: int, observation: Observation, forecast: Forecast) -> Iterator[str]:
    where = f"step {index}:"
    step = trace_document(oracle.trace)["steps"][observation.at]
    if observation.do == "submit":
        history = oracle.histories[step["id"]]
        checkpoint = oracle.geometry.checkpoint(history.prompt)
        prompt = " + ".join(f"{length} of {name!r}" for name, length in step["prompt"])
        yield f"{where} {history.id} arrives, P = {history.prompt} ({prompt}), so C = {checkpoint}."
        return
    if observation.do == "abort":
        yield f"{where} {step['id']} is aborted."
        return
    if observation.do == "reset_local":
        yield f"{where} a reset of the local cache {'takes effect' if observation.reset else 'is refused'}."
        return
    for admission in forecast.admissions:
        learned = admission.admitted.junction
        tail = f", and learns that {learned} tokens are shared" if learned else ""
        told = _admission(admission.history, admission.admitted.local, admission.lookup.hit)
        yield f"{where} {told}{tail}."
    for chunk in forecast.chunks:
        item = chunk.scheduled
        parts = [f"{where} {item.request} computes [{item.start}, {item.end})"]
        if item.drafts:
            parts.append(f", {item.drafts} of them drafts")
        if chunk.publications.export:
            parts.append(f", exports its state at {chunk.publications.export}")
        yield "".join(parts) + "."
    kinds = [group.kind for group in oracle.geometry.groups]
    states = sorted({entry.position for entry in observation.published if kinds[entry.group] == "mamba"})
    if states:
        yield f"{where} states become visible at {', '.join(map(str, states))}."
    for read in observation.failed_reads:
        yield f"{where} {read.request} reads wrong content of group {read.group} at {read.position}."
    if observation.failure is not None:
        yield f"{where} {observation.failure.message}."


def _admission(history: History, hit: int, due: int) -> str:
    verdict = "as due" if hit == due else f"due was {due}"
    return f"{history.id} is admitted with {hit} of {history.known} tokens reused ({verdict})"
