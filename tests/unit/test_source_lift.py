"""Lifting functions out of a source tree, what is told when one has moved, and where sources are found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from proofs import engine
from proofs.source import containers, run, worlds
from proofs.source.catalogue import CASES, Case, cases
from proofs.source.lift import Moved, Site, SourceTree
from spec.rules import RULES
from tailproof.cli import main as cli
from tailproof.jobs import prove
from tailproof.jobs.prove import known_refutations
from tailproof.known.model import load
from tailproof.targets import sources
from tailproof.targets.opening import Target, TargetNameError

TEXT = '''
"""A module."""
import somewhere


def double(x: "Unknown") -> "Unknown":
    """Twice."""
    return x * 2


class Box:
    @classmethod
    def marks(cls, start, end):
        mask = [False] * (end - start)
        mask[0] = True
        return mask

    def quadruple(self, x: int, *, by: int = 2):
        found: list[int] = double(x) * by
        return found

    def lost(self, x):
        return nowhere(x)

    def ends(self, x):
        return tuple(sorted({x, x + 1, x}))
'''
DOUBLE = Site("a/b.py", "double", ("x",))


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text(TEXT, encoding="utf-8")
    (tmp_path / "_version.py").write_text("__version__ = version = '9.9'\n", encoding="utf-8")
    return SourceTree(tmp_path, "here")


def test_a_lifted_function_runs_with_what_it_calls(tree: SourceTree) -> None:
    lifted = tree.lift(Site("a/b.py", "Box.quadruple", ("self", "x", "by"), (DOUBLE,)), {})
    assert lifted(None, 3) == 12
    assert tree.version() == "9.9"


def test_containers_stay_plain_in_plain_python(tree: SourceTree) -> None:
    assert tree.lift(Site("a/b.py", "Box.ends", ("self", "x")), {})(None, 4) == (4, 5)
    assert tree.lift(Site("a/b.py", "Box.marks", ("cls", "start", "end")), {})(None, 1, 3) == [True, False]


@pytest.mark.parametrize(
    ("site", "reason"),
    [
        (Site("a/c.py", "double", ("x",)), "there is no file a/c.py"),
        (Site("a/b.py", "treble", ("x",)), "a/b.py has no function treble"),
        (Site("a/b.py", "Bag.marks", ("x",)), "a/b.py has no class Bag"),
        (Site("a/b.py", "double", ("x", "y")), "double takes (x), not (x, y)"),
        (
            Site("a/b.py", "Box.lost", ("self", "x")),
            "Box.lost names nowhere, which this theorem does not know",
        ),
        (
            Site("a/b.py", "Box.quadruple", ("self", "x", "by")),
            "Box.quadruple names double, which this theorem does not know",
        ),
    ],
)
def test_what_moved_is_told(tree: SourceTree, site: Site, reason: str) -> None:
    with pytest.raises(Moved) as told:
        tree.lift(site, {})
    assert str(told.value) == reason


def test_a_file_that_is_no_python_has_moved(tree: SourceTree) -> None:
    (tree.root / "bad.py").write_text("def f(:", encoding="utf-8")
    with pytest.raises(Moved, match=r"bad\.py cannot be parsed"):
        tree.find(Site("bad.py", "f", ()))


def test_an_unknown_attribute_counts_as_moved(tree: SourceTree) -> None:
    (tree.root / "a" / "b.py").write_text("def f(self, x):\n    return self.secret + x\n", encoding="utf-8")

    def theorem(x: int, *, f: object) -> None:
        assert f(worlds.CacheConfig(1), x) == x  # type: ignore[operator]

    found = run.prove(Case("t", "CP7", theorem, {"f": Site("a/b.py", "f", ("self", "x"))}), tree)
    assert found.verdict == "moved"
    assert "secret of CacheConfig" in found.reason


def test_lists_of_symbolic_length_are_exact() -> None:
    def written(n: int, i: int, j: int, *, make: object) -> None:
        if not (0 <= i < n and 0 <= j < n):
            return
        marks = make(False, n)  # type: ignore[operator]
        marks[i] = True
        assert bool(marks[j]) == (i == j)

    def too_far(n: int, i: int, *, make: object) -> None:
        make(False, n)[i] = True  # type: ignore[operator]

    twins = run._twins(CASES[0])
    assert engine.prove(written, planted={"make": containers.repeated}, twins=twins).verdict == "proved"
    assert engine.prove(too_far, planted={"make": containers.repeated}, twins=twins).verdict == "refuted"


def test_the_catalogue_is_sound() -> None:
    assert len({case.id for case in CASES}) == len(CASES)
    assert {case.rule for case in CASES} <= set(RULES)
    assert all(case.lifts and case.theorem.__doc__ for case in CASES)
    assert {case.rule for case in cases(["CP7"])} == {"CP7"}


def test_what_known_faults_refute_is_in_the_catalogue() -> None:
    faults = load().faults
    named = [theorem for fault in faults for theorem in fault.theorems]
    assert set(named) <= {case.id for case in CASES}
    assert len(set(named)) == len(named)
    assert set(known_refutations("0.32.0")) == {
        theorem for fault in faults if fault.is_in("0.32") for theorem in fault.theorems
    }
    assert known_refutations("0.32.0")["mamba_publishes_what_is_computed[modules]"] == "unfinished-mamba"
    assert known_refutations("0.32.1.dev7") == known_refutations("0.32.0")
    assert known_refutations("0.0") == known_refutations("") == {}


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tailproof", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_a_package_without_the_functions_has_moved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("", encoding="utf-8")
    assert command(monkeypatch, "prove", "--source", f"vllm@{tmp_path}", "CP1", "PM1") == 3
    said = capsys.readouterr().out
    assert "moved" in said
    assert "there is no file v1/kv_cache_interface.py" in said


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--source", "reference"), 2, "reference has no source of vLLM"),
        (("--source", "vllm@/nowhere"), 3, "holds no vllm package"),
        (("--source", "python:/nowhere"), 3, "there is no interpreter at /nowhere"),
        (("--source", "vllm==0.32.0", "LT1"), 2, "LT1 has no theorem about a target's source"),
        (("--source", "vllm==0.32.0", "--engine", "cvc5"), 2, "Z3's alone"),
    ],
)
def test_wrong_sources_are_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    assert command(monkeypatch, "prove", *arguments) == code
    assert text in capsys.readouterr().err


def test_a_version_that_is_not_installed_is_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sources, "fetched", lambda version, progress: tmp_path / version / "vllm")
    assert sources.source_of(Target.parse("vllm==9.9")) == tmp_path / "9.9" / "vllm"


def test_an_interpreter_says_where_its_package_lies() -> None:
    with pytest.raises(sources.SourceProblem, match="has no vllm package"):
        sources.source_of(Target.parse(f"python:{sys.executable}"))
    with pytest.raises(TargetNameError):
        sources.source_of(Target.parse("reference"))


def test_a_known_refutation_breaks_nothing() -> None:
    report = prove.ProveReport(
        [prove.Proved(prove.Theorem("t", "CP7", "x", ("f: g",), print), "refuted", known="some-finding")]
    )
    assert report.exit_code == 0
    report.theorems[0].known = ""
    assert report.exit_code == 1
    report.theorems[0].verdict = "moved"
    assert report.exit_code == 3
