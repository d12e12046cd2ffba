"""Who may import whom: packages of others by the table here, our own by the order in pyproject.toml."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("spec", "reference", "proofs", "adapters", "tailproof")


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the files under a path may import beside the standard library and what is ours.

    `always` holds at module level and inside functions, `lazily` inside functions and under TYPE_CHECKING
    only. A name allows its submodules too.
    """

    always: tuple[str, ...] = ()
    lazily: tuple[str, ...] = ()


Z3 = Allowed(always=("z3",))
# The longest path that a file lies under decides. Theorems and what they need stay plain, so that every
# engine can run them; the servers of Mooncake run in the target's Python, where nothing else is certain.
TABLE: dict[str, Allowed] = {
    **dict.fromkeys(("spec", "reference", "proofs"), Allowed()),
    **{
        f"proofs/{name}.py": Z3
        for name in (
            *("symbolic", "stand_ins", "products", "paths", "cuts", "twins", "inputs"),
            *("counterexamples", "smtlib"),
        )
    },
    "proofs/second_solver.py": Allowed(lazily=("cvc5",)),
    "proofs/crosshair.py": Allowed(lazily=("crosshair",)),
    "proofs/samples.py": Allowed(always=("hypothesis",)),
    "adapters": Allowed(always=("msgspec",)),
    "adapters/memory.py": Allowed(always=("torch",)),
    "adapters/mooncake": Allowed(lazily=("mooncake",)),
    "adapters/vllm": Allowed(always=("msgspec", "torch"), lazily=("vllm", "mooncake")),
    "tailproof": Allowed(always=("msgspec",), lazily=("torch", "z3", "hypothesis")),
    "tailproof/cli": Allowed(always=("click", "jinja2", "msgspec")),
    "tailproof/targets": Allowed(always=("msgspec", "platformdirs")),
}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, the line it stands in, and whether it is imported only when needed."""

    module: str
    line: int
    lazy: bool


def imports(tree: ast.Module, package: str) -> Iterator[Import]:
    """All imports of a file, also those in functions and those by name through importlib."""
    yield from _walk(tree, package, lazy=False)


def _walk(node: ast.AST, package: str, *, lazy: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, lazy)
        return
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parents, base] if base else parents)
        for alias in node.names:
            yield Import(f"{base}.{alias.name}", node.lineno, lazy)
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func) in (
        "__import__",
        "import_module",
        "importlib.import_module",
    ):
        for argument in node.args[:1]:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield Import(argument.value, node.lineno, lazy)
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for statement in node.body:
            yield from _walk(statement, package, lazy=True)
        for statement in node.orelse:
            yield from _walk(statement, package, lazy=lazy)
        return
    inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, package, lazy=inside)


def allowed(path: str) -> Allowed:
    """The entry of the table for a file."""
    parts = path.split("/")
    for length in range(len(parts), 0, -1):
        entry = TABLE.get("/".join(parts[:length]))
        if entry is not None:
            return entry
    raise LookupError(path)


def _covered(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def import_problems(root: Path) -> list[str]:
    """What the files of the house import and should not."""
    problems = []
    for path, tree in trees(root):
        entry = allowed(path)
        package = ".".join(path.split("/")[:-1])
        for item in imports(tree, package):
            top = item.module.split(".")[0]
            if top in (*OURS, *sys.stdlib_module_names) or _covered(item.module, entry.always):
                continue
            if item.lazy and _covered(item.module, entry.lazily):
                continue
            when = " when it is imported" if _covered(item.module, entry.lazily) else ""
            problems.append(f"{path}:{item.line} imports {item.module}{when}")
    return problems


def docstring_problems(root: Path) -> list[str]:
    """Files whose first docstring line is missing or does not end with a full stop or colon."""
    problems = []
    for path, tree in trees(root):
        text = ast.get_docstring(tree)
        if not text:
            problems.append(f"{path}:1 has no docstring")
        elif not text.splitlines()[0].endswith((".", ":")):
            problems.append(f"{path}:1 has a first line that ends with neither full stop nor colon")
    return problems


def trees(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """Path and syntax tree of every file of the house."""
    for package in OURS:
        for file in sorted((root / package).rglob("*.py")):
            yield file.relative_to(root).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def test_the_house_has_files() -> None:
    found = {path.split("/")[0] for path, _ in trees(ROOT)}
    assert found == set(OURS)
    for path, _ in trees(ROOT):
        allowed(path)
    for entry in TABLE:
        assert (ROOT / entry).exists(), f"{entry} of the table is not there"


def test_nobody_imports_what_he_may_not() -> None:
    assert import_problems(ROOT) == []


def test_every_module_says_why_it_exists() -> None:
    assert docstring_problems(ROOT) == []


def planted(root: Path, path: str, line: str) -> Path:
    """A house with one file, which holds a docstring and one line."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'"""A plant."""\n\n{line}\n', encoding="utf-8")
    return root


VIOLATIONS = [
    ("spec/plant.py", "import torch", "torch"),
    ("spec/plant.py", "import msgspec", "msgspec"),
    ("spec/plant.py", "import z3", "z3"),
    ("spec/plant.py", "def late() -> None:\n    import vllm", "vllm"),
    ("reference/plant.py", "import torch", "torch"),
    ("reference/plant.py", "def late() -> None:\n    import torch", "torch"),
    ("reference/plant.py", "import msgspec", "msgspec"),
    ("adapters/memory.py", "import msgspec", "msgspec"),
    ("proofs/plant.py", "import msgspec", "msgspec"),
    ("proofs/plant.py", "import torch", "torch"),
    ("proofs/plant.py", "import z3", "z3"),
    ("proofs/theorems/plant.py", "import z3", "z3"),
    ("proofs/theorems/plant.py", "from hypothesis import given", "hypothesis.given"),
    ("proofs/symbolic.py", "import torch", "torch"),
    ("proofs/stand_ins.py", "import cvc5", "cvc5"),
    ("proofs/products.py", "import cvc5", "cvc5"),
    ("proofs/paths.py", "import cvc5", "cvc5"),
    ("proofs/cuts.py", "import hypothesis", "hypothesis"),
    ("proofs/twins.py", "import cvc5", "cvc5"),
    ("proofs/inputs.py", "import torch", "torch"),
    ("proofs/counterexamples.py", "import torch", "torch"),
    ("proofs/smtlib.py", "import cvc5", "cvc5"),
    ("proofs/second_solver.py", "import cvc5", "cvc5 when it is imported"),
    ("proofs/crosshair.py", "import crosshair.core", "crosshair.core when it is imported"),
    ("proofs/samples.py", "import z3", "z3"),
    ("adapters/plant.py", "import torch", "torch"),
    ("adapters/plant.py", "def late() -> None:\n    import vllm", "vllm"),
    ("adapters/plant.py", "import click", "click"),
    ("adapters/mooncake/plant.py", "import torch", "torch"),
    ("adapters/mooncake/plant.py", "import msgspec", "msgspec"),
    ("adapters/mooncake/plant.py", "from mooncake import store", "mooncake.store when it is imported"),
    ("adapters/mooncake/plant.py", "def late() -> None:\n    import vllm", "vllm"),
    ("adapters/vllm/plant.py", "import vllm", "vllm when it is imported"),
    ("tailproof/plant.py", "import torch", "torch when it is imported"),
    ("tailproof/plant.py", "import z3", "z3 when it is imported"),
    ("tailproof/plant.py", "import vllm", "vllm"),
    ("tailproof/plant.py", "def late() -> None:\n    import vllm", "vllm"),
    (
        "tailproof/plant.py",
        "try:\n    import torch\nexcept ImportError:\n    pass",
        "torch when it is imported",
    ),
    ("tailproof/plant.py", "class Late:\n    import torch", "torch when it is imported"),
    ("tailproof/plant.py", "import click", "click"),
    ("tailproof/cli/plant.py", "import rich", "rich"),
    ("tailproof/targets/plant.py", "import click", "click"),
    ("tailproof/deep/plant.py", "import pytest", "pytest"),
    ("spec/plant.py", "import importlib\nimportlib.import_module('torch')", "torch"),
    ("spec/plant.py", "__import__('vllm.v1')", "vllm.v1"),
    ("spec/plant.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", "torch"),
]


@pytest.mark.parametrize(("path", "line", "module"), VIOLATIONS)
def test_a_planted_import_is_reported(tmp_path: Path, path: str, line: str, module: str) -> None:
    problems = import_problems(planted(tmp_path, path, line))
    assert len(problems) == 1, problems
    where, _, what = problems[0].partition(" imports ")
    assert where.startswith(f"{path}:")
    assert what == module


def test_every_row_of_the_table_has_a_plant() -> None:
    planted_under = {
        max((row for row in TABLE if path.startswith(row)), key=len) for path, _, _ in VIOLATIONS
    }
    assert planted_under == set(TABLE)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("spec/plant.py", "from dataclasses import dataclass\nfrom spec.trace import Trace"),
        ("spec/plant.py", "from .trace import Trace\nfrom . import lookup"),
        ("reference/plant.py", "from spec import lookup\nfrom reference.cache import SlowCache"),
        ("adapters/memory.py", "import torch"),
        ("proofs/plant.py", "from spec.proof import scan_bound"),
        ("adapters/plant.py", "import msgspec\nfrom spec import exact_model"),
        ("adapters/vllm/plant.py", "import torch\ndef late() -> None:\n    from vllm.config import X"),
        ("tailproof/plant.py", "import msgspec\nfrom proofs import theorems"),
        ("tailproof/plant.py", "def late() -> None:\n    import torch"),
    ],
)
def test_a_proper_import_is_not_reported(tmp_path: Path, path: str, line: str) -> None:
    assert import_problems(planted(tmp_path, path, line)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *((text, "has no docstring") for text in ("x = 1\n", "", "# A comment.\nx = 1\n")),
        ('"""No end"""\n', "has a first line that ends with neither full stop nor colon"),
        ('"""No end\nin the first line."""\n', "has a first line that ends with neither full stop nor colon"),
    ],
)
def test_a_missing_docstring_is_reported(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "spec").mkdir()
    (tmp_path / "spec" / "plant.py").write_text(text, encoding="utf-8")
    assert docstring_problems(tmp_path) == [f"spec/plant.py:1 {problem}"]


@pytest.mark.parametrize(
    ("path", "line", "said"),
    [
        ("spec/plant.py", "import spec.trace", ""),
        ("tailproof/judge/plant.py", "import tailproof.known.model", "judge is not allowed to import"),
        ("tailproof/planted/plant.py", "import tailproof.targets.cache", "planted is not allowed to import"),
        ("reference/plant.py", "import tailproof.judge.step", "reference is not allowed to import"),
        ("spec/trace.py", "import spec.geometry", "No cycles are allowed in spec"),
        (
            "tailproof/shrink/settings.py",
            "import tailproof.shrink.search",
            "No cycles are allowed in tailproof",
        ),
    ],
)
def test_the_import_order_is_kept(tmp_path: Path, path: str, line: str, said: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, _ in trees(ROOT):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    with (tmp_path / path).open("a", encoding="utf-8") as plant:
        plant.write(f"\n{line}\n")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    ended = subprocess.run(
        [*command, "--no-logo", "--no-cache"], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert (ended.returncode == 0) == (not said), ended.stdout
    assert said in ended.stdout
