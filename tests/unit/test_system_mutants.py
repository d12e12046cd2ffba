"""The planted faults of the real vLLM: finding places by shape, editing them, laying the folders out."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import pytest

from tailproof.planted.vllm import edits, overlay, shape
from tailproof.planted.vllm.catalogue import FAMILIES, MUTANTS
from tailproof.planted.vllm.edits import Edit, edited
from tailproof.planted.vllm.mutant import SystemMutant
from tailproof.planted.vllm.shape import PlaceError, Shape

OURS = '''
class Box:
    """A box."""

    def fill(self, items, limit):
        most = min(limit + 1, len(items) * self.size)
        if most > 4 and self.open or limit < 0 < most:
            self.log("full")
            del items[most:]
        elif most:
            self.log("some")
        for item in items[1:]:
            self.count += item.size
        rest = limit - most if self.open else -1
        self.kept[rest] = most
        return rest - 1

    def empty(self):
        return 0


def fill(items):
    def inner(item):
        return item % 2

    return inner(items)
'''


def change(place: Shape, edit: Edit, function: str = "Box.fill") -> list[str]:
    """The lines that an edit makes different, new ones only."""
    before = ast.unparse(ast.parse(OURS)).splitlines()
    after = ast.unparse(ast.parse(edited(OURS, function, place, edit))).splitlines()
    return [line.strip() for line in after if line not in before]


FOUND: dict[str, tuple[Shape, Edit, list[str]]] = {
    "call by its second argument": (
        shape.call("min", None, shape.binary("*", shape.call("len"))),
        edits.kept("args", 0),
        ["most = limit + 1"],
    ),
    "call by what it names": (
        shape.call("log").within(shape.branch("open")).outside(shape.branch("nothing")).nth(2, of=2),
        edits.becomes("self.log()"),
        ["self.log()"],
    ),
    "operation by its operand": (
        shape.binary("+", shape.named("limit"), shape.number(1)),
        edits.shifted(2),
        ["most = min(limit + 1 + 2, len(items) * self.size)"],
    ),
    "comparison by its sign": (
        shape.compare(">"),
        edits.sign(">="),
        ["if most >= 4 and self.open or limit < 0 < most:"],
    ),
    "chain of comparisons": (
        shape.compare("<", "<"),
        edits.opposite,
        ["if most > 4 and self.open or not limit < 0 < most:"],
    ),
    "conditions by number": (
        shape.boolean("and", 2),
        edits.less(1),
        ["if most > 4 or limit < 0 < most:"],
    ),
    "conditional by its part": (
        shape.conditional(test=shape.named("open")),
        edits.kept("orelse"),
        ["rest = -1"],
    ),
    "if by its condition": (
        shape.branch("most").without("open"),
        edits.dropped,
        ["else:", "pass"],
    ),
    "one statement in place of an if": (
        shape.branch("open"),
        edits.kept("body"),
        ["self.log('full')", "del items[most:]"],
    ),
    "loop": (shape.loop("items"), edits.dropped, ["pass"]),
    "assignment": (
        shape.assigned("kept"),
        edits.part("value", edit=edits.renamed("most", "limit")),
        ["self.kept[rest] = limit"],
    ),
    "assignment that adds": (
        shape.augmented("count", "+"),
        edits.sign("-"),
        ["self.count -= item.size"],
    ),
    "deletion": (shape.deletion(), edits.does("self.log(1)\nself.log(2)"), ["self.log(1)", "self.log(2)"]),
    "slice": (
        shape.sliced("items").naming("items").nth(2, of=2),
        edits.kept("value"),
        ["for item in items:"],
    ),
    "return": (
        shape.returned(),
        edits.preceded("self.log(3)"),
        ["self.log(3)"],
    ),
    "after a statement": (
        shape.assigned("most"),
        edits.followed("self.log(4)"),
        ["self.log(4)"],
    ),
    "item of a list": (
        shape.call("min"),
        edits.part("args", 1, edit=edits.becomes("9")),
        ["most = min(limit + 1, 9)"],
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_place_that_is_there_once_is_edited(name: str) -> None:
    place, edit, lines = FOUND[name]
    assert change(place, edit) == lines


def test_only_the_one_place_changes() -> None:
    text = edited(OURS, "Box.empty", shape.returned(), edits.does("return 7"))
    assert text == OURS.replace("return 0", "return 7")


def test_a_function_inside_another_is_reached_by_its_qualified_name() -> None:
    assert change(shape.number(2), edits.becomes("3"), "fill.inner") == ["return item % 3"]


REFUSED: dict[str, tuple[Shape, Edit, str, str]] = {
    "none": (
        shape.call("max"),
        edits.dropped,
        "Box.fill",
        "fill: found 0 times, not once: a call of max",
    ),
    "two": (
        shape.doing("log"),
        edits.dropped,
        "Box.fill",
        "fill: found 2 times, not once: a statement calling log",
    ),
    "two instead of three": (
        shape.doing("log").naming("self").nth(1, of=3),
        edits.dropped,
        "Box.fill",
        "fill: found 2 times, not 3: a statement calling log naming self (number 1 of 3)",
    ),
    "words of all parts": (
        shape.binary("-", shape.named("a"), shape.number(1)).within(shape.branch("b")),
        edits.dropped,
        "Box.fill",
        "fill: found 0 times, not once: an operation - of (a; the number 1) inside an if about b",
    ),
    "no function": (shape.returned(), edits.dropped, "Box.spill", "Box.spill is defined 0 times, not once"),
    "no class": (shape.returned(), edits.dropped, "Bag.fill", "Bag.fill: Bag is defined 0 times, not once"),
    "nothing changed": (
        shape.call("min"),
        edits.kept(),
        "Box.fill",
        "Box.fill: the edit changes nothing: a call of min",
    ),
    "a sign that does not fit": (
        shape.compare(">"),
        edits.sign("+"),
        "Box.fill",
        "+ is no sign that fits there",
    ),
    "a sign of a chain": (
        shape.compare("<", "<"),
        edits.sign("<="),
        "Box.fill",
        "the comparison is a chain: say which sign",
    ),
    "no sign": (shape.call("min"), edits.sign("<"), "Box.fill", "Call has no sign"),
    "no such part": (shape.call("min"), edits.kept("body"), "Box.fill", "there is no part 'body'"),
    "no such condition": (shape.call("min"), edits.less(0), "Box.fill", "Call has no condition 0"),
    "name not there": (
        shape.call("min"),
        edits.renamed("nothing", "else"),
        "Box.fill",
        "nothing occurs 0 times in the place, not once",
    ),
    "expression wanted": (
        shape.deletion(),
        edits.opposite,
        "Box.fill",
        "the place is no expression",
    ),
    "statement wanted": (shape.call("min"), edits.followed("pass"), "Box.fill", "the place is no statement"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_place_that_is_not_there_once_is_refused_in_one_line(name: str) -> None:
    place, edit, function, message = REFUSED[name]
    with pytest.raises(PlaceError) as problem:
        edited(OURS, function, place, edit)
    assert str(problem.value) == message


def test_a_decorated_function_is_written_anew_where_it_stands() -> None:
    text = "class One:\n    @staticmethod  # why\n    def two(): return 1  # what\n    # end\n"
    new = "class One:\n    @staticmethod\n    def two():\n        return 2\n    # end\n"
    assert edited(text, "One.two", shape.number(1), edits.becomes("2")) == new


def test_a_function_defined_twice_is_refused() -> None:
    with pytest.raises(PlaceError, match=r"^one is defined 2 times, not once$"):
        edited("def one(): return 1\ndef one(): return 2\n", "one", shape.returned(), edits.dropped)


def package(root: Path) -> Path:
    """An environment with a `vllm` package of four files, as an interpreter's path."""
    home = root / "lib" / "python3.11" / "site-packages" / "vllm"
    for file in ("__init__.py", "v1/__init__.py", "v1/core/__init__.py", "v1/core/pool.py", "other/x.py"):
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text(f"NAME = {file!r}\ndef size(): return 1\n", encoding="utf-8")
    (home / "v1" / "core" / "__pycache__").mkdir()
    (root / "bin").mkdir()
    (root / "bin" / "python").touch()
    return root / "bin" / "python"


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAILPROOF_CACHE", str(tmp_path / "cache"))
    return package(tmp_path / "environment")


