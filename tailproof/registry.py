"""The list of targets that this user has added, kept in the cache folder."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from tailproof import environments
from tailproof.process import TargetProblem
from tailproof.targets import DEFAULT, Target, TargetNameError, open_target


def listed_targets() -> list[str]:
    """The default target, the reference, and what was added."""
    return list(dict.fromkeys((DEFAULT, "reference", *_added())))


def add_target(name: str, progress: Callable[[str], None]) -> None:
    """Make a target ready and remember it.

    Raises:
        TargetNameError: for a name that means nothing.
        TargetProblem: when it cannot be run here.
        EnvironmentProblem: when its environment cannot be built.
    """
    opened = open_target(Target.parse(name), progress)
    try:
        opened.describe()
    finally:
        opened.close()
    _write([*_added(), name])


def remove_target(name: str) -> bool:
    """Forget a target and drop its environment; False when it was neither listed nor built."""
    target = Target.parse(name)
    added = _added()
    _write([other for other in added if other != name])
    built = target.kind == "installed" and name in environments.known_targets()
    return (built and environments.remove(name)) or name in added


def _added() -> list[str]:
    path = environments.cache_folder() / "targets.json"
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
    path = environments.cache_folder() / "targets.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".targets.{os.getpid()}.part")
    draft.write_bytes(msgspec.json.encode(list(dict.fromkeys(names))))
    draft.replace(path)
