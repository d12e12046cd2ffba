"""The engine: exact arithmetic, verdicts, counterexamples, limits, loop lemmas, questions for others.

PYTEST_DONT_REWRITE: the theorems here must fail by their own asserts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import z3

from proofs import paths as paths_module
from proofs import pool, second_solver, smtlib
from proofs.assume import assume, every, foretell, implies, refutes
from proofs.counterexamples import Counterexample
from proofs.engine import LIMIT_REACHED, Result, prove
from proofs.inputs import Table
from proofs.loops import Loop, by_induction
from proofs.paths import Paths, Query, Run, fresh_context
from proofs.products import Products
from proofs.stand_ins import BUILTINS, arbitrary_range, if_then_else, symbolic_max
from proofs.symbolic import Exploration, SymBool, SymFunction, SymInt, SymSequence, Unsupported
from proofs.theorems import THEOREMS
from proofs.twins import Twins
from proofs.wrong import WRONG

NUMBERS = (-7, -3, -1, 1, 2, 5, 8)


def value(compute: Callable[..., Any], *plain: int) -> Any:
    """What symbolic values that can only be the plain ones compute to; one path must be left."""
    paths = Paths(time.monotonic() + 20)
    found = []
    for run in paths.runs():
        with Exploration(run):
            values = [SymInt(z3.Int(f"v{number}")) for number in range(len(plain))]
            for symbolic, number in zip(values, plain, strict=True):
                run.assume(symbolic.term == number)
            result = compute(*values)
        solver = z3.Solver()
        solver.add(*run.conditions)
        if solver.check() != z3.sat:
            continue
        found.append(_plain(result, run.conditions))
    assert len(found) == 1
    return found[0]


def _plain(result: Any, conditions: list[Any]) -> Any:
    if isinstance(result, tuple):
        return tuple(_plain(item, conditions) for item in result)
    if type(result) not in (SymInt, SymBool):
        return result
    solver = z3.Solver()
    solver.add(*conditions)
    assert solver.check() == z3.sat
    known = solver.model().eval(result.term, model_completion=True)
    other = z3.Solver()
    other.add(*conditions, result.term != known)
    assert other.check() == z3.unsat, "more than one value"
    return z3.is_true(known) if type(result) is SymBool else known.as_long()


def refuted(theorem: Callable[..., object], **options: Any) -> Counterexample:
    """The counterexample to a theorem that must be wrong."""
    result = prove(theorem, **options)
    assert result.verdict == "refuted", result.reason
    assert result.counterexample is not None
    return result.counterexample


@pytest.mark.parametrize("divisor", NUMBERS)
def test_division_is_pythons_for_every_sign(divisor: int) -> None:
    for dividend in (*NUMBERS, 0):
        assert value(lambda a, b: a // b, dividend, divisor) == dividend // divisor
        assert value(lambda a, b: a % b, dividend, divisor) == dividend % divisor
        assert value(lambda a, b: divmod(a, b), dividend, divisor) == divmod(dividend, divisor)
        assert value(lambda a: a // divisor, dividend) == dividend // divisor
        assert value(lambda a: a % divisor, dividend) == dividend % divisor
        assert value(lambda b, a=dividend: a // b, divisor) == dividend // divisor
        assert value(lambda b, a=dividend: a % b, divisor) == dividend % divisor


@pytest.mark.parametrize("divisor", NUMBERS)
def test_multiples_leave_the_dividend_exactly(divisor: int) -> None:
    for one, other in product((-2, 0, 3), (-5, 0, 4)):
        total = one * divisor + other
        assert value(lambda a, b, c: (a * b + c) // b, one, divisor, other) == total // divisor
        assert (
            value(lambda a, b, c: (c - b * a) % b, one, divisor, other) == (other - divisor * one) % divisor
        )
        assert value(lambda a, b, c: symbolic_max(a * b, c) // b, one, divisor, other) == (
            max(one * divisor, other) // divisor
        )
        assert value(lambda a, b: (3 * b * a) // (3 * b), one, divisor) == one


def test_division_of_any_numbers_keeps_its_promise() -> None:
    def holds(a: int, b: int) -> None:
        assume(b != 0)
        assert a == a // b * b + a % b
        assert (0 <= a % b < b) if b > 0 else (b < a % b <= 0)

    assert prove(holds).verdict == "proved"


def test_division_by_zero_is_an_error_as_in_python() -> None:
    def divides(a: int, b: int) -> None:
        assert a // b * b <= a or b < 0

    found = refuted(divides)
    assert found.values == {"a": "0", "b": "0"}
    assert found.failure.startswith("ZeroDivisionError")

    def catches(a: int, b: int) -> None:
        try:
            a % b
        except ZeroDivisionError:
            assert b == 0

    assert prove(catches).verdict == "proved"


OPERATIONS = """
a + b; a - b; a * b; -a; +a; abs(a); a < b; a <= b; a > b; a >= b; a == b; a != b; 1 < a <= b; a and b;
a or b; not a; a if a > b else b; (a < b) + 1; (a < b) * b - (a == b); (a < b) & (a > 0);
(a < b) | (a > 0); (a < b) ^ (a > 0); (a < b) == (b > 0); (a < b) < 1; (a, b) == (b, a); (a, 2) < (b, 1);
a in (1, b); a is None; isinstance(a, int) and not isinstance(a, str); isinstance(a < b, bool); bool(a);
sorted((b, a, 0))[1] * 1; [x for x in (a, b) if x > 0] == [a]; a == "a"; a != None
"""


@pytest.mark.parametrize("text", [one.strip() for one in OPERATIONS.split(";")])
def test_operations_are_pythons(text: str) -> None:
    operation: Callable[[Any, Any], Any] = eval(f"lambda a, b: {text}")
    for one, other in product((-2, 0, 1, 3), (-1, 0, 1, 4)):
        assert value(operation, one, other) == operation(one, other)


STAND_INS = """
b["min"](x, y); b["max"](x, y, 2); b["max"]([x, y]); b["min"]((), default=y);
b["min"]((z for z in (x, y) if z > 0), default=-1); b["max"](x, y, key=lambda z: -z);
b["max"](x > y, y > x); b["sum"]((x, y, 1)); b["sum"](1 for z in (x, y) if z > 0);
b["any"](z > 1 for z in (x, y)); b["all"](z > 1 for z in (x, y)); b["int"](x > y) + b["int"](y);
isinstance(x, b["int"]); tuple(b["range"](x, y)); tuple(b["range"](y)); tuple(b["range"](x, y, 2));
tuple(b["range"](y, x, -2)); b["len"](b["range"](x, y, 2)); b["len"](b["range"](y, x, -3));
tuple(b["reversed"](b["range"](x, y))); 1 in b["range"](x, y); b["len"]((x, y));
tuple(b["zip"]((x, y), b["range"](x, x + 2), strict=True)); tuple(b["enumerate"]((x, y)))
"""


@pytest.mark.parametrize("text", [one.strip() for one in STAND_INS.split(";")])
def test_stand_ins_are_pythons_built_ins(text: str) -> None:
    call: Callable[..., Any] = eval(f"lambda b, x, y: {text}")
    real = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
    for one, other in product((-2, 0, 1, 3), (-1, 0, 1, 4)):
        assert value(lambda x, y: call(BUILTINS, x, y), one, other) == call(real, one, other)


def test_empty_min_is_an_error_as_in_python() -> None:
    with pytest.raises(ValueError):
        BUILTINS["min"](())
    with pytest.raises(TypeError):
        BUILTINS["min"](1, 2, default=3)
    with pytest.raises(ValueError):
        value(lambda x: BUILTINS["range"](x, 5, 0), 1)


def test_sequences_check_their_bounds() -> None:
    def at(index: Any, length: Any) -> Any:
        return SymSequence(length, lambda place: place * 10)[index]

    assert value(at, 2, 4) == 20
    assert value(at, -1, 4) == 30
    for index in (4, -5):
        with pytest.raises(IndexError):
            value(at, index, 4)
    assert value(lambda length: BUILTINS["len"](SymSequence(length, abs)), 3) == 3
    assert value(lambda length: tuple(SymSequence(length, lambda place: place)), 3) == (0, 1, 2)
    assert BUILTINS["len"](type("Bag", (), {"symbolic_length": 7})()) == 7


def test_if_then_else_takes_no_branch() -> None:
    assert value(lambda a: if_then_else(a > 1, a, -1), 5) == 5
    assert value(lambda a: if_then_else(a > 9, a, -1), 5) == -1
    assert if_then_else(True, 1, 2) == 1


def test_an_arbitrary_index_stands_for_all() -> None:
    twins = Twins(builtins={**BUILTINS, "range": arbitrary_range})

    def covers(end: int) -> None:
        for index in range(3, end):
            assert 3 <= index < end

    def misses(end: int) -> None:
        for index in range(3, end):
            assert index < 9

    assert prove(covers, twins=twins).verdict == "proved"
    assert refuted(misses, twins=twins).values == {"end": "10"}
    assert tuple(arbitrary_range(2, 4)) == (2, 3)


# Verdicts


def test_a_proof_counts_its_paths_and_questions() -> None:
    def holds(a: int, b: int) -> None:
        assert max(a, b) >= min(a, b)
        if a > b:
            assert a >= b + 1

    result = prove(holds)
    assert (result.verdict, result.reason, result.counterexample) == ("proved", "", None)
    assert result.paths == 2
    assert {query.answer for query in result.queries} == {"sat", "unsat"}


def test_a_wrong_theorem_is_refuted_with_small_numbers() -> None:
    def wrong(a: int, b: int, flag: bool) -> None:
        assume(a > 1000)
        assert flag or a + b != 77 + 2 * b

    found = refuted(wrong)
    assert found.values == {"a": "1001", "b": "924", "flag": "False"}
    assert str(found) == "a=1001, b=924, flag=False"
    assert found.failure.startswith("AssertionError")


def test_a_counterexample_with_a_predicate_lists_its_members() -> None:
    def wrong(position: int, entries: Callable[[int], bool], other: Callable[[int], int]) -> None:
        assume(position > 4)
        assert not entries(position) or other(position) < 9

    assert dict(refuted(wrong).values) == {"position": "5", "entries": "{5}", "other": "{5: 9}, else 0"}


def test_a_table_prints_and_answers() -> None:
    table = Table({3: True, 1: True, 2: False}, False)
    assert (table(3), table(2), table(9), repr(table)) == (True, False, False, "{1, 3}")


def test_a_tuple_parameter_is_one_value_each() -> None:
    def wrong(pair: tuple[int, int]) -> None:
        assert pair[0] <= pair[1] + 3

    assert refuted(wrong).values["pair"] in ("(4, 0)", "(2, -2)", "(3, -1)", "(0, -4)", "(1, -3)")


def test_a_theorem_that_says_nothing_is_not_proved() -> None:
    def vacuous(a: int) -> None:
        assume(a > 3)
        assume(a < 2)
        assert a == 0

    result = prove(vacuous)
    assert (result.verdict, result.reason) == ("unknown", "no values meet the assumptions")


def test_plain_conditions_work_too() -> None:
    def holds(a: int) -> None:
        assume(True)
        assert implies(True, a == a)
        assert every([True, a == a])
        assert refutes(a != a, True)
        assert foretell("nobody asks", a) == a

    assert prove(holds).verdict == "proved"
    assert (implies(True, False), implies(False, False), refutes(True, True)) == (False, True, False)
    assert (every([True, False]), foretell("x", 4)) == (False, 4)


def test_an_endless_loop_over_symbols_reaches_the_limit() -> None:
    def endless(a: int) -> None:
        assume(a > 0)
        while a > 0:
            a = a + 1

    began = time.monotonic()
    result = prove(endless, seconds=1.0)
    assert (result.verdict, result.reason) == ("unknown", LIMIT_REACHED)
    assert time.monotonic() - began < 5
    found = [prove(endless, units=20_000) for _ in range(2)]
    assert [(one.verdict, one.reason) for one in found] == [("unknown", LIMIT_REACHED)] * 2
    assert found[0].paths == found[1].paths
    assert 20_000 <= found[0].units == found[1].units < 40_000


def test_a_refutation_is_found_beside_an_endless_loop() -> None:
    def endless_and_wrong(a: int) -> None:
        steps = 0
        while steps < a:
            steps += 1
        assert a < 3

    assert refuted(endless_and_wrong, seconds=20.0).values == {"a": "3"}


def test_hard_questions_leave_a_theorem_unknown() -> None:
    def cubes(a: int, b: int, c: int) -> None:
        assume(a > 0)
        assume(b > 0)
        assume(c > 0)
        assert a * a * a + b * b * b != c * c * c

    result = prove(cubes, units=5_000_000)
    assert result.verdict == "unknown"
    assert result.reason == LIMIT_REACHED or result.reason.startswith("undecided: AssertionError in cubes")


def _rounds_down(a: int, by: int) -> None:
    assume(a >= 0)
    assume(by > 0)
    assert a // by * by <= a < a // by * by + by


def test_a_question_that_costs_too_much_is_unknown_whatever_its_time() -> None:
    def asked(units: int) -> list[tuple[str, int]]:
        fresh_context()
        paths = Paths(time.monotonic() + 3600)
        a, b, c = z3.Ints("a b c")
        question = [a > 1, b > 1, c > a + b, a * b == c, a * a < b]
        answer, _ = paths.ask(question, units, ("simplify", "smt"))
        return [(answer, paths.units), *((query.answer, query.units) for query in paths.queries)]

    enough = asked(1_000_000)
    assert enough[0][0] == "sat"
    assert asked(1_000_000) == enough
    tiny = asked(20)
    assert tiny[0][0] == "unknown"
    assert asked(20) == tiny


def test_a_branch_that_costs_too_much_counts_as_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a limit that is far too small loses proofs, and never makes one."""
    whole = prove(_rounds_down)
    assert whole.verdict == "proved"
    monkeypatch.setattr(paths_module, "BRANCH_UNITS", 1)
    starved = prove(_rounds_down)
    assert starved.verdict == "proved"
    assert starved.paths >= whole.paths
    monkeypatch.setattr(paths_module, "FIRST_UNITS", 1)
    monkeypatch.setattr(paths_module, "_WAYS", (((), 1), (("simplify", "smt"), 1)))
    assert prove(_rounds_down).verdict == "unknown"


