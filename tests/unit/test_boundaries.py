"""What differs between versions of vLLM: what each lacks and refuses, and the calls that bridge them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest

from adapters.vllm import boundaries
from adapters.vllm.boundaries import LINES, MARKS, Mark, Release
from spec.chunking import can_export
from spec.trace import Configuration, Group, TraceError

FULL, MAMBA = Group("full", 16), Group("mamba", 16)
PLAIN = Configuration((FULL, MAMBA), 4)
EAGLE = Configuration((FULL, MAMBA), 4, eagle=True, speculative=3)
EXPORTS = Configuration((FULL, Group("mamba", 16, checkpoint_alignment=4)), 4)


def release(minor: int) -> Release:
    """What 0.`minor` has."""
    return Release.of(f"0.{minor}")


@pytest.mark.parametrize("line", LINES)
def test_the_line_is_the_newest_one_whose_marks_are_all_there(line: str) -> None:
    assert Release.of(line).line == line
    for name in Release.of(line).marks:
        without = Release(Release.of(line).marks - {name})
        older = LINES[LINES.index(MARKS[name].line) - 1]
        assert without.line == older, "a mark of an old line that is gone leaves the lines before it"


def test_a_tree_between_two_lines_is_of_the_older_one_and_has_what_it_has() -> None:
    between = Release(Release.of("0.32").marks | {"VllmConfig.num_hash_lookahead_tokens"})
    assert between.line == "0.32"
    assert boundaries.profiles(between) == ("lookahead", "drop")


def test_a_name_is_owed_where_a_mark_of_a_later_line_is_there() -> None:
    grid = "vllm.v1.core.kv_cache_utils.resolve_cache_hit_alignment_tokens"
    assert not Release.of("0.31").owes(grid)
    assert not Release(Release.of("0.32").marks - {grid}).owes(grid)
    assert Release(Release.of("0.33").marks - {grid}).owes(grid)
    assert Release.of("0.28").owes("vllm.v1.request.Request")


@dataclass
class Kept:
    """A class as vLLM's configurations are."""

    chosen: int = 0
    worked_out: int = field(init=False, default=0)

    def checked(self) -> bool:
        """Reads another name."""
        return self.chosen > self.worked_out


@pytest.mark.parametrize(
    ("mark", "there"),
    [
        (Mark("0.33", "vllm.kept"), True),
        (Mark("0.33", "vllm.left"), False),
        (Mark("0.33", "vllm.kept:Kept"), True),
        (Mark("0.33", "vllm.kept:Kept.checked"), True),
        (Mark("0.33", "vllm.kept:Kept.moved"), False),
        (Mark("0.33", "vllm.kept:Kept", takes="chosen"), True),
        (Mark("0.33", "vllm.kept:Kept", takes="worked_out"), False),
        (Mark("0.33", "vllm.kept:hashed", takes="ahead"), True),
        (Mark("0.33", "vllm.kept:hashed", takes="behind"), False),
        (Mark("0.33", "vllm.kept:gone", takes="ahead"), False),
        (Mark("0.33", "vllm.kept:Kept.checked", names="worked_out"), True),
        (Mark("0.33", "vllm.kept:Kept.checked", names="ahead"), False),
        (Mark("0.33", "vllm.kept:Kept", names="chosen"), False),
    ],
)
def test_a_mark_is_a_module_a_name_an_argument_or_what_a_function_reads(
    monkeypatch: pytest.MonkeyPatch, mark: Mark, there: bool
) -> None:
    module(monkeypatch, "vllm.kept", Kept=Kept, hashed=lambda unit, ahead=0: (unit, ahead))
    assert mark.is_there() is there


def test_a_module_that_needs_what_is_not_installed_is_no_missing_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> ModuleType:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(boundaries.importlib, "import_module", absent)
    with pytest.raises(ModuleNotFoundError, match="torch"):
        Mark("0.33", "vllm.kept").is_there()


@pytest.mark.parametrize(
    ("minor", "lacks", "profiles"),
    [
        (28, {"dcp", "exports", "junctions", "replicated", "lookahead"}, ("drop",)),
        (29, {"exports", "junctions", "replicated", "lookahead"}, ("drop",)),
        (30, {"junctions", "replicated", "lookahead"}, ("drop",)),
        (31, {"lookahead"}, ("drop",)),
        (32, {"lookahead"}, ("drop",)),
        (33, {"small-budget"}, ("lookahead", "drop")),
    ],
)
def test_what_each_version_lacks(minor: int, lacks: set[str], profiles: tuple[str, ...]) -> None:
    assert set(boundaries.lacks(release(minor))) == lacks
    assert boundaries.profiles(release(minor)) == profiles


@pytest.mark.parametrize(
    ("asked", "minor", "words"),
    [
        (Configuration((FULL, MAMBA), 4, dcp=2), 28, "hits inside blocks under DCP"),
        (EXPORTS, 29, "states exported inside a chunk (checkpoint_alignment)"),
        (Configuration((FULL, MAMBA), 4, junctions=True), 30, "junction checkpoints"),
        (
            Configuration(
                (FULL, MAMBA, Group("full", 16, draft=True, replicated=True)), 4, eagle=True, speculative=1
            ),
            30,
            "draft groups that DCP does not shard (replicated)",
        ),
        (
            Configuration((FULL, MAMBA), 4, eagle=True, speculative=1, profile="lookahead"),
            32,
            "hashes that cover the next token (profile lookahead)",
        ),
        (
            Configuration((FULL, MAMBA), 4, eagle=True, speculative=3, budget=3),
            33,
            "steps of no more tokens than a request drafts (budget)",
        ),
    ],
)
def test_a_configuration_is_refused_by_the_name_of_what_is_lacking(
    asked: Configuration, minor: int, words: str
) -> None:
    with pytest.raises(TraceError) as refused:
        boundaries.refuse(asked, release(minor), f"0.{minor}.0")
    assert str(refused.value) == f"configuration: vLLM 0.{minor}.0 has no {words}"
    other = minor - 1 if minor == 33 else minor + 1
    boundaries.refuse(asked, release(other), f"0.{other}.0")


