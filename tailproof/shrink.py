"""Makes a failing trace small: fewer steps, shorter prompts, plainer setting, while the same rule breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from spec.geometry import Geometry, GeometryError
from spec.trace import (
    TURN,
    Abort,
    Configuration,
    Run,
    Settle,
    Step,
    Submit,
    Trace,
    TraceError,
    prompt_length,
    validate,
)

Fails = Callable[[Trace], bool]


def shrink(trace: Trace, fails: Fails, seconds: float) -> Trace:
    """The smallest trace found within `seconds` for which `fails` still holds; `trace` itself must fail.

    Candidates that no system could run are skipped.
    """
    deadline = time.monotonic() + seconds
    best = trace
    progress = True
    while progress and time.monotonic() < deadline:
        progress = False
        for candidates in (_without_steps, _plainer_configurations, _shorter_steps, _smaller_layouts):
            smaller = _descend(best, candidates, fails, deadline)
            if smaller is not best:
                best, progress = smaller, True
    named = _renamed(best)
    return named if _runnable(named) and fails(named) else best


def _descend(
    trace: Trace, candidates: Callable[[Trace], Iterator[Trace]], fails: Fails, deadline: float
) -> Trace:
    """Take the first candidate that still fails, again and again."""
    best = trace
    found = True
    while found:
        found = False
        for candidate in map(_fitted, candidates(best)):
            if time.monotonic() > deadline:
                return best
            if candidate != best and _runnable(candidate) and fails(candidate):
                best, found = candidate, True
                break
    return best


def _fitted(trace: Trace) -> Trace:
    """Cut segments that continue an earlier request to what that request now has."""
    totals: dict[str, int] = {}
    steps: list[Step] = []
    for step in trace.steps:
        if isinstance(step, Submit):
            prompt = tuple((name, min(length, _most(totals, name, length))) for name, length in step.prompt)
            step = replace(step, prompt=prompt)
            totals[step.id] = prompt_length(prompt) + step.outputs
        steps.append(step)
    return replace(trace, steps=tuple(steps))


def _most(totals: dict[str, int], name: str, length: int) -> int:
    return totals.get(name.removeprefix(TURN), length) if name.startswith(TURN) else length


def _runnable(trace: Trace) -> bool:
    try:
        validate(trace)
        Geometry.of(trace.configuration)
    except (TraceError, GeometryError):
        return False
    return True


def _without_steps(trace: Trace) -> Iterator[Trace]:
    steps = trace.steps
    size = len(steps) // 2
    while size:
        for start in range(len(steps) - size, -1, -size):
            yield replace(trace, steps=_consistent(steps[:start] + steps[start + size :]))
        size //= 2


def _consistent(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Drop aborts of requests that are no longer submitted."""
    seen: set[str] = set()
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, Submit):
            seen.add(step.id)
        if not isinstance(step, Abort) or step.id in seen:
            kept.append(step)
    return tuple(kept)