def tree(folder: Path) -> dict[str, bool]:
    """The entries of a folder and whether each is a link; links are not followed."""
    return {path.relative_to(folder).as_posix(): path.is_symlink() for path in sorted(folder.rglob("*"))}


def test_only_the_mutated_file_and_the_folders_above_it_are_real(python: Path) -> None:
    home = overlay.installed_package(python)
    made = overlay.overlay(home, "one", {"v1/core/pool.py": "SIZE = 2\n"})
    assert tree(made) == {
        "vllm": False,
        "vllm/__init__.py": True,
        "vllm/other": True,
        "vllm/v1": False,
        "vllm/v1/__init__.py": True,
        "vllm/v1/core": False,
        "vllm/v1/core/__init__.py": True,
        "vllm/v1/core/pool.py": False,
    }
    assert (made / "vllm" / "v1" / "core" / "pool.py").read_text() == "SIZE = 2\n"
    assert (home / "v1" / "core" / "pool.py").read_text().startswith("NAME")
    assert [path.name for path in made.parent.iterdir()] == [made.name]


def test_a_folder_is_keyed_by_what_it_holds_and_made_once(python: Path) -> None:
    home = overlay.installed_package(python)
    first = overlay.overlay(home, "one", {"v1/core/pool.py": "SIZE = 2\n"})
    (first / "mark").touch()
    assert overlay.overlay(home, "one", {"v1/core/pool.py": "SIZE = 2\n"}) == first
    assert (first / "mark").exists()
    assert overlay.overlay(home, "one", {"v1/core/pool.py": "SIZE = 3\n"}) != first


