"""The engine: runs a theorem on symbolic values, once per path, and asks Z3 about every branch.

Sound by construction: a side of a branch is left out only when Z3 has shown that no values reach it. A
question that Z3 does not answer within its limit counts as "yes, reachable"; a failing assertion that it
cannot decide leaves the theorem *unknown*, never proved. Limits are in Z3's own units of work, so that a
verdict does not depend on the machine's speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proofs import inputs
from proofs.assume import Discarded
from proofs.counterexamples import Counterexample, Trial
from proofs.cuts import InvariantBroken, TurnDone
from proofs.loops import loops_of
from proofs.paths import THEOREM_UNITS, Abandoned, OutOfBudget, Paths, Query, Run, Suspended, fresh_context
from proofs.symbolic import Exploration, Unsupported
from proofs.twins import Twins

LIMIT_REACHED = "limit reached"
_FIRST_SHARE = 0.5


@dataclass(slots=True)
class Result:
    """What is known about a theorem: `verdict` is proved, refuted, unknown or unsupported, `reason` why it is
    not proved, `paths` how many ran to an end, `queries` every question that Z3 was asked, `units` what it
    took of Z3's units of work in all."""

    verdict: str
    reason: str = ""
    paths: int = 0
    seconds: float = 0.0
    units: int = 0
    counterexample: Counterexample | None = None
    queries: list[Query] = field(default_factory=list)


def prove(
    theorem: Callable[..., object],
    *,
    planted: Mapping[str, Any] | None = None,
    units: int = THEOREM_UNITS,
    seconds: float = 600.0,
    twins: Twins | None = None,
) -> Result:
    """Explore a theorem: a function whose annotated parameters range over all values, and which asserts.

    `planted` replaces keyword-only parameters, by functions or plain values; `twins` prepares functions
    (their built-ins and stand-ins).
    It may cost so many of Z3's `units`. The limit of `seconds` is a last net, kept between the engine's
    own steps; a loop that never asks the engine anything, or a call that Z3 does not come back from, is ended
    from outside by `proofs.pool`.
    """
    fresh_context()
    chosen = dict(planted or {})
    loops = loops_of(theorem)
    began = time.monotonic()
    deadline = began + seconds
    if twins is not None or not loops:
        return _attempt(theorem, chosen, units, deadline, twins or Twins())
    # By induction to prove, turn by turn to refute: a turn that breaks an invariant need not ever happen.
    # What was planted is most likely wrong.
    attempts = [Twins(loops=loops), Twins()]
    best: Result | None = None
    left = units
    for number, prepared in enumerate(attempts[::-1] if planted else attempts):
        share = left if number else int(units * _FIRST_SHARE)
        found = _attempt(theorem, chosen, share, deadline, prepared)
        left -= found.units
        best = found if best is None or prepared.loops or found.verdict != "unknown" else best
        if found.verdict != "unknown":
            break
    assert best is not None
    best.units, best.seconds = units - left, time.monotonic() - began
    return best


def _attempt(
    theorem: Callable[..., object], planted: dict[str, Any], units: int, deadline: float, twins: Twins
) -> Result:
    began = time.monotonic()
    paths = Paths(deadline, units)
    result = Result("proved", queries=paths.queries)
    try:
        _explore(paths, result, theorem, planted, twins)
    except OutOfBudget:
        result.verdict, result.reason = "unknown", LIMIT_REACHED
    except Unsupported as problem:
        result.verdict, result.reason = "unsupported", str(problem)
    except RecursionError:
        result.verdict, result.reason = "unknown", "recursion too deep"
    result.units, result.seconds = paths.units, time.monotonic() - began
    return result


@dataclass(frozen=True, slots=True)
class _Subject:
    """A theorem with what is planted in it, made ready to run on symbolic values, and as it is."""

    twin: Callable[..., object]
    stand_ins: dict[str, Any]
    trial: Trial


def _explore(
    paths: Paths, result: Result, theorem: Callable[..., object], planted: dict[str, Any], twins: Twins
) -> None:
    stand_ins = {name: twins.of(function) for name, function in planted.items()}
    subject = _Subject(twins.of(theorem), stand_ins, Trial(theorem, inputs.of(theorem), planted))
    later: list[tuple[Run, BaseException]] = []
    doubt = ""
    for run in paths.runs():
        failure = _run_once(run, subject)
        if failure is None or isinstance(failure, TurnDone):
            result.paths += 1
            continue
        if isinstance(failure, Abandoned | Suspended | Discarded):
            continue
        if not isinstance(failure, Unsupported | InvariantBroken):
            values = subject.trial.small_failure(run.linear)
            if values is not None:
                _refute(paths, result, subject, values)
                return
        answer, model = paths.ask_first(run.conditions)
        if answer == "unknown":
            later.append((run, failure))
        elif answer == "sat":
            doubt = _judge(paths, result, subject, run, failure, model) or doubt
        if result.verdict == "refuted" or (twins.loops and doubt):
            break
    for run, failure in later:
        if result.verdict == "refuted":
            break
        answer, model = paths.ask_hard(run.conditions)
        if answer != "unsat":
            doubt = _judge(paths, result, subject, run, failure, model) or doubt
    if result.verdict == "refuted":
        return
    if doubt:
        result.verdict, result.reason = "unknown", doubt
    elif not result.paths:
        result.verdict, result.reason = "unknown", "no values meet the assumptions"


def _judge(
    paths: Paths, result: Result, subject: _Subject, run: Run, failure: BaseException, model: Any
) -> str:
    """Make what a failing path means part of the result; the text says why nothing is sure, if so."""
    if isinstance(failure, Unsupported):
        raise failure
    result.paths += 1
    if isinstance(failure, InvariantBroken):
        return str(failure)
    if model is None:
        return f"undecided: {type(failure).__name__} in {_place(failure)}"
    values = subject.trial.values(model, run.conditions)
    if subject.trial.failure(values) is None:
        return "a counterexample of Z3 does not fail in plain Python"
    _refute(paths, result, subject, values)
    return ""


def _refute(paths: Paths, result: Result, subject: _Subject, values: list[Any]) -> None:
    result.verdict, result.paths = "refuted", max(result.paths, 1)
    result.counterexample = subject.trial.smallest(values, paths.deadline)


def _run_once(run: Run, subject: _Subject) -> BaseException | None:
    values = [parameter.symbolic() for parameter in subject.trial.parameters]
    try:
        with Exploration(run):
            subject.twin(*values, **subject.stand_ins)
    except (Abandoned, Suspended, Discarded, TurnDone, Unsupported) as end:
        return end
    except RecursionError:
        raise
    except Exception as failure:
        return failure
    return None


def _place(failure: BaseException) -> str:
    trace = failure.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}" if trace is not None else "?"
