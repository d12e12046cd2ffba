"""System libraries are found, or fetched whole or not at all, and otherwise a line says what to install.

The program is a copy of `true` that asks for a library which no machine has; the package sources are a
script of this test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from adapters.mooncake import installation
from adapters.mooncake.installation import ServerError, library_path, missing_libraries, remedy
from tailproof.targets import environments, libraries, setup
from tailproof.targets.environments import Environment
from tailproof.targets.libraries import (
    Libraries,
    LibraryProblem,
    ensure,
    locate,
    prepare_store,
    store_problem,
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("dpkg-deb") is None, reason="makes Debian packages"
)

LIBRARY = "libq.so.6"
ORDINARY = "libc.so.6"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test, and no settings of the caller."""
    monkeypatch.setenv("TAILPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    packages = {LIBRARY: ("tailproof-q", "tailproof-r")}
    monkeypatch.setattr(installation, "SYSTEM_PACKAGES", packages)
    monkeypatch.setattr(libraries, "SYSTEM_PACKAGES", packages)
    return tmp_path / "cache"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that lacks a library."""
    original = shutil.which("true")
    assert original is not None
    code = Path(original).read_bytes()
    assert f"\0{ORDINARY}\0".encode() in code
    path = tmp_path / "program"
    path.write_bytes(code.replace(f"\0{ORDINARY}\0".encode(), f"\0{LIBRARY}\0".encode()))
    path.chmod(0o755)
    return path


def real_library() -> Path:
    """The C library of this machine, which serves as the one that is asked for."""
    listed = subprocess.run(
        ["ldd", shutil.which("true") or ""], capture_output=True, text=True, check=True
    ).stdout
    return next(Path(line.split()[2]) for line in listed.splitlines() if line.strip().startswith(ORDINARY))


class Sources:
    """The package sources that the `apt-get` of the test serves from, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._asked = folder / "asked"
        self.say("")

    def offer(self, package: str, content: dict[str, bytes]) -> None:
        """Make a package with these files, and a link to each as Debian has it."""
        tree = self.folder / f"{package}-tree"
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN" / "control").write_text(
            f"Package: {package}\nVersion: 1\nArchitecture: all\nMaintainer: t <t@t>\nDescription: t\n"
        )
        place = tree / "usr" / "lib" / "machine"
        place.mkdir(parents=True)
        for name, data in content.items():
            (place / f"{name}.0.1").write_bytes(data)
            (place / name).symlink_to(f"{name}.0.1")
        subprocess.run(
            ["dpkg-deb", "--build", str(tree), str(self.folder / f"{package}_1_all.deb")],
            check=True,
            capture_output=True,
        )

    def say(self, before: str) -> None:
        """What the script does first."""
        self.folder.joinpath("apt-get").write_text(
            textwrap.dedent(
                f"""\
                #!/bin/sh
                echo "$@" >> '{self._asked}'
                {before}
                case "$*" in
                    *update*) touch "$(pwd)/updated"; exit 0 ;;
                esac
                for package; do
                    if [ -e "{self.folder}/${{package}}_1_all.deb" ]; then
                        cp "{self.folder}/${{package}}_1_all.deb" .
                    fi
                done
                """
            )
        )
        self.folder.joinpath("apt-get").chmod(0o755)

    def asked(self) -> list[str]:
        """What it was asked, without the options."""
        if not self._asked.exists():
            return []
        return [
            " ".join(word for word in line.split() if "=" not in word and word != "-o")
            for line in self._asked.read_text().splitlines()
        ]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """Sources that have both packages."""
    folder = tmp_path / "sources"
    folder.mkdir()
    offered = Sources(folder)
    offered.offer("tailproof-q", {LIBRARY: real_library().read_bytes()})
    offered.offer("tailproof-r", {"libr.so.1": b"not asked for"})
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return offered


def no_line(_line: str) -> None:
    raise AssertionError("nothing should be fetched")


def one_line(problem: Exception) -> str:
    text = str(problem)
    assert "\n" not in text
    return text


def left(cache: Path) -> list[str]:
    """What the cache holds beside locks."""
    return (
        sorted(path.name for path in (cache / "system").iterdir() if path.suffix != ".lock")
        if (cache / "system").exists()
        else []
    )


def test_the_loader_says_what_is_missing(program: Path, tmp_path: Path) -> None:
    assert missing_libraries([Path(sys.executable)]) == ()
    assert missing_libraries([Path(sys.executable), program]) == (LIBRARY,)
    shutil.copy(real_library(), tmp_path / LIBRARY)
    assert missing_libraries([program], tmp_path) == ()
    assert missing_libraries([program], tmp_path / "elsewhere") == (LIBRARY,)


def test_a_program_of_another_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"\x7fELF" + bytes(60))
    path.chmod(0o755)
    with pytest.raises(ServerError, match=r"cannot be run on this machine: .*Exec format error"):
        missing_libraries([path])


