"""Edits of a trace's configuration that make it plainer, and smaller layouts; nothing is run here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

from spec.geometry import alignment
from spec.trace import Configuration, Group, Step, Submit, Trace, prompt_length

DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Configuration)}
Edit = Callable[[Configuration], Configuration]
LIMITS = ("blocks", "budget", "live", "long_prefill", "encoder")
_STORE_MODES = ("lookup_async", "decode_saves", "receivers", "load_failures")


def features(now: Configuration) -> int:
    """How many features of a configuration are switched on, each group and unequal block size being one."""
    switches = ("eagle", "multi_module", "junctions", "asynchronous", "events")
    switched: int = (
        sum(bool(getattr(now, name)) for name in switches)
        + sum(getattr(now, name) != DEFAULTS[name] for name in (*LIMITS, "policy"))
        + (now.dcp > 1)
        + (1 if now.retention is None else 2 * (now.retention > 0))
        + (now.speculative > 1)
        + 3 * (now.store != "off")
        + 2 * (now.second != "off")
        + sum(role != "both" for role in now.roles if role != "off")
        + sum(getattr(now, name) != DEFAULTS[name] for name in _STORE_MODES)
        + len(now.groups)
        + len({group.block for group in now.groups})
        + sum(
            group.draft
            + group.replicated
            + (group.kind == "window")
            + (group.checkpoint_alignment is not None)
            for group in now.groups
        )
    )
    return switched


def exports(now: Configuration) -> bool:
    """Whether a backend exports states inside a chunk."""
    return any(group.checkpoint_alignment is not None for group in now.groups)


def _regrouped(now: Configuration, groups: Sequence[Group], dcp: int | None = None) -> Configuration:
    """Other groups, with a retention that keeps its multiple of the alignment."""
    changed = replace(now, groups=tuple(groups), dcp=dcp or now.dcp)
    if now.retention and changed.groups:
        times = max(now.retention // alignment(now), 1)
        changed = replace(changed, retention=times * alignment(changed))
    return changed


def _every_group(**values: Any) -> Edit:
    def edit(now: Configuration) -> Configuration:
        return _regrouped(now, [replace(group, **values) for group in now.groups])

    return edit


def _field(name: str, value: Any) -> Edit:
    change: dict[str, Any] = {name: value}
    return lambda now: replace(now, **change)


def _no_windows(now: Configuration) -> Configuration:
    groups = [
        replace(group, kind="full", window=None) if group.kind == "window" else group for group in now.groups
    ]
    return _regrouped(now, groups)


def _no_dcp(now: Configuration) -> Configuration:
    return _regrouped(now, [replace(group, replicated=False) for group in now.groups], 1)


def _no_eagle(now: Configuration) -> Configuration:
    groups = [replace(group, draft=False, replicated=False) for group in now.groups]
    return replace(_regrouped(now, groups), eagle=False, speculative=0, multi_module=False)


def _one_block(now: Configuration) -> Configuration:
    block = next((group.block for group in now.groups if group.kind == "mamba"), now.groups[0].block)
    return _regrouped(now, [replace(group, block=block) for group in now.groups])


def _two_groups(now: Configuration) -> Configuration:
    """The first full attention group and the first Mamba group."""
    first: dict[str, Group] = {}
    for group in now.groups:
        first.setdefault(group.kind, group)
    return _regrouped(now, [first[kind] for kind in ("full", "mamba") if kind in first])


_SWITCHED_OFF: tuple[Edit, ...] = (
    *(_field(name, DEFAULTS[name]) for name in ("events", "asynchronous", "junctions", "policy")),
    *(_field(name, DEFAULTS[name]) for name in (*LIMITS, "multi_module")),
    _two_groups,
    _no_dcp,
    _no_windows,
    _one_block,
    _every_group(draft=False, replicated=False),
    _every_group(replicated=False),
    _every_group(checkpoint_alignment=None),
    _no_eagle,
    lambda now: replace(now, speculative=min(now.speculative, 1)),
    _field("retention", 0),
)


def without_store(now: Configuration) -> Configuration:
    """No store, and none of its modes."""
    plain: dict[str, Any] = {name: DEFAULTS[name] for name in ("store", "second", *_STORE_MODES)}
    return replace(now, **plain)


def _plain_first(now: Configuration) -> Configuration:
    return replace(now, store="both")


def _plain_second(now: Configuration) -> Configuration:
    return replace(now, second="both" if now.second != "off" else "off")


# What can be switched off besides where there is a store.
_OF_THE_STORE: tuple[Edit, ...] = (
    without_store,
    _plain_first,
    _plain_second,
    *(_field(name, DEFAULTS[name]) for name in ("second", *_STORE_MODES)),
)


def _without(now: Configuration, edits: Sequence[Edit]) -> Configuration:
    for edit in edits:
        now = edit(now)
    return now


def plainer_configurations(now: Configuration) -> Iterator[Configuration]:
    """Everything switched off that can be, then everything but one thing, then one thing at a time."""
    edits = _SWITCHED_OFF if now.store == "off" else (*_OF_THE_STORE, *_SWITCHED_OFF)
    yield _without(now, edits)
    yield replace(_without(now, edits), retention=None)
    for at in range(len(edits)):
        yield _without(now, (*edits[:at], *edits[at + 1 :]))
    if now.store != "off":
        yield _without(now, _SWITCHED_OFF)
    for edit in edits:
        yield edit(now)
    yield replace(now, retention=None)
    if now.dcp > 2:
        yield _regrouped(now, now.groups, 2)
    for index in range(len(now.groups)):
        yield _regrouped(now, now.groups[:index] + now.groups[index + 1 :])
    for index, group in enumerate(now.groups):
        for plain in (replace(group, draft=False), replace(group, kind="full", window=None)):
            if group.kind != "mamba" and plain != group:
                yield _regrouped(now, (*now.groups[:index], plain, *now.groups[index + 1 :]))


def smaller_layouts(trace: Trace) -> Iterator[Trace]:
    """Smaller units, then smaller blocks, with every position moved along; then single sizes."""
    now = trace.configuration
    unit = now.unit
    for new in sorted({size for size in (1, 2, 3, 4, unit // 4, unit // 3, unit // 2) if 0 < size < unit}):
        yield rescaled(trace, unit, new, proportional=False)
        yield rescaled(trace, unit, new, proportional=True)
    block = min(group.block for group in now.groups)
    for times in range(1, min(block // unit, 8)):
        yield rescaled(trace, block, times * unit, proportional=False)
        yield rescaled(trace, block, times * unit, proportional=True)
    for new in range(1, unit):
        if unit % new == 0:
            yield replace(trace, configuration=replace(now, unit=new))
    if now.retention:
        yield replace(trace, configuration=replace(now, retention=alignment(now)))
    for index, group in enumerate(now.groups):
        for size in {1, unit, 2 * unit, group.block // 2, block}:
            others = [
                replace(group, block=size) if 0 < size < group.block else group,
                replace(group, checkpoint_alignment=size) if group.checkpoint_alignment else group,
            ]
            for other in others:
                groups = (*now.groups[:index], other, *now.groups[index + 1 :])
                yield replace(trace, configuration=_regrouped(now, groups))


def rescaled(trace: Trace, old: int, new: int, *, proportional: bool) -> Trace:
    """The trace with `new` tokens for every `old`: multiples of `old` stay multiples.

    What lies between two multiples keeps its distance from the lower one as far as it fits, or, when
    `proportional`, its share of the way.
    """

    def moved(position: int) -> int:
        whole, rest = divmod(position, old)
        return whole * new + (-(-rest * new // old) if proportional else min(rest, new - 1))

    def size(value: int) -> int:
        return value if 0 < value < old != trace.configuration.unit else max(moved(value), 1)

    now = trace.configuration
    groups = tuple(
        replace(
            group,
            block=size(group.block),
            checkpoint_alignment=group.checkpoint_alignment and size(group.checkpoint_alignment),
            window=group.window and size(group.window),
        )
        for group in now.groups
    )
    limits: dict[str, Any] = {
        name: size(getattr(now, name))
        for name in ("budget", "long_prefill")
        if getattr(now, name) != DEFAULTS[name]
    }
    unit = new if old == now.unit else now.unit
    most = min((group.block for group in groups if group.kind == "mamba"), default=now.speculative + 1)
    configuration = replace(
        now,
        groups=groups,
        unit=unit,
        retention=now.retention and moved(now.retention),
        speculative=min(now.speculative, most - 1),
        **limits,
    )
    steps: list[Step] = []
    for step in trace.steps:
        if isinstance(step, Submit):
            ends = [prompt_length(step.prompt[: index + 1]) for index in range(len(step.prompt))]
            places = [0, *map(moved, ends)]
            lengths = [end - start for start, end in pairwise(places)]
            named = [(name, length) for (name, _), length in zip(step.prompt, lengths, strict=True)]
            outputs = max(moved(ends[-1] + step.outputs) - places[-1], 1)
            step = replace(step, prompt=tuple(part for part in named if part[1] > 0), outputs=outputs)
        steps.append(step)
    return replace(trace, configuration=configuration, steps=tuple(steps))
