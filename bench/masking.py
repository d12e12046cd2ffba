"""How much known faults hide: faults planted under CP7, CH1, RT1 and RT2, judged with and without them.

Each case runs on the reference with one planted fault at a time. A case counts as masked for a rule where
every finding of that rule is explained by a known fault, whichever plant is at work. Run by hand:
`python bench/masking.py --cases 2000`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

from reference.engine import SlowEngine
from reference.history import History
from reference.publish import Publications
from spec.geometry import Geometry
from spec.trace import Configuration, Trace
from tailproof.generate.core import case
from tailproof.judge.findings import IncompleteError
from tailproof.judge.lockstep import divergences
from tailproof.known.explain import NOTHING, Known
from tailproof.known.model import load
from tailproof.targets.opening import ReferenceTarget, Target

RULES = ("CP7", "CH1", "RT1", "RT2")


class NeverStops(SlowEngine):
    """Prefill ends no chunk for a state."""

    def stops(self, history: History, start: int, export: int) -> dict[str, int]:
        return {}


class StopsLate(SlowEngine):
    """Prefill ends its chunks a unit past each required stop."""

    def stops(self, history: History, start: int, export: int) -> dict[str, int]:
        unit = self.geometry.unit
        return {name: at + unit for name, at in super().stops(history, start, export).items() if at}


class KeepsNoState(SlowEngine):
    """No Mamba state is registered."""

    def published(self, history: History, left: Publications) -> set[tuple[int, int]]:
        states = {group.index for group in self.geometry.mamba}
        return {place for place in left.must if place[0] not in states}


class KeepsNothing(SlowEngine):
    """Nothing is registered."""

    def published(self, history: History, left: Publications) -> set[tuple[int, int]]:
        return set()


PLANTS: tuple[type[SlowEngine], ...] = (NeverStops, StopsLate, KeepsNoState, KeepsNothing)


def found(trace: Trace, plant: type[SlowEngine], known: Known) -> set[str]:
    """The rules with a finding that nothing explains; each run is followed to its first one."""
    seen = set()
    try:
        outcome = ReferenceTarget(Target.parse("reference"), plant).run(trace)
        for one in divergences(trace, outcome, explainer=known.explainer()):
            if not one.fault:
                seen.add(one.rule)
    except IncompleteError:
        pass
    return seen


def regions(configuration: Configuration) -> Iterator[str]:
    """The kinds of configuration in which a known fault was once taken for any fault."""
    geometry = Geometry.of(configuration)
    yield "all"
    if min(group.block for group in configuration.groups) < geometry.mamba_block:
        yield "a block below the Mamba block"
    if not geometry.fine and geometry.align > geometry.mamba_block:
        yield "coarse hits, L above the Mamba block"
    if geometry.unfinished and not any(group.draft for group in configuration.groups):
        yield "several draft modules, no group marked"


def main(arguments: list[str]) -> int:
    """Print, by kind of configuration and rule, in how many cases a plant is red, and in how many of these
    known faults explain all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=77)
    options = parser.parse_args(arguments)
    known = Known(load(), "0.32")
    red: Counter[tuple[str, str]] = Counter()
    masked: Counter[tuple[str, str]] = Counter()
    cases: Counter[str] = Counter()
    for index in range(options.cases):
        trace = case(options.seed, index)
        without = set().union(*(found(trace, plant, NOTHING) for plant in PLANTS))
        left = set().union(*(found(trace, plant, known) for plant in PLANTS))
        for region in regions(trace.configuration):
            cases[region] += 1
            for rule in without & set(RULES):
                red[region, rule] += 1
                masked[region, rule] += rule not in left
    for region, number in cases.items():
        shown = ", ".join(f"{rule} {masked[region, rule]} of {red[region, rule]}" for rule in RULES)
        print(f"{region}: {number} cases; all explained: {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