def test_a_slowed_process_comes_to_the_same_at_the_same_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen() -> tuple[str, int, list[tuple[str, int]]]:
        found = prove(_rounds_down)
        return found.verdict, found.units, [(one.answer, one.units) for one in found.queries]

    fast = seen()
    answer = Paths.answer

    def slow(paths: Paths, *question: Any) -> tuple[str, Any]:
        time.sleep(0.4)
        return answer(paths, *question)

    monkeypatch.setattr(Paths, "answer", slow)
    assert seen() == fast
    assert fast[0] == "proved"


def test_deep_recursion_is_no_crash() -> None:
    result = prove(_deep, seconds=60.0)
    assert result.verdict == "unknown"


def _deep(a: int) -> None:
    _deep(a)


# The pool: limits from outside.


def _answer() -> int:
    return 42


def _for_ever() -> None:
    while True:
        pass


def _fails() -> None:
    raise ValueError("no")


def test_the_pool_ends_what_never_ends() -> None:
    began = time.monotonic()
    jobs: list[Callable[[], Any]] = [_for_ever, _answer, _fails, _answer]
    started: list[int] = []
    outcomes = {
        outcome.index: outcome for outcome in pool.run(jobs, workers=2, seconds=0.5, started=started.append)
    }
    assert time.monotonic() - began < 20
    assert outcomes[0].problem == LIMIT_REACHED
    assert (outcomes[1].value, outcomes[3].value) == (42, 42)
    assert outcomes[2].problem == "ValueError: no"
    assert sorted(started) == [0, 1, 2, 3]


