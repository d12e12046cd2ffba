"""The profile lookahead in lockstep: hashes that cover tokens to come, on the reference and with faults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reference.engine import SlowEngine
from reference.history import History, Prefixes
from spec.geometry import Geometry
from spec.trace import Configuration, Group, Submit, Trace
from tailproof.generate.core import case
from tailproof.generate.drawing import Axes
from tailproof.judge.findings import Finding
from tailproof.judge.lockstep import compare
from tailproof.targets import opening as targets
from tailproof.targets.opening import ReferenceTarget, Target

AXES = Axes().within(("lookahead", "drop"), ("small-budget",))
CASES = 300
FULL, MAMBA = Group("full", 4), Group("mamba", 4)
AHEAD = Configuration((FULL, MAMBA), 4, eagle=True, speculative=1, profile="lookahead")


def run(engine: type[SlowEngine], trace: Trace) -> Finding | None:
    """What lockstep finds of an engine on a trace."""
    opened = ReferenceTarget(Target.parse("reference"))
    opened._system = targets._ReferenceSystem(engine)
    found = compare(trace, opened.run(trace))
    return None if found is None else found.finding


def hunted(engine: type[SlowEngine]) -> set[str]:
    """The rules that an engine breaks under the profile."""
    found = set()
    for index in range(CASES):
        trace = case(3, index, AXES)
        if trace.configuration.profile != "lookahead":
            continue
        finding = run(engine, trace)
        if finding is not None:
            found.add(finding.rule)
    return found


def test_the_generator_draws_both_profiles_and_only_what_is_there() -> None:
    drawn = [case(3, index, AXES).configuration for index in range(CASES)]
    with_eagle = [one for one in drawn if one.eagle]
    ahead = sum(one.profile == "lookahead" for one in with_eagle)
    assert len(with_eagle) / 2 < ahead < len(with_eagle)
    assert all(one.profile == "drop" for one in drawn if not one.eagle)
    assert all(one.budget > one.speculative for one in with_eagle)
    assert sum(one.multi_module for one in drawn if one.profile == "lookahead") >= 3


def test_an_old_version_is_drawn_nothing_that_it_lacks() -> None:
    axes = Axes().within(("drop",), ("dcp", "exports", "junctions", "replicated", "lookahead"))
    for index in range(CASES):
        drawn = case(3, index, axes).configuration
        assert drawn.profile == "drop"
        assert drawn.dcp == 1
        assert not drawn.junctions
        assert all(group.checkpoint_alignment is None and not group.replicated for group in drawn.groups)


def test_what_is_drawn_for_a_target_that_lacks_nothing_is_as_ever() -> None:
    axes = Axes().within(("drop",), ())
    assert [case(3, index, axes) for index in range(50)] == [case(3, index) for index in range(50)]


def test_the_clean_reference_gives_no_finding() -> None:
    assert hunted(SlowEngine) == set()


class Dropping(SlowEngine):
    """It keeps the checkpoint of the drop."""

    def layout(self, geometry: Geometry) -> Geometry:
        drop = Geometry.of(replace(self.configuration, profile="drop")).profile
        return replace(geometry, profile=replace(drop, drops=False), hash_lookahead=0)


class Forgetful(SlowEngine):
    """What can be named only with the answer of a step is never named."""

    def _register_late(self, history: History, fresh: set[tuple[int, int]]) -> dict[tuple[int, int], object]:  # type: ignore[override]
        self.late.pop(history.id, None)
        return {}


class Blind(SlowEngine):
    """Its hashes do not cover what follows, so it takes prefixes for equal that are not."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.prefixes = Prefixes(configuration.unit)


@pytest.mark.parametrize(
    ("engine", "rules"),
    [(Dropping, {"CP7"}), (Forgetful, {"RT1"}), (Blind, {"LK1"})],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_fault_of_the_profile_is_caught(engine: type[SlowEngine], rules: set[str]) -> None:
    assert rules <= hunted(engine)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_prefixes_are_known_only_with_the_tokens_that_their_hash_covers(ahead: int) -> None:
    prefixes = Prefixes(4, ahead)
    history = History.of(Submit("A", (("a", 8),), outputs=4), prefixes, {})
    assert len(history.numbers) == 1
    assert len(history.final_numbers) == (12 - ahead) // 4
    for produced in range(1, 5):
        history.produce(1, prefixes)
        assert len(history.numbers) == (8 + produced - ahead) // 4
        assert history.numbers == history.final_numbers[: len(history.numbers)]
    history.told = 0
    history.forget(prefixes)
    assert len(history.numbers) == 1
