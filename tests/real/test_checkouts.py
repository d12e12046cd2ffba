"""A checkout as it is: what it has is found by looking, whatever its version says and its path holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from spec.trace import Configuration, Group, Settle, Submit, Trace, TraceError
from tailproof.targets.cache import cache_folder
from tailproof.targets.environments import EnvironmentProblem, ensure
from tailproof.targets.opening import DEFAULT, OVERLAYS, Target, open_target, release_line
from tailproof.targets.overlay import installed_package
from tailproof.targets.versions import SourceProblem, fetched
from tailproof.targets.worker import TargetProblem, Worker, staged_packages

AHEAD = "vllm==0.33.0"
VERSION = "_version.py"


@pytest.fixture(autouse=True)
def _learnt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes long to learn of a model anew, as it would for each tree."""
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(cache_folder() / "vllm" / "checkouts"))


def say(line: str) -> None:
    """Progress, for whoever waits."""
    print(line, file=sys.stderr)


def package(name: str) -> Path:
    """The package folder of a version; a test that needs one which cannot be had here is skipped."""
    try:
        if name == DEFAULT:
            return installed_package(ensure(DEFAULT, say).python)
        return fetched(name.removeprefix("vllm=="), say)
    except (SourceProblem, EnvironmentProblem) as problem:
        pytest.skip(str(problem))


def tree(name: str, folder: Path, texts: Mapping[str, str | None]) -> Target:
    """A checkout in a folder: links to the files of a version, but for those with a text, or None to leave
    one out."""
    source = package(name)
    (folder / "vllm").mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name not in ("__pycache__", *texts):
            (folder / "vllm" / entry.name).symlink_to(entry)
    for file, text in texts.items():
        if text is not None:
            (folder / "vllm" / file).write_text(text)
    return Target.parse(f"vllm@{folder}")


def version_file(text: str) -> str:
    """What says the version of a package."""
    return f"__version__ = version = {text!r}\n__version_tuple__ = version_tuple = (0, 0, {text!r})\n"


def opened(target: Target) -> Worker:
    """The target, open."""
    worker = open_target(target, say)
    assert isinstance(worker, Worker)
    return worker


GROUPS = Group("full", 16), Group("mamba", 16)
DEV = "0.32.1.dev5+gabcdef123"


def resent(profile: str) -> Trace:
    """A prompt twice, with EAGLE."""
    configuration = Configuration(GROUPS, 4, eagle=True, speculative=3, profile=profile)
    prompt = (("a", 57),)
    return Trace(configuration, (Submit("A", prompt), Settle(), Submit("B", prompt), Settle()))


@pytest.mark.parametrize(
    ("name", "texts", "version", "line"),
    [
        (DEFAULT, {}, "0.32.0", "0.32"),
        (DEFAULT, {VERSION: version_file(DEV)}, DEV, "0.32"),
        (DEFAULT, {VERSION: None}, "dev", "0.32"),
        (DEFAULT, {VERSION: version_file("0.33.0")}, "0.33.0", "0.32"),
        (AHEAD, {}, "0.33.0", "0.33"),
        (AHEAD, {VERSION: None}, "dev", "0.33"),
    ],
    ids=["0.32.0", "0.32.0-dev", "0.32.0-no-version", "0.32.0-wrong-version", "0.33.0", "0.33.0-no-version"],
)
def test_a_tree_is_what_it_has_not_what_its_version_says(
    tmp_path: Path, name: str, texts: Mapping[str, str | None], version: str, line: str
) -> None:
    target = tree(name, tmp_path / "tree", texts)
    profiles, lacks = {
        "0.32": (("drop",), ("lookahead",)),
        "0.33": (("lookahead", "drop"), ("small-budget",)),
    }[line]
    with closing(opened(target)) as worker:
        said = worker.describe()
        assert (said.version, said.line, said.profiles, said.lacks) == (version, line, profiles, lacks)
        assert said.origin == str(tmp_path / "tree" / "vllm" / "__init__.py")
        found = release_line(target, worker)
        assert found.line == line
        assert found.why == (
            f"the checkout says version {version} and has the marks of {line}: "
            f"the known faults of {line} are used"
        )
        for profile in profiles:
            outcome = worker.run(resent(profile))
            assert [one.failure for one in outcome.observations if one.failure] == []
            hits = [one.local for each in outcome.observations for one in each.admitted]
            # With hashes that cover what the draft reads nothing is dropped.
            assert hits == [0, 56 if profile == "lookahead" else 52]
        for profile in {"lookahead", "drop"} - set(profiles):
            with pytest.raises(
                TraceError, match=f"vLLM {version.replace('+', '.')} has no hashes that cover"
            ):
                worker.run(resent(profile))


def test_a_colon_in_the_path_of_a_checkout_does_not_hide_it(tmp_path: Path) -> None:
    target = tree(DEFAULT, tmp_path / "full:reg", {VERSION: version_file("0.32.7")})
    with closing(opened(target)) as worker:
        said = worker.describe()
        assert (said.version, said.line) == ("0.32.7", "0.32")
        assert said.origin == str(tmp_path / "full:reg" / "vllm" / "__init__.py")
        assert worker.run(resent("drop")).observations[-1].failure is None


def test_another_vllm_than_that_of_the_checkout_is_refused(tmp_path: Path) -> None:
    """Negative control: what Python runs at its start puts the installed package first."""
    target = tree(DEFAULT, tmp_path / "tree", {VERSION: None})
    installed = package(DEFAULT)
    (tmp_path / "tree" / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(0, {str(installed.parent)!r})\n"
    )
    with (
        closing(opened(target)) as worker,
        pytest.raises(TargetProblem, match=r"^vllm@.*: vllm was imported from .*, not from ") as problem,
    ):
        worker.describe()
    assert f"from {installed}, not from {tmp_path / 'tree' / 'vllm'};" in str(problem.value)
    assert "\n" not in str(problem.value)


FOUND = """
import json
from adapters.vllm import boundaries
found = boundaries.probe()
print(json.dumps([found.line, sorted(found.marks ^ boundaries.Release.of(LINE).marks)]))
"""


def probed(path: list[str], program: str) -> list[object]:
    """What a program prints last in the default target's Python, with these folders before what it has."""
    done = subprocess.run(
        [str(ensure(DEFAULT, say).python), "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "VLLM_LOGGING_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("name", [DEFAULT, *(f"vllm=={one}" for one in OVERLAYS)])
def test_marks_came_when_the_table_says(name: str) -> None:
    path = [str(staged_packages()), *([] if name == DEFAULT else [str(package(name).parent)])]
    line = ".".join(name.removeprefix("vllm==").split(".")[:2])
    assert probed(path, FOUND.replace("LINE", repr(line))) == [line, []]


def test_a_wrong_mark_is_seen() -> None:
    """Negative control of the table: a mark that 0.32 lacks, or one that it has too early, shows."""
    planted = """
from adapters.vllm import boundaries
boundaries.MARKS = {
    **boundaries.MARKS,
    "missing": boundaries.Mark("0.31", "vllm.v1.core.kv_cache_utils:resolve_nothing"),
    "early": boundaries.Mark("0.33", "vllm.v1.core.kv_cache_utils:resolve_kv_cache_block_sizes"),
}
"""
    found = probed([str(staged_packages())], planted + FOUND.replace("LINE", repr("0.32")))
    assert found == ["0.30", ["early", "missing"]]
