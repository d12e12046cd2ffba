"""Planted faults of vLLM: each operator makes the edit its name says, and a name leads to one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from spec.rules import RULES
from tailproof.planted.vllm import catalogue
from tailproof.planted.vllm.catalogue import MutantError, check_name, function_of, mutant, records, semantic
from tailproof.planted.vllm.operators import OPERATORS, Edit, edits
from tailproof.planted.vllm.patterns import PlaceError, replaced
from tailproof.planted.vllm.walking import Place, written
from tailproof.targets import overlay

OURS = '''
class Box:
    """A box."""

    def fill(self, items, limit, *, sealed: bool):
        """Fill it."""
        logger.info("filling %d", 3)
        assert limit > 3
        most = min(limit, len(items), self.size)
        if most > 4 and self.open:
            self.log(most, f"{limit + 7}")
        elif not sealed:
            raise ValueError(limit - 1)
        while self.loose():
            most -= 1
        for item in items[1:]:
            self.count += item.size
        rest = limit - most if sealed is None else -1
        self.kept = Item(rest, 2, sealed=True, spare=[rest])
        return rest == 2

    def empty(self):
        return self.count(0) + 1
'''
# What each operator makes of `Box.fill`, in its order.
MADE: dict[str, list[str]] = {
    "drop": [
        "pass  # most = min(limit, len(items), self.size)",
        "pass  # if most > 4 and self.open:",
        "pass  # self.log(most, f'{limit + 7}')",
        "pass  # if not sealed:",
        "pass  # while self.loose():",
        "pass  # most -= 1",
        "pass  # for item in items[1:]:",
        "pass  # self.count += item.size",
        "pass  # self.kept = Item(rest, 2, sealed=True, spare=[rest])",
        "pass  # return rest == 2",
    ],
    "branch": [
        "self.log(most, f'{limit + 7}')",
        "if not sealed:\n    raise ValueError(limit - 1)",
        "raise ValueError(limit - 1)",
        "limit - most",
        "-1",
    ],
    "operand": [
        "min(len(items), self.size)",
        "min(limit, self.size)",
        "min(limit, len(items))",
        "self.open",
        "most > 4",
        "items",
        "limit",
        "most",
    ],
    "only": ["limit", "len(items)", "self.size"],
    "negate": ["not (most > 4 and self.open)", "sealed", "not sealed is None"],
    "sign": ["most > 4 or self.open", "most += 1", "self.count -= item.size", "limit + most"],
    "compare": ["most >= 4", "sealed is not None", "rest != 2", "rest >= 2", "rest <= 2"],
    "shift": [
        "min(limit, len(items), self.size) + 1",
        "min(limit, len(items), self.size) - 1",
        "len(items) + 1",
        "len(items) - 1",
        "5",
        "3",
        "2",
        "0",
        "2",
        "0",
        "limit - most + 1",
        "limit - most - 1",
        "0",
        "-2",
        "3",
        "1",
        "3",
        "1",
    ],
    "constant": ["False", "[]", "False", "True"],
    "swap": ["self.log(f'{limit + 7}', most)", "Item(2, rest, sealed=True, spare=[rest])"],
}


def ours() -> tuple[ast.Module, ast.FunctionDef]:
    """The module, and its one long function."""
    tree = ast.parse(OURS)
    return tree, function_of(tree, "Box.fill")


def said(edit: Edit) -> str:
    """What an edit puts there, and for a dropped statement what that was."""
    return edit.after if edit.operator != "drop" else f"{edit.after}  # {edit.before.splitlines()[0]}"


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_makes_just_the_edits_that_its_name_says(name: str) -> None:
    assert [said(edit) for edit in edits(ours()[1], {name: OPERATORS[name]})] == MADE[name]


def test_what_only_checks_or_tells_is_left_alone() -> None:
    around = [edit.before for edit in edits(ours()[1])]
    assert not [text for text in around if "logger" in text or "assert" in text or text == "limit + 7"]


def test_edits_are_numbered_by_operator_and_change_one_place_only() -> None:
    tree, function = ours()
    before = ast.unparse(tree)
    found = list(edits(function))
    for name in OPERATORS:
        ordinals = [edit.ordinal for edit in found if edit.operator == name]
        assert ordinals == list(range(1, len(ordinals) + 1)), name
    for edit in found:
        with edit.place.holding(edit.made):
            after = ast.unparse(ast.fix_missing_locations(tree))
            assert after != before
            ast.parse(after)
        assert ast.unparse(tree) == before


def test_an_edit_that_changes_nothing_or_the_same_again_is_left_out() -> None:
    def same(place: Place) -> list[ast.AST]:
        return [place.node, ast.Name("x"), ast.Name("x")] if written(place.node) == "rest == 2" else []

    def again(place: Place) -> list[ast.AST]:
        return same(place)[2:]

    found = edits(
        ours()[1], {"same": lambda place: iter(same(place)), "again": lambda place: iter(again(place))}
    )
    assert [(edit.operator, edit.ordinal, edit.after) for edit in found] == [("same", 1, "x")]


PATTERNS: dict[str, tuple[str, str, str]] = {
    "wildcards are taken over": ("_a - _b if _ else _", "_b - _a", "most - limit"),
    "a statement": ("self.count += _a", "self.count = _a\nreturn", "self.count = item.size\nreturn"),
    "an expression that stands alone": ("_.log(_a, _)", "_a", "most"),
    "the same twice": ("Item(_a, _, sealed=True, spare=[_a])", "Item(_a)", "Item(rest)"),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_finds_its_place(name: str) -> None:
    find, becomes, made = PATTERNS[name]
    assert written(replaced(ours()[1], find, becomes, (1, 1))[1]) == made


@pytest.mark.parametrize(
    ("find", "at", "times"),
    [("max(_, _)", (1, 1), 0), ("most", (1, 1), 5), ("Item(_a, _a, sealed=_, spare=_)", (1, 1), 0)],
)
def test_a_pattern_that_is_not_there_so_often_is_refused(find: str, at: tuple[int, int], times: int) -> None:
    with pytest.raises(PlaceError, match=rf"^fill: found {times} times, not 1: "):
        replaced(ours()[1], find, "x", at)


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with a `vllm` package of our own, whose one function that matters is `Box.fill`."""
    home = tmp_path / "environment" / "lib" / "python3.11" / "site-packages" / "vllm"
    for file in ("__init__.py", "v1/__init__.py", "v1/box.py", "other/x.py"):
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(OURS, encoding="utf-8")
    (home / "v1" / "__pycache__").mkdir()
    only = {"Box.fill": catalogue.Function("v1/box.py", "Box.fill", "core")}
    monkeypatch.setenv("TAILPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(catalogue, "functions", lambda: only)
    monkeypatch.setattr(catalogue, "semantic", dict)
    return tmp_path / "environment" / "bin" / "python"


def test_a_mutant_is_found_by_name_and_by_name_and_shape(python: Path) -> None:
    package = overlay.installed_package(python)
    one = mutant(package, "Box.fill:compare:1")
    assert (one.before, one.after, one.tier, one.generated) == ("most > 4", "most >= 4", "core", True)
    assert mutant(package, one.key) is one
    assert "if most >= 4 and self.open:" in one.source()


def test_a_place_that_is_another_one_now_is_said_in_one_line(python: Path) -> None:
    package = overlay.installed_package(python)
    key = mutant(package, "Box.fill:compare:1").key
    (package / "v1" / "box.py").write_text(OURS.replace("most > 4", "most > 5"), encoding="utf-8")
    catalogue._module.cache_clear()
    catalogue.mutants_of.cache_clear()
    (line,) = catalogue.moved(package, [key])
    assert line.startswith(f"Box.fill:compare:1 is another place in this source: kept was {key}, it is ")


def test_a_mutant_whose_text_is_that_of_the_original_is_refused(python: Path) -> None:
    one = mutant(overlay.installed_package(python), "Box.fill:compare:1")
    same = catalogue.Mutant(one.name, one.file, one.function, one.tier, one.place, one.place.node, one.tree)
    with pytest.raises(MutantError, match=r"^Box.fill:compare:1: the edit changes nothing: most > 4$"):
        same.source()


def test_only_the_mutated_file_and_the_folders_above_it_are_real(python: Path, tmp_path: Path) -> None:
    made = overlay.mutant_overlay("Box.fill:compare:1", python)
    # On a worker's path a colon ends a folder's name.
    assert made.name.startswith("Box.fill-compare-1-")
    assert {path.relative_to(made).as_posix(): path.is_symlink() for path in sorted(made.rglob("*"))} == {
        "vllm": False,
        "vllm/__init__.py": True,
        "vllm/other": True,
        "vllm/v1": False,
        "vllm/v1/__init__.py": True,
        "vllm/v1/box.py": False,
    }
    assert [path.name for path in made.parent.iterdir() if path.suffix != ".lock"] == [made.name]
    (made / "mark").touch()
    assert overlay.mutant_overlay("Box.fill:compare:1", python) == made
    assert (made / "mark").exists()
    assert overlay.mutant_overlay("Box.fill:compare:2", python) != made


def test_a_folder_that_cannot_be_made_whole_is_not_there(python: Path, tmp_path: Path) -> None:
    package = overlay.installed_package(python)
    with pytest.raises(MutantError, match=r"holds no nowhere$"):
        overlay.overlay(package, "one", {"v1/nowhere": "", "v1/box.py": ""})
    assert [path.name for path in (tmp_path / "cache" / "mutants").iterdir() if path.is_dir()] == []


def test_an_interpreter_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MutantError, match="is not the interpreter of an environment with one vllm"):
        overlay.installed_package(tmp_path / "bin" / "python")