def test_the_pool_survives_a_process_that_dies() -> None:
    import os

    outcomes = list(pool.run([lambda: os._exit(7), _answer], workers=1, seconds=5))
    assert outcomes[0].problem == "the process ended: 7"
    assert outcomes[1].value == 42


# Loop lemmas


def _sum_to(count: int) -> int:
    total = 0
    step = 0
    while step < count:
        step += 1
        total += 2
    return total


def _last_even(start: int, stop: int) -> int:
    for place in range(start, stop, -2):
        if place < 10:
            return place
    return stop


SUMS = Loop(
    _sum_to, lambda total, step, count: (total == 2 * step, step <= count), lambda step, count: count - step
)


def test_a_loop_of_any_length_is_proved_by_induction() -> None:
    @by_induction(SUMS)
    def doubles(count: int) -> None:
        assume(count >= 0)
        assert _sum_to(count) == 2 * count

    assert prove(doubles).verdict == "proved"
    doubles(5)


@pytest.mark.parametrize(
    ("lemma", "measure", "reason"),
    [
        (lambda total, step: (total == step,), lambda step, count: count - step, "condition 0"),
        (lambda total, step, count: (total == 2 * step,), lambda step, count: count - step, "doesn't follow"),
        (lambda total, step, count: (total == 2 * step, step <= count), lambda step: step, "the measure"),
        (lambda total, step, count: (step == 1,), lambda step, count: count - step, "before the loop"),
    ],
)
def test_a_wrong_lemma_proves_nothing(
    lemma: Callable[..., tuple[bool, ...]], measure: Callable[..., int], reason: str
) -> None:
    @by_induction(Loop(_sum_to, lemma, measure))
    def doubles(count: int) -> None:
        assume(count >= 0)
        assert _sum_to(count) == 2 * count

    result = prove(doubles, seconds=2.0)
    assert result.verdict == "unknown"
    if reason != "doesn't follow":
        assert reason in result.reason


