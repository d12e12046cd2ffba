"""A second opinion: cvc5 must agree with every "no values meet this" that a proof by Z3 rests on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from proofs import smtlib
from proofs.paths import Query

# cvc5's own units of work for one question; the seconds are a last net.
QUERY_UNITS = 20_000_000
NET_SECONDS = 300.0


class Unavailable(Exception):
    """cvc5 is not installed."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """Of `asked` questions, how many cvc5 answered likewise, how many it left `open` or `contradicts`."""

    asked: int
    agreed: int
    open: int
    contradicts: int

    @property
    def verdict(self) -> str:
        """proved, unknown or refuted, as for any engine."""
        if self.contradicts:
            return f"refuted ({self.contradicts} of {self.asked} questions)"
        return f"unknown ({self.open} of {self.asked} questions)" if self.open else "proved"


def opinion(queries: Iterable[Query], units: int = QUERY_UNITS) -> Opinion:
    """Ask cvc5 every question that Z3 answered with unsat; so many of its units of work for each.

    Raises:
        Unavailable: without cvc5.
    """
    asked = agreed = unanswered = contradicts = 0
    for query in queries:
        if query.answer != "unsat":
            continue
        asked += 1
        answer = answer_of(smtlib.text(query, status=False), units)
        agreed += answer == "unsat"
        contradicts += answer == "sat"
        unanswered += answer not in ("sat", "unsat")
    return Opinion(asked, agreed, unanswered, contradicts)


def answer_of(script: str, units: int = QUERY_UNITS) -> str:
    """What cvc5 says to a script with one question: sat, unsat or unknown.

    Raises:
        Unavailable: without cvc5.
    """
    try:
        import cvc5
    except ImportError as problem:
        raise Unavailable("cvc5 is not installed") from problem
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("rlimit-per", str(units))
    solver.setOption("tlimit-per", str(int(1000 * NET_SECONDS)))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, "question")
    answer = "unknown"
    while not (command := parser.nextCommand()).isNull():
        said = str(command.invoke(solver, parser.getSymbolManager())).strip()
        if said:
            answer = said
    return answer
