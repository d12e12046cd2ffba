"""Answers an operator's question: what a resend of a prompt will hit, and why not more.

Every number comes from a run of the reference (the prompt, then the same prompt again) or from a function
of the spec.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from reference.engine import SlowEngine
from spec.geometry import Geometry, GeometryError
from spec.profiles import PROFILES
from spec.trace import Configuration, Group, Settle, Submit
from tailproof.explain import axis
from tailproof.explain.axis import Mark, Span

FORMAT = 1
CAP = 4


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a resend of a prompt hits, and why. All lengths and positions are in tokens.

    `grid` is where hits land (U when `fine`, else L), `margin` M_g of attention. `checkpoint` is C, and
    `proof_end` where its proof ends; `limit` is P − 1, `hashed` the tokens that have a hash, `scan_end` the
    last token that the proof scan inspects, `extent` what it finds. `states` and `entries` are the Mamba
    and attention positions visible after the first run, `chunks` its (start, end). `reasons` are
    (rule id, sentence), `rules` the rule behind each number.
    """

    prompt: int
    unit: int
    block: int
    align: int
    eagle: bool
    profile: str
    retention: int | None
    fine: bool
    grid: int
    margin: int
    checkpoint: int
    proof_end: int
    hit: int
    recomputed: int
    limit: int
    hashed: int
    scan_end: int
    extent: int
    states: tuple[int, ...]
    entries: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...]
    reasons: tuple[tuple[str, str], ...]
    rules: dict[str, str]


