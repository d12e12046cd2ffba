"""Shrinks traces of 20 requests on the real vLLM, one for each of three defects, and shows before and after.

`.venv/bin/python bench/shrinking.py` prints `docs/shrinking.md`, `--write` writes it. The traces are those of
a seed, so only the seconds differ between two runs.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from spec.notation import lines
from spec.trace import TURN, Abort, Run, Settle, Step, Submit, Trace, prompt_length
from tailproof.explain.story import explain_divergence
from tailproof.generate.core import case
from tailproof.jobs.search import Subject, search
from tailproof.judge.findings import Divergence
from tailproof.known.explain import Known
from tailproof.known.model import line_of, load
from tailproof.shrink.search import shrink
from tailproof.targets.opening import DEFAULT, OpenTarget, Target, open_target

REQUESTS = 20
SECONDS = 60.0
MOST_TRACES = 2000
# A rule, and the known fault that breaks it.
WANTED = (
    ("SF1", "chained-block-copies"),
    ("CP7", "resumed-prefill-loses-checkpoint"),
    ("CH1", "junction-floored-from-chunk-start"),
)
KNOWN = Known(load(), line_of(Target.parse(DEFAULT).argument))
PAGE = Path(__file__).parent.parent / "docs" / "shrinking.md"
INTRODUCTION = f"""\
# Shrinking

What `tailproof fuzz` does with a trace that breaks a rule: it looks for the plainest trace that breaks the
same rule in the same way. Plainer is, in this order: fewer requests, fewer features switched on, fewer steps,
fewer peculiarities of single steps, prompts that have more in common, fewer tokens, smaller units and blocks,
limits nearer to their default. Only a plainer trace is taken, so the search ends; it also ends when its time
is over.

Below are three traces of {REQUESTS} requests that break {DEFAULT}, each made of generated cases joined under
one configuration, and what became of them on one worker. This page is the output of

    .venv/bin/python bench/shrinking.py --write

