"""Questions as SMT-LIB 2 text, for other solvers and for the eye."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import z3

from proofs.paths import Query
from proofs.symbolic import Term


def product_lemmas() -> Iterator[Term]:
    """What every linear question takes for granted about products, as conditions that no integers meet.

    `Run.divided` adds instances of these; all else that a question says of a product is just its name.
    """
    by, one, other = z3.Ints("by one other")
    yield z3.And(one == other, by * one != by * other)
    yield z3.And(by > 0, one < other, by * one + by > by * other)


def lemma_queries() -> Iterator[Query]:
    """The product lemmas as questions."""
    for condition in product_lemmas():
        yield Query((condition,), "unsat")


def text(query: Query, status: bool = True) -> str:
    """One question as a script, which with `status` states the answer that it expects."""
    solver = z3.SimpleSolver(ctx=query.assertions[0].ctx if query.assertions else None)
    solver.add(*query.assertions)
    expected = f"(set-info :status {query.answer})\n" if status else ""
    return f"(set-logic ALL)\n{expected}{solver.sexpr()}(check-sat)\n"


def write(queries: Iterable[Query], folder: Path, name: str) -> int:
    """Write questions as NAME-0001.smt2 and so on; returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for count, query in enumerate(queries, start=1):
        (folder / f"{name}-{count:04d}.smt2").write_text(text(query), encoding="utf-8")
    return count
