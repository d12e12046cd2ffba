"""Edits of a trace's requests, steps and prompts that make it plainer; nothing is run here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise

from spec.trace import (
    TURN,
    Abort,
    Prompt,
    ResetLocal,
    Run,
    Settle,
    Step,
    Submit,
    Trace,
    first_tokens,
    prompt_length,
)


def without_requests(trace: Trace, gone: frozenset[str]) -> Trace:
    """The trace without some requests and their aborts. A next turn of one of them gets the same tokens as a
    prompt of its own, its outputs as a segment that nobody else has."""
    whole: dict[str, Prompt] = {}
    steps: list[Step] = []
    for step in trace.steps:
        if isinstance(step, Submit):
            prompt = tuple(part for name, length in step.prompt for part in _unrolled(whole, name, length))
            if step.id in gone:
                whole[step.id] = (*prompt, (f"outputs of {step.id}", step.outputs))
                continue
            step = replace(step, prompt=prompt)
        elif isinstance(step, Abort) and step.id in gone:
            continue
        steps.append(step)
    return tidied(replace(trace, steps=tuple(steps)))


def _unrolled(whole: dict[str, Prompt], name: str, length: int) -> Prompt:
    earlier = whole.get(name.removeprefix(TURN)) if name.startswith(TURN) else None
    return ((name, length),) if earlier is None else first_tokens(earlier, length)


def without_steps(trace: Trace, start: int, end: int) -> Trace:
    """The trace without steps [start, end)."""
    gone = frozenset(step.id for step in trace.steps[start:end] if isinstance(step, Submit))
    kept = (*trace.steps[:start], *(step for step in trace.steps[start:end] if isinstance(step, Submit)))
    return without_requests(replace(trace, steps=(*kept, *trace.steps[end:])), gone)


def tidied(trace: Trace) -> Trace:
    """Leaves out engine steps and aborts while no request is there; at least one step stays."""
    if trace.configuration.store != "off":
        return trace
    kept: list[Step] = []
    busy = False
    for step in trace.steps:
        if isinstance(step, Run | Settle | Abort) and not busy:
            continue
        busy = isinstance(step, Submit) or (busy and not isinstance(step, Settle))
        kept.append(step)
    return replace(trace, steps=tuple(kept) or trace.steps[-1:])


def fitted(trace: Trace) -> Trace:
    """Cuts next turns to what the earlier request now has, accepted drafts to what is drafted, and leaves out
    media that the prompt no longer holds."""
    totals: dict[str, int] = {}
    steps: list[Step] = []
    for step in trace.steps:
        if isinstance(step, Submit):
            prompt = tuple((name, min(length, _most(totals, name, length))) for name, length in step.prompt)
            length = prompt_length(prompt)
            media = tuple(item for item in step.media if item[1] + item[2] <= length)
            step = replace(step, prompt=prompt, media=media)
            totals[step.id] = length + step.outputs
        elif isinstance(step, Run | Settle):
            step = replace(step, accept=min(step.accept, trace.configuration.speculative))
        steps.append(step)
    return replace(trace, steps=tuple(steps))


def _most(totals: dict[str, int], name: str, length: int) -> int:
    return totals.get(name.removeprefix(TURN), length) if name.startswith(TURN) else length


def with_step(trace: Trace, index: int, *steps: Step) -> Trace:
    """The trace with other steps in the place of one."""
    return replace(trace, steps=(*trace.steps[:index], *steps, *trace.steps[index + 1 :]))


def reshaped(trace: Trace) -> Iterator[Trace]:
    """Fewer or plainer engine steps and resets: one settle for all, settles for runs, runs joined."""
    steps = trace.steps
    accept = max((step.accept for step in steps if isinstance(step, Run | Settle)), default=0)
    settles = [Settle(accept, engine) for engine in range(len(trace.configuration.roles))]
    yield replace(trace, steps=(*trace.submits(), *settles))
    yield tidied(
        replace(trace, steps=tuple(_settled(step) if isinstance(step, Run) else step for step in steps))
    )
    yield replace(trace, steps=tuple(_plain_step(step) for step in steps))
    for index, step in enumerate(steps):
        if isinstance(step, Run):
            yield tidied(with_step(trace, index, _settled(step)))
            after = steps[index + 1] if index + 1 < len(steps) else None
            if isinstance(after, Run) and after.engine == step.engine:
                joined = Run(step.steps + after.steps, max(step.accept, after.accept), step.engine)
                yield replace(trace, steps=(*steps[:index], joined, *steps[index + 2 :]))
        elif _plain_step(step) != step:
            yield with_step(trace, index, _plain_step(step))
            if isinstance(step, Submit):
                yield from (with_step(trace, index, plainer) for plainer in _plainer_media(step))


def _plainer_media(step: Submit) -> Iterator[Step]:
    """A request with one item of media less, or with one at the start of the prompt."""
    for at, (name, start, length) in enumerate(step.media):
        yield replace(step, media=(*step.media[:at], *step.media[at + 1 :]))
        if at == 0 and start:
            yield replace(step, media=((name, 0, length), *step.media[1:]))


def _settled(step: Run) -> Settle:
    return Settle(step.accept, step.engine)


def one_at_a_time(trace: Trace) -> tuple[Step, ...]:
    """The requests one after the other, each alone until it has ended."""
    accept = max((step.accept for step in trace.steps if isinstance(step, Run | Settle)), default=0)
    steps: list[Step] = []
    for step in trace.steps:
        if not isinstance(step, Run | Settle | Abort):
            steps.append(step)
        if isinstance(step, Submit):
            steps.append(Settle(accept, step.engine))
    return tuple(steps)


def with_longer_runs(trace: Trace) -> tuple[Step, ...]:
    """Two engine steps more in each run: a chunk that exports needs up to two others without."""
    return tuple(
        replace(step, steps=step.steps + 2) if isinstance(step, Run) else step for step in trace.steps
    )


def without_remainders(trace: Trace) -> Iterator[Trace]:
    """Prompts cut to whole units, all or one: without EAGLE they have the resend checkpoint that they had
    with it."""
    unit = trace.configuration.unit
    cut: dict[int, Step] = {}
    for index, step in enumerate(trace.steps):
        if isinstance(step, Submit) and (rest := prompt_length(step.prompt) % unit):
            prompt = first_tokens(step.prompt, prompt_length(step.prompt) - rest) or step.prompt
            cut[index] = replace(step, prompt=prompt)
    yield replace(trace, steps=tuple(cut.get(index, step) for index, step in enumerate(trace.steps)))
    for index, step in cut.items():
        yield with_step(trace, index, step)


def _plain_step(step: Step) -> Step:
    if isinstance(step, Submit):
        return replace(step, salt=None, priority=0, adapter=None, media=())
    return replace(step, running=False) if isinstance(step, ResetLocal) else step


# Prompts.


def other_prompts(trace: Trace) -> Iterator[Trace]:
    """The same requests with prompts that have more in common or fewer parts."""
    submits = {index: step for index, step in enumerate(trace.steps) if isinstance(step, Submit)}
    by_id = {submit.id: submit for submit in submits.values()}
    for index, submit in submits.items():
        name, length = submit.prompt[0]
        earlier = by_id.get(name.removeprefix(TURN)) if name.startswith(TURN) else None
        if earlier is not None:
            own = (f"outputs of {earlier.id}", earlier.outputs)
            for prompt in (earlier.prompt, first_tokens((*earlier.prompt, own), length)):
                yield with_step(trace, index, replace(submit, prompt=(*prompt, *submit.prompt[1:])))
    for prompt in dict.fromkeys(submit.prompt for submit in submits.values()):
        for index, submit in submits.items():
            if submit.prompt != prompt:
                yield with_step(trace, index, replace(submit, prompt=prompt))
    names = list(dict.fromkeys(name for submit in submits.values() for name, _ in submit.prompt))
    for name in names:
        yield _with_prompts(trace, partial(_without_segment, name=name))
    for index, submit in submits.items():
        for at in range(len(submit.prompt)):
            prompt = submit.prompt[:at] + submit.prompt[at + 1 :]
            yield with_step(trace, index, replace(submit, prompt=prompt))
    plain = [name for name in names if not name.startswith(TURN)]
    for at, name in enumerate(plain):
        for other in plain[:at]:
            yield _with_prompts(trace, partial(_merged, old=name, new=other))
    for index, submit in submits.items():
        for (first, _), (second, _) in pairwise(submit.prompt):
            if not first.startswith(TURN) and not second.startswith(TURN):
                yield with_step(trace, index, replace(submit, prompt=_merged(submit.prompt, second, first)))


def _with_prompts(trace: Trace, edit: Callable[[Prompt], Prompt]) -> Trace:
    return replace(
        trace,
        steps=tuple(
            replace(step, prompt=edit(step.prompt)) if isinstance(step, Submit) else step
            for step in trace.steps
        ),
    )


def _without_segment(prompt: Prompt, name: str) -> Prompt:
    return tuple(part for part in prompt if part[0] != name)


def _merged(prompt: Prompt, old: str, new: str) -> Prompt:
    """Segment `old` called `new`, and neighbours of one name made one."""
    merged: list[tuple[str, int]] = []
    for name, length in prompt:
        name = new if name == old else name
        if merged and merged[-1][0] == name and not name.startswith(TURN):
            length += merged.pop()[1]
        merged.append((name, length))
    return tuple(merged)


def segment_cut(trace: Trace, name: str, cut: int) -> Trace:
    """Every use of a segment shorter by `cut` tokens, at least 1 left."""
    return _with_prompts(
        trace,
        lambda prompt: tuple(
            (key, max(length - cut, 1) if key == name else length) for key, length in prompt
        ),
    )


def segment_capped(trace: Trace, name: str, cut: int) -> Trace:
    """The longest uses of a segment shorter by `cut` tokens, the others as they are, or as short."""
    most = longest(trace, name) - cut

    def shorter(prompt: Prompt) -> Prompt:
        return tuple((key, min(length, most) if key == name else length) for key, length in prompt)

    return _with_prompts(trace, shorter)


def longest(trace: Trace, name: str) -> int:
    """The most tokens that any prompt takes of a segment, 0 when none does."""
    return max((size for submit in trace.submits() for key, size in submit.prompt if key == name), default=0)


# Names.


def renamed(trace: Trace) -> Trace:
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