"""


@dataclass(slots=True)
class Pair:
    """A trace before and after, the explanation of the latter, and what the shrinking took: `runs` of the
    target and `seconds`."""

    key: tuple[str, str]
    before: Trace
    at: int
    after: Trace
    runs: int
    seconds: float
    explanation: list[str] = field(default_factory=list)


def joined(seed: int, index: int, wanted: int = REQUESTS) -> Trace:
    """The case `index` and those after it, one after the other under the configuration of the first, until
    `wanted` requests have arrived; every second case shares its segments with the one before. An odd `index`
    gives a pool for the largest case only."""
    first = case(seed, index)
    steps: list[Step] = []
    blocks: list[int] = []
    requests = 0
    while requests < wanted:
        episode = len(blocks)
        trace = case(seed, index + episode)
        blocks.append(trace.configuration.blocks)
        for step in trace.steps:
            requests += isinstance(step, Submit)
            if requests > wanted:
                break
            steps.append(_moved(step, episode, first.configuration.speculative))
    steps.append(Settle())
    pool = max(blocks) if index % 2 else sum(blocks)
    return Trace(replace(first.configuration, blocks=pool), tuple(steps))


def _moved(step: Step, episode: int, speculative: int) -> Step:
    if isinstance(step, Submit):
        prompt = tuple((_segment(name, episode), length) for name, length in step.prompt)
        return replace(step, id=f"{episode}{step.id}", prompt=prompt)
    if isinstance(step, Abort):
        return Abort(f"{episode}{step.id}")
    if isinstance(step, Run | Settle):
        return replace(step, accept=min(step.accept, speculative))
    return step


def _segment(name: str, episode: int) -> str:
    if name.startswith(TURN):
        return f"{TURN}{episode}{name.removeprefix(TURN)}"
    return f"{episode // 2}{name}"


def pairs(opened: OpenTarget, seed: int) -> Iterator[Pair]:
    """For each wanted rule the first trace of the seed that breaks it in its second half, and its
    shrinking."""
    due = list(WANTED)
    subject = Subject([opened], lambda trace: KNOWN.explainer())
    for one in search(subject, lambda index: joined(seed, index), cases=MOST_TRACES, ahead=1):
        found = next(one.divergences(), None)
        if found is None or (found.rule, found.fault) not in due or 2 * found.at < len(one.trace.steps):
            continue
        due.remove((found.rule, found.fault))
        yield _pair(subject, one.trace, found)
        if not due:
            return


def _pair(subject: Subject, before: Trace, found: Divergence) -> Pair:
    runs = 0

    def fails(trace: Trace) -> bool:
        nonlocal runs
        runs += 1
        return subject.shows(trace, found.rule, found.finding.kind, found.fault)[1] is not None

    began = time.monotonic()
    after = shrink(before, fails, SECONDS)
    pair = Pair((found.rule, found.fault), before, found.at, after, runs, time.monotonic() - began)
    outcome, divergence = subject.shows(after, found.rule, found.finding.kind, found.fault)
    assert divergence is not None
    pair.explanation = explain_divergence(after, outcome, divergence)
    return pair


def table(found: list[Pair]) -> Iterator[str]:
    """The numbers."""
    yield "| rule | known fault | requests | steps | prompt tokens | runs of the target | seconds |"
    yield "|---|---|---|---|---|---|---|"
    for pair in found:
        sizes = [
            f"{count(pair.before)} → {count(pair.after)}"
            for count in (
                lambda trace: len(list(trace.submits())),
                lambda trace: len(trace.steps),
                lambda trace: sum(prompt_length(submit.prompt) for submit in trace.submits()),
            )
        ]
        yield f"| {pair.key[0]} | {pair.key[1]} | {' | '.join(sizes)} | {pair.runs} | {pair.seconds:.1f} |"


def condensed(trace: Trace, at: int) -> Iterator[str]:
    """The trace with several steps on a line; the one that shows the fault stands alone."""
    whole = lines(trace)
    head, steps = whole[: -len(trace.steps)], whole[-len(trace.steps) :]
    yield from head
    yield from _folded(steps[:at])
    yield f"{steps[at]}  # here"
    yield from _folded(steps[at + 1 :])


def _folded(steps: list[str]) -> list[str]:
    """Steps joined in lines, none of them broken."""
    solid = "; ".join(step.replace(" ", "\0") for step in steps)
    return [line.replace("\0", " ") for line in textwrap.wrap(solid, 110, break_on_hyphens=False)]


def page(found: list[Pair]) -> str:
    """The whole document."""
    shown = [INTRODUCTION.rstrip(), "", *table(found), ""]
    shown += [
        "The traces are in the notation of `docs/contract.md`; the step that shows the fault is marked.",
        "",
    ]
    for pair in found:
        shown += [f"## {pair.key[0]}, {pair.key[1]}", "", "Before:", "", "```"]
        shown += [*condensed(pair.before, pair.at), "```", "", "After:", "", "```"]
        shown += [*lines(pair.after), "```", "", "The explanation:", "", "```"]
        shown += [*pair.explanation, "```", ""]
    return "\n".join(shown).rstrip() + "\n"


def main() -> None:
    """Find, shrink, print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} instead of printing it")
    given = parser.parse_args()
    with closing(open_target(Target.parse(DEFAULT), lambda line: print(line, file=sys.stderr))) as opened:
        found = sorted(pairs(opened, given.seed), key=lambda pair: WANTED.index(pair.key))
    if given.write:
        PAGE.write_text(page(found), encoding="utf-8")
        print("\n".join(table(found)))
    else:
        print(page(found), end="")
    if len(found) < len(WANTED):
        sys.exit(f"only {len(found)} of {len(WANTED)} faults were found in {MOST_TRACES} traces")


if __name__ == "__main__":
    main()