def test_a_wrong_theorem_with_a_right_lemma_is_refuted_by_a_real_run() -> None:
    @by_induction(SUMS)
    def triples(count: int) -> None:
        assume(count >= 0)
        assert _sum_to(count) <= 5

    assert refuted(triples, seconds=20.0).values == {"count": "3"}


def test_a_for_loop_over_a_range_is_cut() -> None:
    @by_induction(Loop(_last_even, lambda place, start: (place <= start, (start - place) % 2 == 0)))
    def same_parity(start: int, stop: int) -> None:
        assume(stop < start)
        found = _last_even(start, stop)
        assert found == stop or (found < 10 and (start - found) % 2 == 0 and found > stop)

    assert prove(same_parity).verdict == "proved"

    @by_induction(Loop(_last_even, lambda place: (place > 9,)))
    def wrong_lemma(start: int, stop: int) -> None:
        assume(stop < start)
        _last_even(start, stop)

    result = prove(wrong_lemma, seconds=2.0)
    assert result.verdict == "unknown"
    assert "loop 0 of _last_even" in result.reason


def _appends(count: int) -> int:
    kept: list[int] = []
    while len(kept) < count:
        kept.append(1)
    return len(kept)


def _over_a_list(count: int) -> int:
    for place in (1, 2):
        count += place
    return count


