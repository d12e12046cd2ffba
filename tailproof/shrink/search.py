"""Makes a failing trace small: fewer requests, steps and tokens, plainer setting, the same rule broken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from spec.geometry import Geometry, GeometryError
from spec.trace import TURN, DropKeys, ResetLocal, Run, Settle, Submit, Trace, TraceError, validate
from tailproof.shrink.requests import (
    fitted,
    longest,
    one_at_a_time,
    other_prompts,
    renamed,
    reshaped,
    segment_capped,
    segment_cut,
    with_longer_runs,
    with_step,
    without_remainders,
    without_requests,
    without_steps,
)
from tailproof.shrink.settings import (
    DEFAULTS,
    LIMITS,
    alignment,
    exports,
    features,
    plainer_configurations,
    smaller_layouts,
)
from tailproof.shrink.store import oddity, plainer_store, repaired
from tailproof.targets.worker import TargetProblem

Fails = Callable[[Trace], bool]
Value = Callable[[Trace], int]
Less = Callable[[Trace, int], Trace]
_FEW = 6


def measure(trace: Trace) -> tuple[int, ...]:
    """How far a trace is from plain: natural numbers, compared from the left, the most telling first.

    Requests, features switched on, steps, engine steps that are counted out, peculiarities of single steps,
    different prompts, parts of prompts, different segments, tokens, accepted drafts and priorities, sizes of
    the layout, and limits other than the default. A store and a second engine are features, what they ask of
    a step is a peculiarity, and lost keys count with the accepted drafts.
    """
    now, submits = trace.configuration, list(trace.submits())
    parts = [part for submit in submits for part in submit.prompt]
    steps = trace.steps
    return (
        len(submits),
        features(now),
        len(steps),
        sum(step.steps for step in steps if isinstance(step, Run)),
        sum(
            (submit.salt is not None)
            + (submit.priority > 0)
            + (submit.adapter is not None)
            + len(submit.media)
            for submit in submits
        )
        + sum(name.startswith(TURN) for name, _ in parts)
        + sum(isinstance(step, ResetLocal) and step.running for step in steps)
        + sum(map(oddity, steps)),
        len({submit.prompt for submit in submits}),
        len(parts),
        len({name for name, _ in parts}),
        sum(length for _, length in parts) + sum(submit.outputs for submit in submits),
        sum(step.accept for step in steps if isinstance(step, Run | Settle))
        + sum(abs(submit.priority) for submit in submits)
        + sum(step.count for step in steps if isinstance(step, DropKeys)),
        now.unit
        + now.dcp
        + now.speculative
        + (now.retention or 0)
        + sum(group.block + (group.checkpoint_alignment or 0) + (group.window or 0) for group in now.groups),
        sum(getattr(now, name) for name in LIMITS if getattr(now, name) != DEFAULTS[name]),
    )


class _OutOfTime(Exception):
    pass


def shrink(trace: Trace, fails: Fails, seconds: float) -> Trace:
    """The smallest trace found within `seconds` for which `fails` still holds; `trace` itself must fail.

    Every trace that is taken has a smaller `measure` than the one before, so the search
    ends. Candidates that no system could run are skipped, and one that the target refuses does not fail.
    """
    search = _Search(trace, fails, time.monotonic() + seconds)
    try:
        _search(search)
        search.rename()
    except _OutOfTime:
        pass
    return search.best


class _Search:
    """The best trace so far, and what was tried."""

    def __init__(self, trace: Trace, fails: Fails, deadline: float) -> None:
        self.best = trace
        self._fails = fails
        self._deadline = deadline
        self._least = measure(trace)
        self._tried = {trace}

    def take(self, candidate: Trace) -> bool:
        """Make a candidate the best if it is plainer and still fails; whether it was."""
        candidate = fitted(repaired(candidate))
        if measure(candidate) >= self._least or not self._holds(candidate):
            return False
        self.best, self._least = candidate, measure(candidate)
        return True

    def rename(self) -> None:
        """Give the best trace plain names if it still fails then."""
        candidate = renamed(self.best)
        if self._holds(candidate):
            self.best = candidate

    def take_all(self, candidates: Callable[[Trace], Iterator[Trace]]) -> None:
        """Try each candidate of the best trace; after a success go on at the same place of the new list."""
        at, tried = 0, list(candidates(self.best))
        while at < len(tried):
            if self.take(tried[at]):
                tried = list(candidates(self.best))
            else:
                at += 1

    def lower(self, value: Value, less: Less, by: int = 1, least: int = 1) -> None:
        """Lower a number of the trace in multiples of `by`, not below `least`: all the way, else half of it,
        and so on; `less` gives the trace with so much less."""
        times = (value(self.best) - least) // by
        while times > 0:
            if self.take(less(self.best, times * by)):
                times = min(times, (value(self.best) - least) // by)
            else:
                times //= 2

    def _holds(self, candidate: Trace) -> bool:
        if candidate in self._tried or not _runnable(candidate):
            return False
        if time.monotonic() > self._deadline:
            raise _OutOfTime
        self._tried.add(candidate)
        try:
            return self._fails(candidate)
        except (TraceError, GeometryError, TargetProblem):
            return False


def _runnable(trace: Trace) -> bool:
    try:
        validate(trace)
        Geometry.of(trace.configuration)
    except (TraceError, GeometryError):
        return False
    return True


def _search(search: _Search) -> None:
    _cut_tail(search)
    before = None
    while search.best != before:
        before = search.best
        _drop_requests(search)
        _drop_steps(search)
        search.take_all(plainer_store)
        search.take_all(_plainer)
        search.take_all(reshaped)
        search.take_all(other_prompts)
        search.take_all(smaller_layouts)
        _shorten(search)
        _lower_numbers(search)


def _cut_tail(search: _Search) -> None:
    """The shortest beginning that fails: what comes after the step that shows the fault is not needed."""
    low, high = 0, len(search.best.steps)
    while high - low > 1:
        middle = (low + high) // 2
        if search.take(replace(search.best, steps=search.best.steps[:middle])):
            high = middle
        else:
            low = middle


def _drop_requests(search: _Search) -> None:
    """The last few alone, then without ever smaller shares of the requests, oldest first."""
    ids = _ids(search)
    for count in (1, 2, 4):
        if count < len(ids) and search.take(without_requests(search.best, frozenset(ids[:-count]))):
            break
    size = max(len(_ids(search)) // 2, 1)
    while size:
        ids, at = _ids(search), 0
        while at < len(ids):
            if search.take(without_requests(search.best, frozenset(ids[at : at + size]))):
                ids = _ids(search)
            else:
                at += size
        size //= 2
    found = len(ids) <= _FEW
    while found:
        # Two may be needless together though neither is alone.
        pairs = combinations(_ids(search), 2)
        found = any(search.take(without_requests(search.best, frozenset(pair))) for pair in pairs)


def _ids(search: _Search) -> list[str]:
    return [submit.id for submit in search.best.submits()]


def _drop_steps(search: _Search) -> None:
    size = max(len(search.best.steps) // 2, 1)
    while size:
        at = 0
        while at < len(search.best.steps):
            if not search.take(without_steps(search.best, at, at + size)):
                at += size
        size //= 2


def _plainer(trace: Trace) -> Iterator[Trace]:
    """Plainer settings, also with the prompts or runs that show the same under them; limits may go, too, when
    the requests no longer meet, though that takes more steps."""
    now = trace.configuration
    for configuration in plainer_configurations(now):
        yield replace(trace, configuration=configuration)
        if now.eagle and not configuration.eagle:
            for shorter in without_remainders(trace):
                yield replace(shorter, configuration=configuration)
        if exports(now) and not exports(configuration):
            yield replace(trace, configuration=configuration, steps=with_longer_runs(trace))
    unlimited = replace(now, **{name: DEFAULTS[name] for name in (*LIMITS, "policy")})
    yield replace(trace, configuration=unlimited, steps=one_at_a_time(trace))


def _shorten(search: _Search) -> None:
    """Shorter segments, in all prompts alike and in each alone, and fewer outputs."""
    now = search.best.configuration
    sizes = sorted({alignment(now), *(group.block for group in now.groups), now.unit, 1}, reverse=True)
    for index, step in enumerate(search.best.steps):
        for name, least in (("outputs", 1), ("steps", 1), ("accept", 0), ("priority", 0), ("count", 1)):
            if hasattr(step, name):
                search.lower(_field(index, name), _field_cut(index, name), 1, least)
    names = dict.fromkeys(name for submit in search.best.submits() for name, _ in submit.prompt)
    for name in names:
        for size in sizes:
            search.lower(_segment(name), _segment_cut(name), size)
            search.lower(_segment(name), _segment_capped(name), size)
    for index, step in enumerate(search.best.steps):
        if isinstance(step, Submit):
            for part in reversed(range(len(step.prompt))):
                for size in sizes:
                    search.lower(_part(index, part), _part_cut(index, part), size)


def _lower_numbers(search: _Search) -> None:
    """Lower limits that matter, drafts and windows."""
    now = search.best.configuration
    for name in LIMITS:
        if getattr(now, name) != DEFAULTS[name]:
            search.lower(_setting(name), _setting_cut(name))
    search.lower(_setting("speculative"), _setting_cut("speculative"))
    for index in range(len(now.groups)):
        search.lower(_window(index), _window_cut(index))


def _field(index: int, name: str) -> Value:
    return lambda trace: int(getattr(trace.steps[index], name))


def _field_cut(index: int, name: str) -> Less:
    def less(trace: Trace, cut: int) -> Trace:
        step = trace.steps[index]
        return with_step(trace, index, replace(step, **{name: getattr(step, name) - cut}))

    return less


def _part(index: int, part: int) -> Value:
    def value(trace: Trace) -> int:
        step = trace.steps[index]
        assert isinstance(step, Submit)
        return step.prompt[part][1]

    return value


def _part_cut(index: int, part: int) -> Less:
    def less(trace: Trace, cut: int) -> Trace:
        step = trace.steps[index]
        assert isinstance(step, Submit)
        name, length = step.prompt[part]
        prompt = (*step.prompt[:part], (name, length - cut), *step.prompt[part + 1 :])
        return with_step(trace, index, replace(step, prompt=prompt))

    return less


def _segment(name: str) -> Value:
    return lambda trace: longest(trace, name)


def _segment_cut(name: str) -> Less:
    return lambda trace, cut: segment_cut(trace, name, cut)


def _segment_capped(name: str) -> Less:
    return lambda trace, cut: segment_capped(trace, name, cut)


def _setting(name: str) -> Value:
    return lambda trace: int(getattr(trace.configuration, name))


def _setting_cut(name: str) -> Less:
    def less(trace: Trace, cut: int) -> Trace:
        now = trace.configuration
        return replace(trace, configuration=replace(now, **{name: getattr(now, name) - cut}))

    return less


def _window(index: int) -> Value:
    return lambda trace: trace.configuration.groups[index].window or 0


def _window_cut(index: int) -> Less:
    def less(trace: Trace, cut: int) -> Trace:
        groups = list(trace.configuration.groups)
        groups[index] = replace(groups[index], window=(groups[index].window or 0) - cut)
        return replace(trace, configuration=replace(trace.configuration, groups=tuple(groups)))

    return less
