"""Every comparison that no planted engine fault reaches is made red here by one change to a clean run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from spec.observation import Admitted, FailedRead, Failure, Observation, Outcome
from spec.trace import Abort, Configuration, Group, ResetLocal, Run, Settle, Submit, Trace
from tailproof.judge.findings import IncompleteError
from tailproof.judge.lockstep import compare
from tailproof.targets.opening import Target, open_target

Change = Callable[[Observation], Observation]
GROUPS = Group("full", 4), Group("mamba", 4)
# 0 submit, 1 A [0, 16), 2 A [16, 18), 3 A [18, 20) and its first output, 4 to 6 decode, 7 reset, 8 submit, …
TRACE = Trace(
    Configuration(GROUPS, 2),
    (
        Submit("A", (("a", 20),), outputs=4),
        Run(3),
        Settle(),
        ResetLocal(),
        Submit("B", (("b", 9),)),
        Abort("B"),
        Submit("C", (("c", 3),)),
        Settle(),
    ),
)


def clean(trace: Trace = TRACE) -> list[Observation]:
    """What the reference does."""
    return list(open_target(Target.parse("reference"), lambda line: None).run(trace).observations)


def first(do: str, held: Callable[[Observation], object] = lambda seen: True) -> int:
    """The index of the first observation of a step kind for which `held` is true."""
    return next(index for index, seen in enumerate(clean()) if seen.do == do and held(seen))


def empty_chunk(seen: Observation) -> Observation:
    item = seen.scheduled[0]
    return replace(seen, scheduled=(replace(item, end=item.start),), published=())


def failing(kind: str, place: str = "") -> Change:
    return lambda seen: replace(seen, failure=Failure(kind, "planted", place=place))


def read(what: str) -> Change:
    return lambda seen: replace(seen, failed_reads=(FailedRead("A", 1, 16, what),))


PLANTS: list[tuple[str, int, Change, str, str]] = [
    ("chunk of nothing", first("run"), empty_chunk, "CH2", "empty-chunk"),
    (
        "hit though nothing is cached",
        first("run"),
        lambda seen: replace(seen, admitted=(Admitted("A", 4, 0, 0),)),
        "LK1",
        "hit-without-state",
    ),
    (
        "end too early",
        first("settle", lambda seen: not seen.finished),
        lambda seen: seen,
        "LV1",
        "ended-early",
    ),
    (
        "request gone",
        first("run"),
        lambda seen: replace(seen, running=(), waiting=(), free=511),
        "LV1",
        "vanished",
    ),
    ("exception", first("run"), failing("exception", "schedule"), "LV1", "exception-schedule"),
    ("crash", first("run"), failing("crash"), "LV1", "crash"),
    ("hang", first("run"), failing("hang"), "LV1", "hang"),
    ("stuck", first("settle"), failing("stuck"), "LV1", "stuck"),
    ("null block", first("settle"), read("null"), "SF2", "null"),
    ("stray at an abort", first("abort"), lambda seen: seen, "CH3", "stray-state"),
    (
        "reset refused",
        first("reset_local"),
        lambda seen: replace(seen, reset=False, withdrawn=()),
        "LT4",
        "reset",
    ),
]


@pytest.mark.parametrize(
    ("name", "index", "change", "rule", "kind"), PLANTS, ids=[plant[0] for plant in PLANTS]
)
def test_a_planted_difference_is_found(name: str, index: int, change: Change, rule: str, kind: str) -> None:
    seen = clean()
    assert compare(TRACE, Outcome(tuple(seen))) is None
    if name == "end too early":
        # The request that ends later ends here, with all its outputs.
        finished = next(item for other in seen for item in other.finished)
        seen[index] = replace(seen[index], finished=(finished,), running=(), free=511)
    elif name == "stray at an abort":
        # An entry that a reset has emptied comes back out of nothing.
        entry = next(e for other in seen for e in other.published if e.group == 1)
        seen[index] = replace(seen[index], published=(entry,))
    else:
        seen[index] = change(seen[index])
    divergence = compare(TRACE, Outcome(tuple(seen)))
    assert divergence is not None
    assert (divergence.rule, divergence.finding.kind) == (rule, kind)


def test_being_stuck_with_a_request_larger_than_the_pool_is_no_finding() -> None:
    tiny = replace(TRACE, configuration=replace(TRACE.configuration, blocks=6))
    stuck = Observation(at=2, do="settle", running=("A",), failure=Failure("stuck", "planted"))
    assert compare(tiny, Outcome((*clean(tiny)[:4], stuck))) is None
    divergence = compare(TRACE, Outcome((*clean()[:4], stuck)))
    assert (divergence and divergence.rule) == "LV1"


def test_an_outcome_that_ends_before_its_trace_is_an_error_of_the_adapter() -> None:
    with pytest.raises(IncompleteError, match=r"steps\[6\]"):
        compare(TRACE, Outcome(tuple(seen for seen in clean() if seen.at < 6)))