def _no_integer(count: int) -> int:
    last: int | None = None
    while count > 0:
        count, last = count - 1, count
    return 0 if last is None else last


@pytest.mark.parametrize(
    ("function", "loop", "reason"),
    [
        (_appends, Loop(_appends, lambda count: (True,), lambda count: count), "effect inside a cut loop"),
        (_over_a_list, Loop(_over_a_list, lambda count: (True,)), "over something else than a range"),
        (_sum_to, Loop(_sum_to, lambda count: (True,)), "without a measure"),
        (_sum_to, Loop(_sum_to, lambda count: (True,), lambda count: count, number=3), "which has none"),
        (_no_integer, Loop(_no_integer, lambda count: (True,), lambda count: count), "changes last"),
    ],
)
def test_loops_that_cannot_be_cut_are_refused_by_name(
    function: Callable[[int], int], loop: Loop, reason: str
) -> None:
    @by_induction(loop)
    def uses(count: int) -> None:
        function(count)

    result = prove(uses, seconds=5.0)
    assert result.verdict == "unsupported"
    assert reason in result.reason


# Questions without products, and for other solvers


def test_products_become_names() -> None:
    x, y, z = z3.Ints("x y z")
    products = Products()
    one, other = products.without(x * y + 2 * y * x == z), products.without(y * x > 0)
    assert one.sexpr().count("product!0") == 1
    assert other.sexpr().count("product!0") == 1
    assert products.without(2 * x < z).sexpr() == (2 * x < z).sexpr()
    assert "product!1" in products.without(x * z * y > 1).sexpr()