def explain(
    prompt: int,
    unit: int,
    block: int,
    *,
    align: int | None = None,
    eagle: bool = False,
    profile: str = "drop",
    retention: int | None = 0,
    engine: type[SlowEngine] = SlowEngine,
) -> Explanation:
    """Run a prompt of `prompt` tokens twice and explain the second run.

    The layout is one Mamba group with blocks of `block` tokens and one attention group with blocks of
    `align` tokens (default: `block`); the token budget is larger than the prompt. `engine` is the
    reference, or a planted fault of it.

    Raises:
        GeometryError: when there is no such layout; one line that says what to do.
    """
    align = block if align is None else align
    _check(prompt, unit, block, align, eagle, profile)
    run = engine(
        Configuration(
            groups=(Group("full", align), Group("mamba", block)),
            unit=unit,
            eagle=eagle,
            speculative=1 if eagle else 0,
            retention=retention,
            blocks=4 * (prompt // block + 8),
            budget=prompt + 1,
            profile=profile,
        )
    )
    geometry = run.geometry
    attention, mamba = geometry.attention[0], geometry.mamba[0]
    segments = (("prompt", prompt),)
    first = [*run.step(0, Submit("first", segments)), *run.step(1, Settle())]
    published = [entry for observation in first for entry in observation.published]
    submitted = list(run.step(2, Submit("resend", segments)))
    extent = run.lookup(run.histories["resend"]).extents[0]
    resend = [*submitted, *run.step(3, Settle())]
    hit = next(admitted.local for observation in resend for admitted in observation.admitted)
    checkpoint = geometry.checkpoint(prompt)
    hashes = geometry.profile.hashes(prompt, unit, eagle)
    bound = geometry.profile.bound(prompt - 1, attention.margin, hashes, unit)
    step = unit if geometry.fine else attention.block
    facts = _Facts(
        geometry=geometry,
        limit=prompt - 1,
        margin=attention.margin,
        checkpoint=checkpoint,
        hit=hit,
        hashed=hashes * unit,
        scan_end=bound // step * step,
        extent=extent,
        states=tuple(sorted(entry.position for entry in published if entry.group == mamba.index)),
        entries=tuple(sorted(entry.position for entry in published if entry.group == attention.index)),
        chunks=tuple((item.start, item.end) for observation in first for item in observation.scheduled),
    )
    return Explanation(
        prompt=prompt,
        unit=unit,
        block=block,
        align=align,
        eagle=eagle,
        profile=profile,
        retention=retention,
        fine=geometry.fine,
        grid=geometry.grid,
        margin=facts.margin,
        checkpoint=checkpoint,
        proof_end=checkpoint + facts.margin if checkpoint else 0,
        hit=hit,
        recomputed=prompt - hit,
        limit=facts.limit,
        hashed=facts.hashed,
        scan_end=facts.scan_end,
        extent=extent,
        states=facts.states,
        entries=facts.entries,
        chunks=facts.chunks,
        reasons=tuple(_reasons(facts)),
        rules={
            # The old checkpoint is not the maximal one of CP4; CP6 says how the two compare.
            "checkpoint": "CP6" if profile == "old" and eagle else "CP4",
            "proof_end": "PM1",
            "hit": "LK1",
            # The bounds of CP2 are those of a resend that reaches its checkpoint.
            "recomputed": "CP2" if hit == checkpoint else "LK1",
            "limit": "PM2",
            "hashed": "PM5",
            "scan_end": "PM1",
            "extent": "LK1",
            "states": "RT1",
            "entries": "RT1",
            "chunks": "CH1",
        },
    )


def text(explanation: Explanation, width: int = axis.WIDTH) -> list[str]:
    """The lines that a terminal shows, at most `width` wide."""
    proof = f"proof through {explanation.proof_end}" if explanation.proof_end else "no proof needed"
    tokens = "token" if explanation.recomputed == 1 else "tokens"
    rules = explanation.rules
    ends = _listed([end for _, end in explanation.chunks])
    states = _listed(explanation.states) if explanation.states else "none"
    return [
        *textwrap.wrap(_setting(explanation), width),
        f"checkpoint {explanation.checkpoint} ({rules['checkpoint']})",
        f"{proof} ({rules['proof_end']})",
        f"hit {explanation.hit} ({rules['hit']})",
        f"{explanation.recomputed} {tokens} recomputed ({rules['recomputed']})",
        "",
        *axis.draw(_marks(explanation), width, _spans(explanation)),
        "",
        *textwrap.wrap(
            f"first run, budget above the prompt: chunks end at {ends} ({rules['chunks']})", width
        ),
        *textwrap.wrap(f"states kept: {states} ({rules['states']})", width),
        *(
            line
            for rule, sentence in explanation.reasons
            for line in textwrap.wrap(
                f"{sentence} ({rule})", width, initial_indent="- ", subsequent_indent="  "
            )
        ),
    ]


def document(explanation: Explanation) -> dict[str, object]:
    """The JSON document of `tailproof explain --json`."""
    fields = asdict(explanation)
    fields["chunks"] = [list(chunk) for chunk in explanation.chunks]
    fields["states"] = list(explanation.states)
    fields["entries"] = list(explanation.entries)
    fields["reasons"] = [{"rule": rule, "sentence": sentence} for rule, sentence in explanation.reasons]
    return {"format": FORMAT, **fields}


def svg(explanation: Explanation) -> str:
    """The picture as a self-contained SVG document."""
    return axis.svg(_marks(explanation), _setting(explanation), _spans(explanation))


def _check(prompt: int, unit: int, block: int, align: int, eagle: bool, profile: str) -> None:
    for name, value in (("prompt", prompt), ("unit", unit), ("block", block), ("align", align)):
        if value < 1:
            raise GeometryError(f"{name} must be 1 token or more, got {value}")
    if profile not in PROFILES:
        raise GeometryError(f"profile {profile!r} is not known: use one of {', '.join(PROFILES)}")
    if block % unit:
        below = next(size for size in range(min(unit, block), 0, -1) if block % size == 0)
        above = next(size for size in range(min(unit, block), block + 1) if block % size == 0)
        raise GeometryError(f"unit {unit} does not divide block {block}: use {_either(below, above)}")
    if align % block:
        down = align // block * block
        choice = _either(down or block, down + block)
        raise GeometryError(f"align {align} is not a multiple of block {block}: use {choice}")
    if eagle and block == 1:
        raise GeometryError(
            "EAGLE drafts at least one token, which needs a larger block than 1: use 2 or more"
        )


def _either(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} or {high}"


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the reasons are made of; the fields are those of `Explanation`."""

    geometry: Geometry
    limit: int
    margin: int
    checkpoint: int
    hit: int
    hashed: int
    scan_end: int
    extent: int
    states: tuple[int, ...]
    entries: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...]


def _reasons(facts: _Facts) -> Iterator[tuple[str, str]]:
    """The argument: the hit is served; the checkpoint, every state above the hit and the next grid position
    are not, and nowhere else is a state."""
    geometry, hit = facts.geometry, facts.hit
    if not geometry.fine:
        yield (
            "EL1",
            f"hits land on multiples of L = {geometry.grid} only: the unit is a whole Mamba block, so that "
            "no hit can land inside a block",
        )
    if hit:
        yield (
            "LK1",
            f"{hit} is served: a Mamba state is kept there, and attention proof, needed through "
            f"{hit + facts.margin}, reaches {facts.extent}",
        )
    above = [state for state in facts.states if state > hit and state % geometry.grid == 0]
    wanted = [facts.checkpoint] if facts.checkpoint > hit else []
    for length in list(dict.fromkeys([*wanted, *above[: -CAP - 1 : -1], hit + geometry.grid])):
        yield from _obstacles(facts, length)


def _obstacles(facts: _Facts, length: int) -> Iterator[tuple[str, str]]:
    """Why a resend can't hit `length`: what no cache could serve first, then which group stops it."""
    need = length + facts.margin
    impossible = False
    if facts.margin and need > facts.hashed:
        impossible = True
        size = "unit" if facts.geometry.fine else "block"
        yield (
            "CP3",
            f"{length} is not possible: with EAGLE the draft needs the {size} after it as proof, tokens "
            f"{length} to {need}, and only {facts.hashed} tokens are hashed",
        )
    if length > facts.limit:
        impossible = True
        yield (
            "PM2",
            f"{length} is not possible: the limit is P − 1 = {facts.limit}, since the last token must be "
            "computed",
        )
    if impossible:
        return
    if length not in facts.states:
        yield _no_state(facts, length)
    elif facts.extent < need:
        yield _no_proof(facts, length, need)
    else:
        yield "LK1", f"{length} is served by every group, so a shorter hit breaks the rule"


def _no_state(facts: _Facts, length: int) -> tuple[str, str]:
    kept = f"states at {_listed(facts.states)}" if facts.states else "no state is kept"
    if any(end == length for _, end in facts.chunks):
        return "RT1", f"{length} is not served: a chunk ended there, but its Mamba state is not kept ({kept})"
    return "CH3", f"{length} is not served: no Mamba state there, no chunk ended at it ({kept})"


def _no_proof(facts: _Facts, length: int, need: int) -> tuple[str, str]:
    stop = f"{length} is not served: attention proof is needed through {need} and reaches only {facts.extent}"
    beyond = next((entry for entry in facts.entries if entry > facts.scan_end), None)
    if beyond is not None:
        return "PM1", f"{stop}; the next entry is at {beyond}, and the scan stops at {facts.scan_end}"
    return "LK1", f"{stop}; attention entries at {_listed(facts.entries) or 'no position'}"


def _listed(positions: list[int] | tuple[int, ...]) -> str:
    shown = ", ".join(str(position) for position in positions[-CAP:])
    return f"…, {shown}" if len(positions) > CAP else shown


def _setting(explanation: Explanation) -> str:
    parts = [f"prompt {explanation.prompt}, unit {explanation.unit}, block {explanation.block}"]
    if explanation.align != explanation.block:
        parts.append(f"align {explanation.align}")
    parts += ["EAGLE" if explanation.eagle else "no EAGLE", f"profile {explanation.profile}"]
    if explanation.retention != 0:
        parts.append(f"retention {'all' if explanation.retention is None else explanation.retention}")
    return ", ".join(parts)


def _marks(explanation: Explanation) -> list[Mark]:
    marks = [
        Mark(explanation.checkpoint, "checkpoint"),
        Mark(explanation.hit, "hit"),
        Mark(explanation.scan_end, "scan end"),
        Mark(explanation.prompt, "P"),
    ]
    if explanation.proof_end:
        marks.insert(1, Mark(explanation.proof_end, "proof end"))
    return marks


def _spans(explanation: Explanation) -> list[Span]:
    """The proof lies on tokens that a resend computes again, so it is drawn over them."""
    hit, prompt = explanation.hit, explanation.prompt
    spans = [Span(0, hit, "reused"), Span(hit, prompt, "recomputed")]
    if explanation.proof_end > explanation.checkpoint:
        spans.append(Span(explanation.checkpoint, explanation.proof_end, "proof", "proof, recomputed too"))
    return spans
