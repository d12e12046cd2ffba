"""Makes a failing trace small: fewer requests, steps and tokens, plainer setting, the same rule broken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from spec.geometry import Geometry, GeometryError, alignment
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
    without_remainders,
    without_requests,
    without_steps,
)
from tailproof.shrink.settings import (
    DEFAULTS,
    LIMITS,
    exports,
    features,
    plainer_configurations,
    smaller_layouts,
)
from tailproof.shrink.store import oddity, plainer_store, repaired
from tailproof.targets.problems import TargetProblem

Fails = Callable[[Trace], bool]
Value = Callable[[Trace], int]
Less = Callable[[Trace, int], Trace]
Path = Sequence[str | int]
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

    def lower_at(self, *path: str | int, by: int = 1, least: int = 1) -> None:
        """Lower the number at a path of field names and indices."""
        self.lower(
            lambda trace: _at(trace, path),
            lambda trace, cut: _with(trace, path, _at(trace, path) - cut),
            by,
            least,
        )

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
                search.lower_at("steps", index, name, least=least)
    names = dict.fromkeys(name for submit in search.best.submits() for name, _ in submit.prompt)
    for name in names:
        for size in sizes:
            for less in (segment_cut, segment_capped):
                search.lower(partial(longest, name=name), partial(_cut, less, name), size)
    for index, step in enumerate(search.best.steps):
        if isinstance(step, Submit):
            for part in reversed(range(len(step.prompt))):
                for size in sizes:
                    search.lower_at("steps", index, "prompt", part, 1, by=size)


def _cut(less: Callable[[Trace, str, int], Trace], name: str, trace: Trace, cut: int) -> Trace:
    return less(trace, name, cut)


def _lower_numbers(search: _Search) -> None:
    """Lower limits that matter, drafts and windows."""
    now = search.best.configuration
    for name in LIMITS:
        if getattr(now, name) != DEFAULTS[name]:
            search.lower_at("configuration", name)
    search.lower_at("configuration", "speculative")
    for index in range(len(now.groups)):
        search.lower_at("configuration", "groups", index, "window")


def _at(trace: Trace, path: Path) -> int:
    """The number at a path of field names and indices, 0 where there is none."""
    found: Any = trace
    for name in path:
        found = getattr(found, name) if isinstance(name, str) else found[name]
    return found or 0


def _with(value: Any, path: Path, number: int) -> Any:
    """The trace, or part of one, with another number at a path."""
    if not path:
        return number
    name, *rest = path
    if isinstance(name, str):
        return replace(value, **{name: _with(getattr(value, name), rest, number)})
    return (*value[:name], _with(value[name], rest, number), *value[name + 1 :])