def test_a_question_without_products_asks_no_more() -> None:
    """Whatever meets the path's conditions also meets those without products, so no path is lost."""
    run = Run(Paths(time.monotonic() + 5), [], None)
    with Exploration(run):
        a, b = SymInt(z3.Int("a")), SymInt(z3.Int("b"))
        run.assume((b > 0).term)
        kept = a // b * b + a % b * a
        run.assume((kept > 3).term)
    for one, other in product(range(-4, 5), range(1, 5)):
        solver = z3.Solver()
        solver.add(z3.Int("a") == one, z3.Int("b") == other, *run.conditions)
        real = one // other * other + one % other * one > 3
        assert (solver.check() == z3.sat) == real
        linear = z3.Solver()
        linear.add(z3.Int("a") == one, z3.Int("b") == other, *run.linear)
        assert not real or linear.check() == z3.sat


def test_the_product_lemmas_hold() -> None:
    for query in smtlib.lemma_queries():
        solver = z3.Solver()
        solver.add(*query.assertions)
        assert solver.check() == z3.unsat


def test_questions_become_scripts(tmp_path: Any) -> None:
    result = prove(THEOREMS["cp1_on_the_grid"])
    assert smtlib.write(result.queries, tmp_path, "cp1") == len(result.queries)
    text = (tmp_path / "cp1-0001.smt2").read_text(encoding="utf-8")
    assert text.startswith("(set-logic ALL)\n(set-info :status ")
    assert text.rstrip().endswith("(check-sat)")
    answers = set()
    for file in tmp_path.iterdir():
        solver = z3.Solver()
        solver.from_file(str(file))
        answers.add(str(solver.check()))
        assert f":status {solver.check()}" in file.read_text(encoding="utf-8")
    assert answers == {"sat", "unsat"}


def test_cvc5_knows_right_from_wrong() -> None:
    pytest.importorskip("cvc5")
    x = z3.Int("x")
    assert second_solver.answer_of(smtlib.text(Query((x > 3, x < 3), "unsat"))) == "unsat"
    assert second_solver.answer_of(smtlib.text(Query((x > 3,), "sat"))) == "sat"
    wrong = second_solver.opinion([Query((x > 3,), "unsat"), Query((x > 3, x < 2), "unsat")])
    assert (wrong.asked, wrong.agreed, wrong.contradicts) == (2, 1, 1)
    assert wrong.verdict == "refuted (1 of 2 questions)"
    assert second_solver.Opinion(3, 2, 1, 0).verdict == "unknown (1 of 3 questions)"


@pytest.mark.parametrize("name", THEOREMS)
def test_cvc5_discharges_every_theorem(name: str) -> None:
    pytest.importorskip("cvc5")
    result = prove(THEOREMS[name])
    assert result.verdict == "proved", result.reason
    opinion = second_solver.opinion(result.queries)
    assert opinion.asked > 0
    assert opinion.verdict == "proved", opinion


def test_cvc5_discharges_the_product_lemmas() -> None:
    pytest.importorskip("cvc5")
    assert second_solver.opinion(smtlib.lemma_queries()).verdict == "proved"


# Negative controls


@pytest.mark.parametrize(
    ("name", "variant", "planted"),
    [
        pytest.param(name, variant, planted, id=f"{name}-{variant}")
        for name, variants in WRONG.items()
        for variant, planted in variants
    ],
)
def test_the_engine_refutes_the_wrong_variant(
    name: str, variant: str, planted: dict[str, Callable[..., Any]]
) -> None:
    result: Result = prove(THEOREMS[name], planted=planted)
    assert result.verdict == "refuted", f"{variant}: {result.verdict} {result.reason}"
    assert result.counterexample is not None
    print(f"{name} {variant}: {result.counterexample}: {result.counterexample.failure}")


def test_symbols_are_no_use_outside_an_exploration() -> None:
    with pytest.raises(Unsupported, match="outside an exploration"):
        bool(SymInt(z3.Int("a")))
    with pytest.raises(TypeError):
        SymFunction("f", truth=True)("no integer")
