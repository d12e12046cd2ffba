"""Wrong variants of the lookup: each gives another hit than the right one, on a cache laid out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from reference.cache import SlowCache
from reference.history import History, Prefixes
from reference.oracle import Oracle
from reference.wrong_lookups import VARIANTS, bounded_by_the_one_before
from spec.geometry import Geometry
from spec.rules import RULES
from spec.trace import Configuration, Group, Submit
from tailproof.generate.core import case
from tailproof.generate.drawing import Axes
from tailproof.judge.lockstep import judge
from tailproof.judge.step import Step
from tailproof.targets.opening import Target, open_target

BY_KIND = {variant.kind: variant for variant in VARIANTS}


@dataclass(frozen=True, slots=True)
class Cache:
    """One request of `prompt` tokens and the entries of its own prefix that are visible, by group."""

    configuration: Configuration
    prompt: int
    entries: Mapping[int, Sequence[int]]

    def hits(self, kind: str) -> tuple[int, int]:
        """The right hit, and that of a variant."""
        geometry = Geometry.of(self.configuration)
        history = History.of(Submit("A", (("a", self.prompt),)), Prefixes(self.configuration.unit), {})
        cache = SlowCache(geometry)
        visible = {
            cache.key(group, history, position)
            for group, positions in self.entries.items()
            for position in positions
        }
        kept = set(visible)
        found = cache.lookup(history, visible).hit, BY_KIND[kind].hit(geometry, history, visible)
        assert visible == kept
        return found


def eagle(*groups: Group, unit: int = 2) -> Configuration:
    return Configuration(groups, unit, eagle=True, speculative=1)


SMALL, LARGE, MAMBA = Group("full", 4), Group("full", 8), Group("mamba", 4)
TWO_LAYOUTS = eagle(SMALL, LARGE, MAMBA)


@pytest.mark.parametrize(
    ("kind", "cache", "right", "wrong"),
    [
        # The small blocks reach 10 and serve 8; the proof of 8 in the large ones lies at 12, past 8 + 2.
        ("bounded-by-other-layout", Cache(TWO_LAYOUTS, 16, {0: (4, 8, 10), 1: (8, 12), 2: (4, 8)}), 8, 4),
        # With the proof at 10 itself nothing is hidden.
        ("bounded-by-other-layout", Cache(TWO_LAYOUTS, 16, {0: (4, 8, 10), 1: (8, 10), 2: (4, 8)}), 8, 8),
        # The other order: the large blocks serve less, and what the small ones hold is seen whole.
        (
            "bounded-by-other-layout",
            Cache(eagle(LARGE, SMALL, MAMBA), 16, {0: (8, 12), 1: (4, 8, 10), 2: (4, 8)}),
            8,
            8,
        ),
        # The proof of 14 is the tail at 16, past P − 1 = 15.
        ("scan-capped", Cache(eagle(SMALL, MAMBA), 16, {0: (4, 8, 12, 16), 1: (8, 14)}), 14, 8),
        ("scan-capped", Cache(eagle(SMALL, MAMBA), 17, {0: (4, 8, 12, 16), 1: (8, 14)}), 14, 14),
        ("double-drop", Cache(eagle(SMALL, MAMBA), 16, {0: (4, 8, 12, 16), 1: (12, 14)}), 14, 12),
        ("double-drop", Cache(Configuration((SMALL, MAMBA), 2), 17, {0: (4, 8, 12, 16), 1: (16,)}), 16, 16),
        ("coarse-hit", Cache(eagle(SMALL, MAMBA), 17, {0: (4, 8, 12, 16), 1: (8, 14)}), 14, 8),
        ("coarse-hit", Cache(eagle(SMALL, MAMBA), 17, {0: (4, 8, 12, 16), 1: (8, 12)}), 12, 12),
    ],
)
def test_a_variant_gives_the_hit_of_its_fault(kind: str, cache: Cache, right: int, wrong: int) -> None:
    assert cache.hits(kind) == (right, wrong)


def test_the_order_of_layouts_matters_to_the_variant_and_not_to_the_spec() -> None:
    small, large = (4, 8, 10), (8, 12)
    one = Cache(TWO_LAYOUTS, 16, {0: small, 1: large, 2: (4, 8)})
    other = Cache(eagle(LARGE, SMALL, MAMBA), 16, {0: large, 1: small, 2: (4, 8)})
    kind = "bounded-by-other-layout"
    assert one.hits(kind)[0] == other.hits(kind)[0]
    assert one.hits(kind)[1] != other.hits(kind)[1]


def test_variants_name_rules_that_exist_once_each() -> None:
    assert all(variant.rule in RULES and variant.reason for variant in VARIANTS)
    assert len(BY_KIND) == len(VARIANTS)
    assert BY_KIND["bounded-by-other-layout"].hit is bounded_by_the_one_before


def test_no_variant_ever_gives_more_than_the_right_hit() -> None:
    """A hit above what is due is judged otherwise, so a variant that gave one would name nothing."""
    opened = open_target(Target.parse("reference"), print)
    below = dict.fromkeys(BY_KIND, 0)
    for index in range(250):
        trace = case(11, index, Axes(windows=0.7, more=0.4))
        oracle = Oracle(trace)
        for observation in opened.run(trace).observations:
            forecast = oracle.forecast(observation)
            assert judge(Step(observation, forecast, oracle)) == []
            for admission in forecast.admissions:
                for variant in VARIANTS:
                    if variant.kind == "double-drop" and oracle.geometry.windows:
                        # Twice the margin is another block as proof of a window, not one more.
                        continue
                    hit = variant.hit(oracle.geometry, admission.history, set(admission.visible))
                    assert 0 <= hit <= admission.lookup.hit, variant.kind
                    below[variant.kind] += hit < admission.lookup.hit
            oracle.adopt(observation, forecast)
    assert all(below.values()), below
