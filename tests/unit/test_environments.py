"""Target environments are built once, used only when finished, and never used after an interruption."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest

from tailproof.targets import environments, setup
from tailproof.targets.environments import Environment, EnvironmentProblem, Recipe

BARE = Recipe(target="bare==1", lock="", disk=0)
MISSING = "no-such-package-for-tailproof==1.0 --hash=sha256:" + 64 * "0" + "\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TAILPROOF_CACHE", str(folder))
    return folder


def built(recipe: Recipe) -> tuple[Environment, list[str]]:
    lines: list[str] = []
    return environments.ensure(recipe, lines.append), lines


def half_built(recipe: Recipe) -> Path:
    folder = environments.locate(recipe).python.parents[1]
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("left over")
    (folder / "rubbish").write_text("left over")
    return folder


def small_wheel(folder: Path) -> Path:
    folder.mkdir()
    path = folder / "tailproof_small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tailproof_small.py", "VALUE = 1\n")
        wheel.writestr(
            "tailproof_small-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tailproof-small\nVersion: 1.0\nRequires-Dist: tailproof-absent\n",
        )
        wheel.writestr(
            "tailproof_small-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("tailproof_small-1.0.dist-info/RECORD", "")
    return path


def builder(recipe: Recipe) -> subprocess.Popen[str]:
    """A process of its own that builds `recipe` and prints its progress and then the interpreter."""
    program = """
        import signal, sys
        from tailproof.targets import environments
        # A process started in the background may inherit an ignored SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        recipe = environments.Recipe(target=sys.argv[1], lock=sys.argv[2], disk=0)
        print(environments.ensure(recipe, lambda line: print(line, flush=True)).python)
    """
    root = Path(environments.__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), recipe.target, recipe.lock],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )


def wait_for_folder(recipe: Recipe) -> Path:
    folder = environments.locate(recipe).python.parents[1]
    for _ in range(600):
        if folder.exists():
            return folder
        time.sleep(0.05)
    raise AssertionError("the build did not begin")


def is_locked(recipe: Recipe) -> bool:
    folder = environments.locate(recipe).python.parents[1]
    with folder.with_name(folder.name + ".lock").open("a") as guard:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_builds_once_and_then_reuses(cache: Path) -> None:
    assert environments.locate(BARE).ready is False
    first, lines = built(BARE)
    assert first.ready
    assert first.python.is_relative_to(cache)
    assert subprocess.run([first.python, "-c", "pass"], check=False).returncode == 0
    assert lines[0] == "bare==1: creating the virtual environment (0 s)"
    assert re.fullmatch(r"bare==1: ready \(\d+ s\)", lines[-1])
    assert built(BARE) == (first, [])
    assert environments.locate(BARE) == first


@pytest.mark.parametrize("lost", ["marker", "interpreter"])
def test_what_is_not_whole_is_rebuilt(lost: str) -> None:
    if lost == "marker":
        folder = half_built(BARE)
    else:
        environment = built(BARE)[0]
        environment.python.unlink()
        folder = environment.python.parents[1]
        (folder / "rubbish").touch()
    assert environments.locate(BARE).ready is False
    environment, lines = built(BARE)
    assert lines
    assert not (folder / "rubbish").exists()
    assert subprocess.run([environment.python, "-c", "pass"], check=False).returncode == 0


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (
            dataclasses.replace(BARE, disk=1 << 50),
            r"needs 1048576\.0 GiB .* make room or set TAILPROOF_CACHE",
        ),
        (
            dataclasses.replace(BARE, pythons=("2.7",)),
            r"locked for Python 2\.7, this is 3\.\d+: run Tailproof with",
        ),
        (BARE, "set TAILPROOF_CACHE to a folder that can be written"),
    ],
)
def test_what_cannot_be_built_says_what_to_do(cache: Path, recipe: Recipe, said: str) -> None:
    if recipe is BARE:
        cache.write_text("a file in the way")
    with pytest.raises(EnvironmentProblem, match=said):
        built(recipe)
    assert environments.locate(recipe).ready is False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_was_broken_off_is_repeated(number: signal.Signals) -> None:
    process = builder(BARE)
    folder = wait_for_folder(BARE)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert environments.locate(BARE).ready is False
    # Every step holds the lock as long as it lives: a free lock shows that an interrupt left none behind.
    assert is_locked(BARE) == (number == signal.SIGKILL)
    assert folder.exists() == (number == signal.SIGKILL)
    environment, lines = built(BARE)
    assert lines[0].startswith("waiting for another process") == (number == signal.SIGKILL)
    assert subprocess.run([environment.python, "-c", "pass"], check=False).returncode == 0


def test_removal_leaves_nothing_that_counts_as_built() -> None:
    assert environments.remove(BARE) is False
    folder = half_built(BARE)
    (folder / ".tailproof-complete").write_text("")
    assert environments.locate(BARE).ready
    assert environments.remove(BARE) is True
    assert not folder.exists()
    assert environments.locate(BARE).ready is False


def test_every_ingredient_has_its_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {environments.locate(BARE).python}
    places.add(environments.locate(dataclasses.replace(BARE, lock="# changed\n")).python)
    places.add(environments.locate(dataclasses.replace(BARE, first=("torch==2.13.0",))).python)
    monkeypatch.setattr("platform.machine", lambda: "another")
    places.add(environments.locate(BARE).python)
    assert len(places) == 4
    assert all(re.fullmatch(r"bare-1-[0-9a-f]{12}", place.parents[1].name) for place in places)


def test_unknown_target_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for act in (environments.locate, environments.remove, lambda name: environments.ensure(name, print)):
        with pytest.raises(EnvironmentProblem) as caught:
            act("vllm==9.9")
        assert str(caught.value) == "no environment is known for 'vllm==9.9': use one of vllm==0.32.0"
    assert setup.main(["vllm==9.9"]) == 3
    assert setup.main([]) == 2
    assert "use one of vllm==0.32.0" in capsys.readouterr().err


def test_locked_packages_are_installed_with_their_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = small_wheel(tmp_path / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    good = dataclasses.replace(
        BARE, lock=f"tailproof-small==1.0 \\\n    --hash=sha256:{digest}\n", checks=("tailproof_small",)
    )
    environment, lines = built(good)
    assert any("installing the locked packages" in line for line in lines)
    assert subprocess.run([environment.python, "-c", "import tailproof_small"], check=False).returncode == 0

    tampered = dataclasses.replace(good, lock=good.lock.replace(digest, 64 * "0"))
    with pytest.raises(EnvironmentProblem, match="installing the locked packages failed"):
        built(tampered)
    assert environments.locate(tampered).ready is False

    missing = dataclasses.replace(BARE, lock=MISSING)
    with pytest.raises(EnvironmentProblem) as caught:
        built(missing)
    folder = environments.locate(missing).python.parents[1]
    log = folder.with_name(folder.name + ".log")
    assert str(caught.value) == (
        "bare==1: installing the locked packages failed (exit code 1): "
        f"ERROR: No matching distribution found for no-such-package-for-tailproof==1.0; see {log}"
    )
    assert "Could not find a version" in log.read_text()
    assert not folder.exists()

    unhashed = dataclasses.replace(good, lock="tailproof-small==1.0\n")
    with pytest.raises(EnvironmentProblem, match="installing the locked packages failed"):
        built(unhashed)

    unimportable = dataclasses.replace(good, target="unimportable==1", checks=("tailproof_absent",))
    with pytest.raises(EnvironmentProblem, match=r"importing what was installed failed.*'tailproof_absent'"):
        built(unimportable)
    assert environments.locate(unimportable).ready is False


def test_concurrent_callers_build_once() -> None:
    processes = [builder(BARE), builder(BARE)]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    python = str(environments.locate(BARE).python)
    assert [lines[-1] for lines in outputs] == [python, python]
    assert sum("creating the virtual environment (0 s)" in line for lines in outputs for line in lines) == 1
    assert sum(line.startswith("waiting for") for lines in outputs for line in lines) <= 1


@pytest.mark.parametrize("target", environments.known_targets())
def test_shipped_lock_is_complete_and_portable(target: str) -> None:
    recipe = environments.shipped_recipe(target)
    assert recipe.first[0].startswith("torch==")
    assert all("==" in requirement for requirement in recipe.first)
    assert recipe.pythons
    assert recipe.checks
    text = "\n".join(line for line in recipe.lock.splitlines() if not line.startswith("#"))
    requirements = text.replace("\\\n", " ").splitlines()
    assert len(requirements) > 20
    for requirement in requirements:
        assert re.fullmatch(r"[\w.-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})+", requirement), requirement
    names = {requirement.split("==")[0].lower() for requirement in requirements}
    assert len(names) == len(requirements)
    assert not names & {requirement.split("==")[0].lower() for requirement in recipe.first}
    assert not [name for name in names if re.match(r"torch|nvidia|triton|cuda", name)]
    assert "://" not in recipe.lock
    assert not re.search(r"^\s*-", text.replace("    --hash=", ""), re.MULTILINE)
