"""The list of targets that this user has added, kept in the cache folder."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tailproof.targets import environments
from tailproof.targets.cache import cache_folder, write
from tailproof.targets.opening import (
    DEFAULT,
    OVERLAYS,
    Target,
    TargetNameError,
    known_versions,
    open_target,
)
from tailproof.targets.problems import TargetProblem
from tailproof.targets.versions import forget


def listed_targets() -> list[str]:
    """The default target, the reference, and what was added."""
    return list(dict.fromkeys((DEFAULT, "reference", *_added())))


def known_but_not_listed() -> list[str]:
    """Versions that can be added by name."""
    listed = listed_targets()
    return [name for name in known_versions() if name not in listed]


def add_target(name: str, progress: Callable[[str], None]) -> None:
    """Make a target ready and remember it.

    Raises:
        TargetNameError: for a name that means nothing.
        TargetProblem: when it cannot be run here.
    """
    opened = open_target(Target.parse(name), progress)
    try:
        opened.describe()
    finally:
        opened.close()
    _write([*_added(), name])


def remove_target(name: str) -> bool:
    """Forget a target and drop what was built or fetched for it; False when it was neither listed nor there.

    Raises:
        TargetNameError: for a name that means nothing.
        TargetProblem: when its files cannot be deleted.
    """
    target = Target.parse(name)
    added = _added()
    _write([other for other in added if other != name])
    dropped = False
    if target.kind == "installed" and name in environments.known_targets():
        dropped = environments.remove(name)
    elif target.kind == "installed" and target.argument in OVERLAYS:
        dropped = forget(target.argument)
    return dropped or name in added


def _added() -> list[str]:
    path = cache_folder() / "targets.json"
    try:
        names = msgspec.json.decode(path.read_bytes(), type=list[str])
        for name in names:
            Target.parse(name)
        return names
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError, TargetNameError) as problem:
        raise TargetProblem(f"{path}: {problem}; remove the file") from None


def _write(names: list[str]) -> None:
    write(cache_folder() / "targets.json", msgspec.json.encode(list(dict.fromkeys(names))))