def test_the_callers_own_folders_count(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(real_library(), tmp_path / LIBRARY)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert library_path(Path("/first")) == {"LD_LIBRARY_PATH": f"/first:{tmp_path}"}
    assert locate([program]) == Libraries(None)
    assert ensure([program], no_line) is None
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert library_path(None) == {}
    assert locate([program]) == Libraries(None, (LIBRARY,))


def test_a_missing_library_is_fetched_once_and_again_when_damaged(
    program: Path, cache: Path, sources: Sources
) -> None:
    assert ensure([Path(sys.executable)], no_line) is None
    assert not cache.exists()
    lines: list[str] = []
    folder = ensure([program], lines.append)
    assert lines == ["store tier: fetching tailproof-q, tailproof-r, which this machine lacks"]
    assert sources.asked() == ["download tailproof-q tailproof-r"]
    assert folder is not None
    assert folder.parent == cache / "system"
    names = {LIBRARY, f"{LIBRARY}.0.1", "libr.so.1", "libr.so.1.0.1"}
    assert {path.name for path in folder.iterdir() if not path.is_symlink()} == names
    assert ensure([program], no_line) == folder
    (folder / LIBRARY).write_bytes(b"")
    assert locate([program]).missing == (LIBRARY,)
    assert ensure([program], lines.append) == folder
    assert locate([program]) == Libraries(folder)
    assert len(sources.asked()) == 2
    assert left(cache) == [folder.name]


@pytest.mark.parametrize(
    ("script", "package", "said"),
    [
        pytest.param(
            'echo "W: no matter"; echo "E: Could not resolve host"; exit 100',
            None,
            ", and fetching it failed: reading the package lists: E: Could not resolve host: {remedy}",
            id="no network",
        ),
        pytest.param("", b"no package", ", and fetching it failed: unpacking: ", id="broken package"),
        pytest.param("", b"", " in tailproof-q, tailproof-r either: {remedy}", id="not in the package"),
        pytest.param(
            '[ "${*%update}" != "$*" ] || exec sleep 60',
            None,
            ", and fetching it failed: downloading took over 0 s: {remedy}",
            id="slow",
        ),
    ],
)
def test_a_fetch_that_fails_is_one_line_and_leaves_nothing(
    program: Path,
    cache: Path,
    sources: Sources,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    package: bytes | None,
    said: str,
) -> None:
    if "sleep" in script:
        monkeypatch.setattr(libraries, "_DOWNLOAD_SECONDS", 0.2)
    sources.say(script)
    file = sources.folder / "tailproof-q_1_all.deb"
    if package is not None:
        file.unlink()
        file.write_bytes(package) if package else None
    with pytest.raises(LibraryProblem) as caught:
        ensure([program], lambda _line: None)
    assert one_line(caught.value).startswith(f"{LIBRARY} not found" + said.format(remedy=remedy([LIBRARY])))
    assert left(cache) == []


@pytest.mark.parametrize("why", ["no package", "no apt", "no room"])
def test_what_cannot_be_fetched_is_not_asked_for(
    program: Path, cache: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    said = f"and without apt-get nothing can be fetched: {remedy([LIBRARY])}"
    if why == "no package":
        for module in (installation, libraries):
            monkeypatch.setattr(module, "SYSTEM_PACKAGES", {})
        said = f"{LIBRARY} not found: install the system package that has {LIBRARY}"
    elif why == "no apt":
        monkeypatch.setattr(shutil, "which", lambda _name: None)
    else:
        cache.write_text("a file in the way")
        said = "and fetching it failed: "
    with pytest.raises(LibraryProblem) as caught:
        ensure([program], no_line)
    assert said in one_line(caught.value)
    assert sources.asked() == []


def test_outdated_lists_are_renewed_for_this_download_only(
    program: Path, cache: Path, sources: Sources
) -> None:
    sources.say('if [ ! -e updated ] && [ "${*%update}" = "$*" ]; then echo "E: 404"; exit 100; fi')
    folder = ensure([program], lambda _line: None)
    download = "download tailproof-q tailproof-r"
    assert sources.asked() == [download, "update", download]
    assert folder is not None
    assert left(cache) == [folder.name]
    options = (sources.folder / "asked").read_text().splitlines()
    assert "Dir::State::lists" not in options[0]
    assert all(f"Dir::State::lists={cache}" in line for line in options[1:])


@pytest.fixture
def python(tmp_path: Path, program: Path) -> Path:
    """An interpreter whose Mooncake lacks the library."""
    folder = tmp_path / "environment" / "lib" / "python3.11" / "site-packages" / "mooncake"
    folder.mkdir(parents=True)
    for name in installation.PROGRAMS:
        shutil.copy(program, folder / name)
    return tmp_path / "environment" / "bin" / "python"


def test_the_problem_is_told_until_it_is_solved(python: Path, sources: Sources, cache: Path) -> None:
    assert store_problem(python) == (
        f"{LIBRARY} not found: {remedy([LIBRARY])}, or run make setup, which can fetch it"
    )
    assert not cache.exists()
    folder = prepare_store(python, lambda _line: None)
    assert folder is not None
    assert store_problem(python) == ""
    assert store_problem(python.parents[2] / "python") == (
        f"{python.parents[2] / 'python'} has no Mooncake:"
        f" run {python.parents[2] / 'python'} -m pip install mooncake-transfer-engine-non-cuda"
    )


def test_setting_up_goes_on_when_the_store_tier_cannot(
    python: Path,
    sources: Sources,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(environments, "ensure", lambda name, progress: Environment(name, python, True))
    sources.say('echo "E: no network"; exit 100')
    assert setup.main(["vllm==0.32.0"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{python}\n"
    assert said.err.splitlines()[1:] == [
        f"the store tier cannot run, all else can: {LIBRARY} not found, and fetching it failed:"
        f" reading the package lists: E: no network: {remedy([LIBRARY])}"
    ]
    sources.say("")
    assert setup.main(["vllm==0.32.0"]) == 0
    assert capsys.readouterr().err == (
        "store tier: fetching tailproof-q, tailproof-r, which this machine lacks\n"
    )
    assert setup.main(["vllm==0.32.0"]) == 0
    assert capsys.readouterr().err == ""
