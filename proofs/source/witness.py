"""What a theorem shows of a counterexample: the source's value and the spec's, in plain Python."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

_shown: dict[str, object] = {}


def shown(**values: object) -> None:
    """Note values worth showing beside a counterexample: `source` is the target's, `spec` the spec's."""
    _shown.update(values)


def unshown(**values: object) -> None:
    """Stands for `shown` where values are symbolic."""


def failing_values(
    theorem: Callable[..., object], values: Mapping[str, Any], planted: Mapping[str, Any]
) -> dict[str, str]:
    """The values that a theorem shows when it is run on a counterexample in plain Python.

    Where it shows none, they are the results of the first lifted function that stands for one of the spec,
    and of that one on the same arguments.
    """
    _shown.clear()
    spied: dict[str, object] = {}
    standing_for = {
        name: parameter.default
        for name, parameter in inspect.signature(theorem).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
    }
    stand_ins = {
        name: _spy(function, standing_for[name], spied) if name in standing_for else function
        for name, function in planted.items()
    }
    with contextlib.suppress(Exception):
        theorem(**values, **stand_ins)
    found = _shown or spied
    return {name: repr(value) for name, value in found.items()}


def _spy(
    function: Callable[..., Any], spec: Callable[..., Any], spied: dict[str, object]
) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        result, expected = function(*arguments), spec(*arguments)
        if not spied or (spied["source"] == spied["spec"] and result != expected):
            spied.update(arguments=arguments, source=result, spec=expected)
        return result

    return call
