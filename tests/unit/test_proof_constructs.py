"""What the engine cannot run is refused by name, before it could be approximated.

PYTEST_DONT_REWRITE: the theorems here must run as they stand.
"""

from __future__ import annotations

import ast
import fractions
import functools
import importlib.util
import math
import statistics
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import spec.checkpoint as checkpoint_module
from proofs import constructs
from proofs.assume import assume
from proofs.engine import prove
from proofs.symbolic import Unsupported
from proofs.twins import Twins, lifted
from spec.checkpoint import resend_checkpoint


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 2

    @property
    def total(self) -> int:
        return self.x + self.y


@dataclass(frozen=True)
class Plain:
    x: int


class Asking:
    def kind(self, value: object) -> object:
        return type(value)


BY_SOURCE = [
    ("with open('x'):\n    assert a", "with"),
    ("global STATE\nSTATE = a", "global"),
    ("import os\nassert os.sep != a", "import inside a function"),
    ("match a:\n    case 1:\n        raise AssertionError", "match"),
    ("class Inside:\n    pass\nassert Inside is not None", "class inside a function"),
    ("assert a is STATE", "'is' between values"),
    ("try:\n    assert a\nfinally:\n    pass", "finally"),
    ("try:\n    assert a\nexcept:\n    pass", "except without a kind of Exception"),
    (
        "try:\n    assert a\nexcept (ValueError, BaseException):\n    pass",
        "except without a kind of Exception",
    ),
]

BY_VALUE: list[tuple[Callable[[Any], object], str]] = [
    (lambda a: a / 2, "true division"),
    (lambda a: 2 / a, "true division"),
    (lambda a: a**2, "power"),
    (lambda a: 2**a, "power"),
    (lambda a: pow(a, 2), "power"),
    (lambda a: a << 1, "shift"),
    (lambda a: 8 >> a, "shift"),
    (lambda a: a & 1, "bit operation &"),
    (lambda a: 1 | a, "bit operation |"),
    (lambda a: a ^ 1, "bit operation ^"),
    (lambda a: ~a, "bit operation ~"),
    (lambda a: ~(a > 0), "bit operation ~"),
    (lambda a: (a > 0) & 1, "bit operation &"),
    (lambda a: a + 0.5, "float with a symbolic integer"),
    (lambda a: a == 0.5, "float with a symbolic integer"),
    (lambda a: a * 1j, "complex with a symbolic integer"),
    (lambda a: float(a), "float of a symbolic value"),
    (lambda a: math.sqrt(a), "float of a symbolic value"),
    (lambda a: math.gcd(a, 2), "as an index"),
    (lambda a: round(a), "round"),
    (lambda a: [1, 2][a], "as an index"),
    (lambda a: "x" * a, "as an index"),
    (lambda a: {a: 1}, "hash"),
    (lambda a: {a}, "hash"),
    (lambda a: a in {1, 2}, "hash"),
    (lambda a: hash(a), "hash"),
    (lambda a: f"{a}", "text of a symbolic value"),
    (lambda a: f"{a!r}", "text of a symbolic value"),
    (lambda a: str(a), "text of a symbolic value"),
    (lambda a: "%s" % a, "text of a symbolic value"),  # noqa: UP031
    (lambda a: a.bit_length(), "attribute 'bit_length'"),
    (lambda a: type(a), "type of a symbolic value"),
    (lambda a: print(a), "call of print"),
    (lambda a: open("x"), "call of open"),  # noqa: SIM115
    (lambda a: eval("1"), "call of eval"),
    (lambda a: globals(), "call of globals"),
    (lambda a: int.from_bytes(b"1"), "attribute 'from_bytes' of int"),
    (lambda a: functools.lru_cache(a), "call of functools.lru_cache"),
    (lambda a: statistics.mean([a]), "call of statistics.mean"),
    (lambda a: fractions.Fraction(a), "call of fractions.Fraction"),
    (lambda a: Asking().kind(a), "type of a symbolic value, in Asking.kind"),
]


def refusal(theorem: Callable[..., object]) -> str:
    result = prove(theorem, seconds=10.0)
    assert result.verdict == "unsupported", (result.verdict, result.reason)
    assert result.reason.startswith("unsupported: ")
    return result.reason


