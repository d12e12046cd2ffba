"""CrossHair's view of a theorem: it runs the function itself, on symbolic values of its own."""

from __future__ import annotations

import inspect
import time
import typing
from collections.abc import Callable

from proofs.assume import Discarded

CONFIRMED, NOT_FOUND, REFUTED = "confirmed", "no counterexample", "refuted"


class Unavailable(Exception):
    """CrossHair is not installed."""


def crosshair_verdict(theorem: Callable[..., object], seconds: float) -> str:
    """What CrossHair finds within so many seconds: "confirmed" over all paths, "no counterexample" so far, or
    "refuted: " and how.

    Raises:
        Unavailable: without CrossHair.
    """
    try:
        import crosshair.core_and_libs  # noqa: F401
        from crosshair.condition_parser import POSTCONDITION, ConditionExpr, Conditions, condition_parser
        from crosshair.core import analyze_calltree
        from crosshair.options import DEFAULT_OPTIONS, AnalysisOptionSet
        from crosshair.statespace import VerificationStatus
    except ImportError as problem:
        raise Unavailable("CrossHair is not installed") from problem
    code = theorem.__code__
    options = DEFAULT_OPTIONS.overlay(AnalysisOptionSet(per_condition_timeout=seconds, report_all=True))
    options.deadline = time.process_time() + seconds
    conditions = Conditions(
        fn=theorem,
        src_fn=theorem,
        pre=[],
        post=[ConditionExpr(POSTCONDITION, lambda _: True, code.co_filename, code.co_firstlineno, "True")],
        raises=frozenset({Discarded}),
        sig=_signature(theorem),
        mutable_args=None,
        fn_syntax_messages=[],
    )
    with condition_parser(options.analysis_kind):
        analysis = analyze_calltree(options, conditions)
    if analysis.verification_status is VerificationStatus.CONFIRMED:
        return CONFIRMED
    if analysis.verification_status is VerificationStatus.REFUTED:
        return f"{REFUTED}: {analysis.messages[0].message}"
    return NOT_FOUND


def _signature(theorem: Callable[..., object]) -> inspect.Signature:
    hints = typing.get_type_hints(theorem)
    parameters = [
        parameter.replace(annotation=hints[parameter.name])
        for parameter in inspect.signature(theorem).parameters.values()
        if parameter.kind is not parameter.KEYWORD_ONLY
    ]
    return inspect.Signature(parameters, return_annotation=None)