UNKNOWN = {
    "copy-backward": "no fault of vLLM is called 'copy-backward'; near are copy-backwards, ",
    "Scheduler.shedule:drop:1": "no fault of vLLM is called 'Scheduler.shedule:drop:1'; near are Scheduler.",
    "Scheduler.schedule:dorp:1": "'Scheduler.schedule:dorp:1' is no fault of vLLM: use Scheduler.schedule:",
    "Scheduler.schedule:drop:x": "'Scheduler.schedule:drop:x' is no fault of vLLM: use Scheduler.schedule:",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_name_is_answered_with_near_ones(name: str) -> None:
    with pytest.raises(MutantError) as problem:
        check_name(name)
    assert str(problem.value).startswith(UNKNOWN[name])


def test_the_tables_are_in_order() -> None:
    kept = records()
    assert not set(kept.equivalent) & set(kept.hole)
    assert not {*kept.equivalent, *kept.hole} & set(kept.sample)
    equivalent = {key.partition("@")[0] for key in kept.equivalent}
    for key in (*kept.equivalent, *kept.hole, *kept.sample):
        check_name(key)
        assert "@" in key
    for one in semantic().values():
        assert one.function in catalogue.functions(), one.name
        assert one.name == one.name.lower(), one.name
        assert one.breaks.endswith("."), one.name
        assert bool(one.rules) != (one.name in equivalent), one.name
        assert {*one.rules} <= set(RULES), one.name
    assert {*kept.sample.values()} <= set(RULES)
    assert len(catalogue.functions()) > 150