@pytest.mark.parametrize("minor", range(28, 34))
def test_a_plain_configuration_is_refused_by_no_version(minor: int) -> None:
    for asked in (PLAIN, EAGLE):
        boundaries.refuse(asked, release(minor), "")


def test_options_that_a_version_does_not_know_are_left_out() -> None:
    values = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 4, "block_size": 16}
    known = [boundaries.options("MambaSpec", release(minor), values) for minor in (28, 29, 30)]
    assert [sorted(one) for one in known] == [
        ["block_size"],
        ["block_size", "num_prefill_checkpoint_blocks"],
        ["block_size", "num_prefill_checkpoint_blocks", "prefill_checkpoint_alignment"],
    ]
    assert release(28).has("anything else")


def test_028_is_told_its_retention_through_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(boundaries.RETENTION, raising=False)
    boundaries.place_retention(release(29), 32)
    assert boundaries.RETENTION not in os.environ
    boundaries.place_retention(release(28), 32)
    assert os.environ[boundaries.RETENTION] == "32"
    boundaries.place_retention(release(28), None)
    assert boundaries.RETENTION not in os.environ


def module(monkeypatch: pytest.MonkeyPatch, name: str, **values: Any) -> None:
    """A stand-in for a module of vLLM, with its packages."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        package = ".".join(parts[:depth])
        if package not in sys.modules:
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
    stand_in = ModuleType(name)
    vars(stand_in).update(values)
    monkeypatch.setitem(sys.modules, name, stand_in)


GIVEN = {
    "hash_block_size": 4,
    "mamba_block_size": 16,
    "checkpoint_alignment": 4,
    "drop_eagle_block": True,
    "cache_hit_alignment_tokens": 4,
}


@pytest.mark.parametrize(
    ("minor", "lookahead", "left_out", "changed"),
    [
        (31, 0, {"cache_hit_alignment_tokens"}, {}),
        (32, 0, set(), {}),
        (33, 0, set(), {"num_hash_lookahead_tokens": 0}),
        (33, 3, set(), {"num_hash_lookahead_tokens": 3, "drop_eagle_block": False}),
    ],
)
def test_the_placing_of_checkpoints_is_asked_as_each_version_takes_it(
    monkeypatch: pytest.MonkeyPatch, minor: int, lookahead: int, left_out: set[str], changed: dict[str, Any]
) -> None:
    asked: list[Any] = []

    def compute(*lengths: Any, **values: Any) -> tuple[list[int], list[int]]:
        asked.append((lengths, values))
        return [0], [-1]

    module(
        monkeypatch, "vllm.model_executor.layers.mamba.checkpoint", compute_mamba_prefill_checkpoints=compute
    )
    found = boundaries.prefill_checkpoints(release(minor), lookahead)([40], [40], **GIVEN)
    assert found == ([0], [-1])
    due = {name: value for name, value in GIVEN.items() if name not in left_out} | changed
    assert asked == [(([40], [40]), due)]


def test_030_places_checkpoints_with_its_own_two_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    def valid(start: int, end: int, at: int, unit: int, block: int, alignment: int) -> bool:
        return can_export(start, end, at, unit, block, alignment)

    module(
        monkeypatch,
        "vllm.v1.kv_cache_interface",
        get_mamba_prefill_checkpoint_position=lambda end, unit, drop: max((end - 1) // unit * unit - unit, 0),
        is_mamba_prefill_checkpoint_valid=valid,
    )
    place = boundaries.prefill_checkpoints(release(30), 0)
    assert place([40, 12, 57], [40, 12, 25], **GIVEN) == ([32, 0, 20], [1, -1, 2])


@pytest.mark.parametrize(("minor", "given"), [(32, {}), (33, {"num_hash_lookahead_tokens": 1})])
def test_requests_are_hashed_as_each_version_does(
    monkeypatch: pytest.MonkeyPatch, minor: int, given: dict[str, int]
) -> None:
    module(monkeypatch, "vllm.utils.hashing", sha256="sha256")
    module(
        monkeypatch,
        "vllm.v1.core.kv_cache_utils",
        get_request_block_hasher=lambda *values, **named: (values, named),
    )
    assert boundaries.request_hasher(release(minor), 4, 1) == ((4, "sha256"), given)


def test_what_the_configuration_says_of_hashes_is_asked_where_it_says_it() -> None:
    class Config:
        num_hash_lookahead_tokens = 2

    assert boundaries.hash_lookahead(release(32), Config()) == 0
    assert boundaries.hash_lookahead(release(33), Config()) == 2


def test_workers_have_no_grid_of_hits_before_032(monkeypatch: pytest.MonkeyPatch) -> None:
    module(
        monkeypatch,
        "vllm.v1.core.kv_cache_utils",
        resolve_cache_hit_alignment_tokens=lambda layout, config, align, unit: unit,
    )
    assert boundaries.hit_alignment(release(31), None, None, 16, 4) is None
    assert boundaries.hit_alignment(release(32), None, None, 16, 4) == 4