def _plainer_configurations(trace: Trace) -> Iterator[Trace]:
    now = trace.configuration
    plain: list[Configuration] = [
        replace(now, junctions=False),
        replace(now, retention=0),
        replace(now, retention=None),
        replace(now, budget=8192),
        replace(now, budget=max(now.budget // 2, 1)),
        replace(now, live=8),
        replace(now, long_prefill=0),
        replace(now, policy="fcfs"),
        replace(now, groups=now.groups[:2]),
        replace(now, groups=tuple(replace(group, draft=False) for group in now.groups)),
        replace(now, groups=tuple(replace(group, checkpoint_alignment=None) for group in now.groups)),
        replace(now, blocks=min(now.blocks, 64)),
    ]
    plain.extend(_equal_blocks(now))
    if now.speculative > 1:
        plain.append(replace(now, speculative=1))
    steps = tuple(_accepting(step, 0) for step in trace.steps)
    if now.eagle:
        groups = tuple(replace(group, draft=False) for group in now.groups)
        without = replace(now, eagle=False, speculative=0, groups=groups)
        yield replace(trace, configuration=without, steps=steps)
    yield replace(trace, steps=steps)
    for configuration in plain:
        accepts = min(configuration.speculative, now.speculative)
        capped = tuple(_accepting(step, accepts) for step in trace.steps)
        if _plainness(configuration) < _plainness(now):
            yield replace(trace, configuration=configuration, steps=capped)


def _equal_blocks(now: Configuration) -> Iterator[Configuration]:
    """No DCP, and attention blocks like the Mamba blocks."""
    block = next(group.block for group in now.groups if group.kind == "mamba")
    groups = tuple(replace(group, block=block) for group in now.groups)
    for retention in {now.retention, 0, block, 2 * block}:
        yield replace(now, dcp=1, retention=retention)
        yield replace(now, groups=groups, retention=retention)


def _plainness(configuration: Configuration) -> tuple[int, ...]:
    """Lower is plainer; keeps the search from going in circles."""
    retention = {None: 1, 0: 0}.get(configuration.retention, 2)
    return (
        configuration.junctions
        + (configuration.dcp > 1)
        + (len({group.block for group in configuration.groups}) > 1)
        + retention
        + (configuration.long_prefill > 0)
        + (configuration.policy != "fcfs")
        + len(configuration.groups)
        + sum(group.draft for group in configuration.groups)
        + sum(group.checkpoint_alignment is not None for group in configuration.groups)
        + configuration.speculative
        + (configuration.live != 8)
        + (configuration.budget != 8192),
        configuration.budget if configuration.budget != 8192 else 0,
        configuration.blocks,
    )


def _accepting(step: Step, most: int) -> Step:
    if isinstance(step, Run | Settle) and step.accept > most:
        return replace(step, accept=most)
    return step


def _shorter_steps(trace: Trace) -> Iterator[Trace]:
    prompts = {submit.id: submit.prompt for submit in trace.submits()}
    for index, step in enumerate(trace.steps):
        if isinstance(step, Submit) and step.prompt[0][0].startswith(TURN):
            # As if the next turn repeated the earlier prompt without its outputs.
            before = prompts.get(step.prompt[0][0].removeprefix(TURN), ())
            plain = replace(step, prompt=(*before, *step.prompt[1:]))
            yield replace(trace, steps=(*trace.steps[:index], plain, *trace.steps[index + 1 :]))
        for shorter in _shorter(step, trace.configuration):
            yield replace(trace, steps=(*trace.steps[:index], shorter, *trace.steps[index + 1 :]))
    names = {name for submit in trace.submits() for name, _ in submit.prompt}
    for name in sorted(names):
        for cut in (*_cuts(trace.configuration), 1):
            yield replace(trace, steps=tuple(_cut_segment(step, name, cut) for step in trace.steps))


def _cuts(configuration: Configuration) -> tuple[int, ...]:
    block = configuration.groups[0].block
    return (8 * block, 4 * block, 2 * block, block, configuration.unit)


def _shorter(step: Step, configuration: Configuration) -> Iterator[Step]:
    if isinstance(step, Run):
        if step.steps > 1:
            yield replace(step, steps=1)
            yield replace(step, steps=step.steps - 1)
        yield Settle(accept=step.accept)
    if isinstance(step, Submit):
        if step.outputs > 1:
            yield replace(step, outputs=1)
            yield replace(step, outputs=step.outputs // 2)
            yield replace(step, outputs=step.outputs - 1)
        if step.salt is not None:
            yield replace(step, salt=None)
        if step.priority:
            yield replace(step, priority=0)
        if len(step.prompt) > 1:
            yield replace(step, prompt=step.prompt[:-1])
        name, length = step.prompt[-1]
        for cut in (*_cuts(configuration), 1):
            if length > cut:
                yield replace(step, prompt=(*step.prompt[:-1], (name, length - cut)))


def _cut_segment(step: Step, name: str, cut: int) -> Step:
    if not isinstance(step, Submit):
        return step
    return replace(
        step,
        prompt=tuple((key, length - cut if key == name else length) for key, length in step.prompt),
    )


def _smaller_layouts(trace: Trace) -> Iterator[Trace]:
    """Divide every size by two."""
    now = trace.configuration
    if now.unit % 2 or any(group.block % 2 for group in now.groups):
        return
    groups = tuple(
        replace(
            group,
            block=group.block // 2,
            checkpoint_alignment=_half(group.checkpoint_alignment),
        )
        for group in now.groups
    )
    smaller = replace(now, unit=now.unit // 2, groups=groups, retention=now.retention and now.retention // 2)
    for budget in (now.budget, max(now.budget // 2, 1)):
        steps = tuple(_half_step(step) for step in trace.steps)
        yield replace(trace, configuration=replace(smaller, budget=budget), steps=steps)


def _half(alignment: int | None) -> int | None:
    return None if alignment is None else max(alignment // 2, 1)


def _half_step(step: Step) -> Step:
    if not isinstance(step, Submit):
        return step
    return replace(step, prompt=tuple((name, max((length + 1) // 2, 1)) for name, length in step.prompt))


def _renamed(trace: Trace) -> Trace:
    """Requests A, B, C … and segments a, b, c … in order of appearance."""
    requests: dict[str, str] = {}
    segments: dict[str, str] = {}
    for submit in trace.submits():
        requests.setdefault(submit.id, _letter(len(requests), "A"))
        for name, _ in submit.prompt:
            if name.startswith(TURN):
                segments[name] = TURN + requests[name.removeprefix(TURN)]
            else:
                fresh = sum(not key.startswith(TURN) for key in segments)
                segments.setdefault(name, _letter(fresh, "a"))
    steps: list[Step] = []
    for step in trace.steps:
        if isinstance(step, Submit):
            prompt = tuple((segments[name], length) for name, length in step.prompt)
            steps.append(replace(step, id=requests[step.id], prompt=prompt))
        elif isinstance(step, Abort):
            steps.append(replace(step, id=requests[step.id]))
        else:
            steps.append(step)
    return replace(trace, steps=tuple(steps))


def _letter(index: int, first: str) -> str:
    return chr(ord(first) + index) if index < 26 else f"{first}{index}"
