"""Tailproof's cache folder: where it lies, and how something gets into it once, whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from glob import escape
from pathlib import Path

from platformdirs import user_cache_path

from tailproof.targets.problems import EnvironmentProblem


def cache_folder() -> Path:
    """The cache folder: $TAILPROOF_CACHE, else `tailproof` where this user's caches lie ($XDG_CACHE_HOME,
    else ~/.cache).

    Raises:
        EnvironmentProblem: when no home folder is known.
    """
    if own := os.environ.get("TAILPROOF_CACHE"):
        return Path(own).absolute()
    try:
        return user_cache_path("tailproof", appauthor=False)
    except RuntimeError as problem:
        raise EnvironmentProblem(f"{problem}: set TAILPROOF_CACHE to a folder for environments") from None


@contextlib.contextmanager
def alone(place: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[int]:
    """Holds the lock of a place, `NAME.lock` beside it, and yields its file descriptor. `waiting` is called
    when another process holds it.

    It is held until every process that inherited the descriptor has ended. So what a killed process has
    started is waited for; the drafts that it left are deleted.

    Raises:
        OSError: when the folder of the place cannot be written.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    guard = os.open(place.with_name(place.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(guard, fcntl.LOCK_EX)
        for left in place.parent.glob(f".{escape(place.name)}-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield guard
    finally:
        os.close(guard)


def placed(
    place: Path,
    make: Callable[[Path], Path],
    *,
    good: Callable[[Path], bool] = Path.is_dir,
    waiting: Callable[[], object] = lambda: None,
) -> Path:
    """The folder `place`, made first when it is not `good`; other processes wait for the first one.

    `make` gets an empty folder to work in, and returns the folder in it that is renamed to `place`. The rest
    goes, whatever happens.

    Raises:
        OSError: when it cannot be written.
    """
    if good(place):
        return place
    with alone(place, waiting):
        # The process that was waited for may have made it.
        if not good(place):
            with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as draft:
                whole = make(Path(draft))
                if place.exists():
                    shutil.rmtree(place)
                whole.rename(place)
    return place


def discarded(place: Path) -> bool:
    """Delete a folder that was placed; False when there was none.

    Raises:
        OSError: when it cannot be deleted.
    """
    if not place.is_dir():
        return False
    with alone(place), tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as going:
        # Renamed first, so that a deletion cut short leaves nothing that counts as whole.
        place.rename(Path(going, place.name))
    return True


def write(path: Path, content: bytes) -> None:
    """Write a file, and its folder if need be.

    Raises:
        OSError: when it cannot be written; the file is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(content)
        flush(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    flush(path.parent)


def flush(path: Path) -> None:
    """See that a file, or the names in a folder, outlast a failure of the power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