def written(folder: Path, head: str, body: str) -> Callable[..., object]:
    """A theorem in a file of its own, since the engine reads sources."""
    file = folder / "planted.py"
    file.write_text(f"STATE = 0\n\n\n{head} theorem(a: int) -> None:\n{textwrap.indent(body, '    ')}\n")
    found = importlib.util.spec_from_file_location("planted", file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    theorem: Callable[..., object] = module.theorem
    return theorem


@pytest.mark.parametrize(("body", "name"), BY_SOURCE)
def test_a_construct_is_refused_by_name(tmp_path: Path, body: str, name: str) -> None:
    theorem = written(tmp_path, "def", body)
    assert f"unsupported: {name}, line " in refusal(theorem)

    def calls(a: int) -> None:
        theorem(a)

    assert name in refusal(calls)


@pytest.mark.parametrize(("operation", "name"), BY_VALUE, ids=range(len(BY_VALUE)))
def test_an_operation_is_refused_by_name(operation: Callable[[Any], object], name: str) -> None:
    def theorem(a: int) -> None:
        assume(a > 3)
        operation(a)

    assert name in refusal(theorem)


def test_async_functions_are_refused(tmp_path: Path) -> None:
    assert "async function" in refusal(written(tmp_path, "async def", "assert a"))


def test_a_function_without_source_is_refused() -> None:
    scope: dict[str, Any] = {}
    exec("def unseen(a: int) -> None:\n    assert a", scope)
    assert "function unseen without source" in refusal(scope["unseen"])


def test_parameters_of_unknown_kinds_are_refused() -> None:
    def text(a: str) -> None:
        assert a

    def many(*a: int) -> None:
        assert a

    assert "parameter 'a' of that kind" in refusal(text)
    assert "parameter 'a' of that kind" in refusal(many)


def test_a_refusal_on_a_path_that_nothing_reaches_does_not_count() -> None:
    def theorem(a: int) -> None:
        assume(a > 3)
        if a < 2:
            a / 2

    assert prove(theorem).verdict == "proved"


def test_what_the_engine_runs() -> None:
    def theorem(a: int, b: int, flag: bool) -> None:
        """Keyword arguments, defaults, closures, comprehensions, bags of attributes, exceptions."""

        def inner(x: int, *, y: int = 2) -> int:
            return x + y

        kept = [inner(x, y=y) for x, y in zip((a, b), (1, 2), strict=True) if x > 0]
        total = sum(x for x in kept)
        point = replace(Point(a), x=b, y=1)
        assert point.total == b + 1
        assert Plain(x=a) == Plain(a)
        assert len(kept) <= 2
        assert {"a": a}["a"] == a
        while total > 3:
            total = 3
        assert total <= max(3, a + b + 3)
        try:
            (a, b)[2]
        except IndexError:
            total = 0
        assert total == 0
        assert checkpoint_module.resend_checkpoint(5, 2, flag) == (2 if flag else 4)
        assert math.ceil(a) == math.floor(a) == a
        assert not flag or flag is not None

    result = prove(theorem)
    assert (result.verdict, result.reason) == ("proved", "")


def test_twins_are_made_once_and_leave_the_original_alone() -> None:
    twins = Twins()
    twin = twins.of(resend_checkpoint)
    assert twin is twins.of(resend_checkpoint)
    assert twin is not resend_checkpoint
    assert twin(7296, 128, True) == resend_checkpoint(7296, 128, True) == 7168
    assert twin.__globals__["__builtins__"]["max"] is not max
    assert resend_checkpoint.__globals__["__builtins__"] is not twin.__globals__["__builtins__"]
    assert twins.of(5) == 5
    assert twins.of(checkpoint_module).resend_checkpoint is twin


def test_definitions_lifted_from_source_run_on_symbols() -> None:
    """The way for functions of a target: parsed by the caller, run over a scope of ours."""
    tree = ast.parse("def halved(n):\n    return half(max(n, 0))\n")
    halved = lifted(tree, {"half": lambda n: n // 2}, "theirs.py")["halved"]

    def theorem(n: int) -> None:
        assert 2 * halved(n) <= max(n, 0)

    twins = Twins(replaced={halved: halved})
    assert prove(theorem, twins=twins).verdict == "proved"
    with pytest.raises(Unsupported, match=r"with, line 2 of theirs\.py"):
        lifted(ast.parse("def f():\n    with x: pass\n"), {}, "theirs.py")


def test_the_scan_names_the_line() -> None:
    found = list(constructs.refused(ast.parse("x = 1\nwith x:\n    y = x is 1\n")))
    assert found == ["with, line 2", "'is' between values, line 3"]
