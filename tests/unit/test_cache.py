"""What is kept gets into the cache once, whole or not at all, whoever is killed; and programs end with all
that they started."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailproof.targets import cache, environments, process
from tailproof.targets.problems import EnvironmentProblem

ROOT = Path(environments.__file__).parents[2]
MAKER = """
    import signal, sys, time
    from pathlib import Path
    from tailproof.targets import cache
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def make(draft):
        whole = draft / "whole"
        whole.mkdir()
        (whole / "one").write_text("1")
        print("half", flush=True)
        time.sleep(float(sys.argv[2]))
        (whole / "two").write_text("2")
        return whole

    print(cache.placed(Path(sys.argv[1]), make, waiting=lambda: print("waiting", flush=True)))
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that places a folder of two files, and takes its time for it."""
    started: list[subprocess.Popen[str]] = []

    def one(place: Path, seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(MAKER), str(place), str(seconds)]
        here = os.environ | {"PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=here))
        return started[-1]

    yield one
    for found in started:
        found.kill()
        found.communicate()


def said(found: subprocess.Popen[str]) -> str:
    assert found.stdout is not None
    return found.stdout.readline().strip()


def names(folder: Path) -> set[str]:
    """What is in a folder beside locks."""
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TAILPROOF_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("TAILPROOF_CACHE")
    assert cache.cache_folder() == tmp_path / "xdg" / "tailproof"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_folder() == tmp_path / "home" / ".cache" / "tailproof"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    with pytest.raises(EnvironmentProblem, match=r"^[^\n]+: set TAILPROOF_CACHE to a folder for env"):
        cache.cache_folder()


@pytest.mark.parametrize(("number", "drafts"), [(signal.SIGINT, 0), (signal.SIGKILL, 1)])
def test_what_was_begun_and_broken_off_is_not_there(
    start: Start, tmp_path: Path, number: signal.Signals, drafts: int
) -> None:
    place = tmp_path / "kept" / "a[1]:place"
    broken = start(place, 60)
    assert said(broken) == "half"
    broken.send_signal(number)
    assert broken.wait(60) != 0
    assert not place.exists()
    assert len(names(place.parent)) == drafts
    again = start(place, 0)
    assert again.communicate(timeout=60)[0].splitlines() == ["half", str(place)]
    assert (names(place), names(place.parent)) == ({"one", "two"}, {place.name})


def test_two_at_once_make_it_once(start: Start, tmp_path: Path) -> None:
    place = tmp_path / "place"
    first, second = start(place, 1), start(place, 1)
    outputs = [found.communicate(timeout=60)[0].splitlines() for found in (first, second)]
    assert [lines[-1] for lines in outputs] == [str(place)] * 2
    assert sorted(line for lines in outputs for line in lines[:-1]) in (["half"], ["half", "waiting"])


def test_the_next_one_takes_over_from_a_killed_one(start: Start, tmp_path: Path) -> None:
    place = tmp_path / "place"
    first = start(place, 60)
    assert said(first) == "half"
    second = start(place, 0)
    assert said(second) == "waiting"
    first.kill()
    assert second.communicate(timeout=60)[0].splitlines() == ["half", str(place)]


def test_what_was_started_under_a_lock_is_waited_for(tmp_path: Path) -> None:
    waited: list[str] = []
    with cache.alone(tmp_path / "place") as guard:
        child = subprocess.Popen(["sleep", "0.5"], pass_fds=(guard,))
    with cache.alone(tmp_path / "place", lambda: waited.append("waiting")):
        assert waited == ["waiting"]
        child.wait(5)


def test_a_good_place_is_left_alone_and_a_damaged_one_made_anew(tmp_path: Path) -> None:
    def make(draft: Path) -> Path:
        (draft / "whole").mkdir()
        (draft / "whole" / "new").touch()
        return draft / "whole"

    place = cache.placed(tmp_path / "place", make)
    (place / "old").touch()
    assert names(cache.placed(place, make)) == {"new", "old"}
    assert names(cache.placed(place, make, good=lambda found: not (found / "old").exists())) == {"new"}
    assert cache.discarded(place)
    assert not cache.discarded(place)
    assert names(tmp_path) == set()


def test_a_file_is_written_as_a_whole_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "file"
    cache.write(path, b"old")

    def full(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        cache.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(path.parent) == {"file"}


CHILD = "sleep 60 & echo $!; wait"


def gone(pid: int) -> bool:
    """Whether a process is gone, or is soon."""
    for _ in range(100):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_program_ends_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """When its time is over, and when something breaks in."""
    monkeypatch.setattr(process, "PROGRESS_SECONDS", 0.3)

    def tick(passed: float) -> None:
        if interrupted:
            raise KeyboardInterrupt

    output = tmp_path / "output"
    with output.open("wb") as sink, pytest.raises((subprocess.TimeoutExpired, KeyboardInterrupt)) as ended:
        process.run(["sh", "-c", CHILD], sink, seconds=1.0, tick=tick)
    assert isinstance(ended.value, KeyboardInterrupt) == interrupted
    assert gone(int(output.read_text()))


def test_a_program_that_ignores_a_polite_end_is_killed() -> None:
    stubborn = subprocess.Popen(
        ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert stubborn.stdout is not None
    assert stubborn.stdout.readline() == b"ready\n"
    process.end(stubborn, 0.3)
    assert stubborn.returncode == -signal.SIGKILL
    process.end(stubborn)


def test_the_words_of_a_program_become_one_line() -> None:
    said = "noise\nERROR: Exception:\nERROR: no such thing\nlater\n[notice] a new release\n"
    assert process.last_error(said) == "ERROR: no such thing"
    assert process.last_error("noise\n  last \n\n") == "last"
    assert process.last_error("", otherwise="nothing") == "nothing"
