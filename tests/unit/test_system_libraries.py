"""System libraries are found, or fetched whole or not at all, and otherwise a line says what to install.

The program is a copy of `true` that asks for a library which no machine has; the package sources are a
script of this test.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from adapters.mooncake import installation
from adapters.mooncake.installation import ServerError, library_path, missing_libraries, remedy
from tailproof.targets import environments
from tailproof.targets import libraries as system_libraries
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
    monkeypatch.setattr(system_libraries, "SYSTEM_PACKAGES", packages)
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


def test_what_the_machine_has_is_not_fetched(cache: Path, sources: Sources) -> None:
    assert ensure([Path(sys.executable)], no_line) is None
    assert sources.asked() == []
    assert not cache.exists()


def test_a_missing_library_is_fetched_once(program: Path, cache: Path, sources: Sources) -> None:
    lines: list[str] = []
    folder = ensure([program], lines.append)
    assert lines == ["store tier: fetching tailproof-q, tailproof-r, which this machine lacks"]
    assert sources.asked() == ["download tailproof-q tailproof-r"]
    assert folder is not None
    assert folder.parent == cache / "system"
    assert locate([program]) == Libraries(folder)
    assert left(cache) == [folder.name]
    assert sorted(path.name for path in folder.iterdir()) == [
        LIBRARY,
        f"{LIBRARY}.0.1",
        "libr.so.1",
        "libr.so.1.0.1",
    ]
    assert not any(path.is_symlink() for path in folder.iterdir())
    assert ensure([program], no_line) == folder


def test_a_damaged_folder_is_fetched_again(program: Path, cache: Path, sources: Sources) -> None:
    folder = ensure([program], lambda _line: None)
    assert folder is not None
    (folder / LIBRARY).write_bytes(b"")
    assert locate([program]).missing == (LIBRARY,)
    assert ensure([program], lambda _line: None) == folder
    assert locate([program]) == Libraries(folder)
    assert len(sources.asked()) == 2
    assert left(cache) == [folder.name]


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


def test_a_failed_download_is_one_line_and_leaves_nothing(
    program: Path, cache: Path, sources: Sources
) -> None:
    sources.say('echo "W: no matter"; echo "E: Could not resolve host"; exit 100')
    with pytest.raises(LibraryProblem) as caught:
        ensure([program], lambda _line: None)
    assert one_line(caught.value) == (
        f"{LIBRARY} not found, and fetching it failed: reading the package lists: E: Could not resolve host:"
        f" {remedy([LIBRARY])}"
    )
    assert left(cache) == []


def test_a_broken_package_leaves_nothing(program: Path, cache: Path, sources: Sources) -> None:
    (sources.folder / "tailproof-q_1_all.deb").write_bytes(b"no package")
    with pytest.raises(LibraryProblem, match="and fetching it failed: unpacking: "):
        ensure([program], lambda _line: None)
    assert left(cache) == []


def test_packages_without_the_library_leave_nothing(program: Path, cache: Path, sources: Sources) -> None:
    (sources.folder / "tailproof-q_1_all.deb").unlink()
    with pytest.raises(LibraryProblem, match=f"{LIBRARY} not found in tailproof-q, tailproof-r either: "):
        ensure([program], lambda _line: None)
    assert left(cache) == []


def test_a_slow_download_is_given_up(
    program: Path, cache: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_libraries, "_DOWNLOAD_SECONDS", 0.2)
    sources.say('[ "${*%update}" != "$*" ] || exec sleep 60')
    with pytest.raises(LibraryProblem, match="downloading took over 0 s"):
        ensure([program], lambda _line: None)
    assert left(cache) == []


def test_a_library_that_no_package_is_known_for_is_not_fetched(
    program: Path, sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installation, "SYSTEM_PACKAGES", {})
    monkeypatch.setattr(system_libraries, "SYSTEM_PACKAGES", {})
    with pytest.raises(LibraryProblem) as caught:
        ensure([program], no_line)
    assert one_line(caught.value) == (f"{LIBRARY} not found: install the system package that has {LIBRARY}")
    assert sources.asked() == []


def test_without_apt_a_line_says_what_to_install(
    program: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(LibraryProblem) as caught:
        ensure([program], no_line)
    assert one_line(caught.value) == (
        f"{LIBRARY} not found, and without apt-get nothing can be fetched: {remedy([LIBRARY])}"
    )
    assert left(cache) == []


def test_a_cache_that_cannot_be_written_is_one_line(program: Path, cache: Path, sources: Sources) -> None:
    cache.write_text("a file in the way")
    with pytest.raises(LibraryProblem, match=f"{LIBRARY} not found, and fetching it failed: .*install the"):
        ensure([program], lambda _line: None)


def test_an_interrupted_or_killed_fetch_is_never_used(
    program: Path, cache: Path, sources: Sources, tmp_path: Path
) -> None:
    script = f"""
        import signal, sys
        from pathlib import Path
        from adapters.mooncake import installation
        from tailproof.targets.opening import libraries as system_libraries
        signal.signal(signal.SIGINT, signal.default_int_handler)
        packages = {{"{LIBRARY}": ("tailproof-q", "tailproof-r")}}
        installation.SYSTEM_PACKAGES = system_libraries.SYSTEM_PACKAGES = packages
        system_libraries.ensure([Path(sys.argv[1])], lambda line: None)
    """
    sources.say(f"touch '{tmp_path}/downloading'; sleep 3")
    for number, drafts in ((signal.SIGINT, 0), (signal.SIGKILL, 1)):
        (tmp_path / "downloading").unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(program)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(Path(environments.__file__).parents[1])},
        )
        for _ in range(600):
            if (tmp_path / "downloading").exists():
                break
            time.sleep(0.05)
        process.send_signal(number)
        process.wait(60)
        assert process.returncode != 0
        assert len(left(cache)) == drafts
        assert locate([program]).missing == (LIBRARY,)
    sources.say("")
    folder = ensure([program], lambda _line: None)
    assert folder is not None
    assert left(cache) == [folder.name]


def test_two_at_once_fetch_once(program: Path, sources: Sources) -> None:
    sources.say("sleep 0.3")
    folders: list[Path | None] = []
    threads = [
        threading.Thread(target=lambda: folders.append(ensure([program], lambda _line: None)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 3
    assert len(set(folders)) == 1
    assert len(sources.asked()) == 1


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
    assert environments.main(["ensure", "vllm==0.32.0"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{python}\n"
    assert said.err.splitlines()[1:] == [
        f"the store tier cannot run, all else can: {LIBRARY} not found, and fetching it failed:"
        f" reading the package lists: E: no network: {remedy([LIBRARY])}"
    ]
    sources.say("")
    assert environments.main(["ensure", "vllm==0.32.0"]) == 0
    assert capsys.readouterr().err == (
        "store tier: fetching tailproof-q, tailproof-r, which this machine lacks\n"
    )
    assert environments.main(["ensure", "vllm==0.32.0"]) == 0
    assert capsys.readouterr().err == ""