def test_a_folder_that_cannot_be_made_whole_is_not_there(python: Path) -> None:
    home = overlay.installed_package(python)
    with pytest.raises(overlay.OverlayProblem, match=r"holds no nowhere$"):
        overlay.overlay(home, "one", {"v1/core/nowhere": "", "v1/core/pool.py": "SIZE = 2\n"})
    assert list((home.parents[4] / "cache" / "mutants").iterdir()) == []


def test_a_place_that_moved_is_named_with_its_mutant_and_file(python: Path) -> None:
    one = SystemMutant("one", "One.", "v1/core/pool.py", "size", shape.call("min"), edits.dropped, ("LT1",))
    with pytest.raises(overlay.OverlayProblem) as problem:
        overlay.mutated_source(one, overlay.installed_package(python))
    assert str(problem.value) == "one: v1/core/pool.py: size: found 0 times, not once: a call of min"


def test_a_file_that_moved_is_named(python: Path) -> None:
    one = SystemMutant("one", "One.", "v1/gone.py", "size", shape.call("min"), edits.dropped, ("LT1",))
    with pytest.raises(overlay.OverlayProblem, match=r"^one: v1/gone.py: No such file or directory$"):
        overlay.mutated_source(one, overlay.installed_package(python))


def test_an_interpreter_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        overlay.OverlayProblem, match="is not the interpreter of an environment with one vllm"
    ):
        overlay.installed_package(tmp_path / "bin" / "python")


def test_an_unknown_mutant_is_answered_with_near_ones() -> None:
    with pytest.raises(
        overlay.OverlayProblem, match=r"^no fault of vLLM is called 'copy-forgoten'; near are copy-"
    ):
        overlay.mutant("copy-forgoten")


def test_the_catalogue_is_in_order() -> None:
    from spec.rules import RULES

    assert overlay.names() == tuple(MUTANTS)
    assert len(MUTANTS) >= 40
    texts = [one.text for one in MUTANTS.values()]
    assert len(set(texts)) == len(texts)
    for one in itertools.chain(*FAMILIES.values()):
        assert one.name == one.name.lower(), one.name
        assert one.text.endswith("."), one.name
        assert one.tier in ("core", "store"), one.name
        assert set(one.rules) <= set(RULES), one.name
        assert bool(one.rules) != bool(one.equivalent), one.name


def test_every_shape_and_every_edit_is_tried_here() -> None:
    def public(module: object) -> set[str]:
        return {
            name
            for name, value in vars(module).items()
            if callable(value)
            and getattr(value, "__module__", "") == getattr(module, "__name__", "")
            and not name.startswith("_")
            and not isinstance(value, type)
        }

    text = Path(__file__).read_text(encoding="utf-8")
    helpers = {"find", "function_of", "last_name", "edited", "span"}
    for module, prefix in ((shape, "shape."), (edits, "edits.")):
        assert [name for name in sorted(public(module) - helpers) if f"{prefix}{name}" not in text] == []
