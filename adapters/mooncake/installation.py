"""Where the Mooncake programs of a target's Python are, and which system libraries they lack.

Standard library only: it runs in the tool and inside the target's own Python.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "mooncake-transfer-engine-non-cuda"
PROGRAMS = ("mooncake_master", "mooncake_client")
# System libraries that a machine may lack, and the Debian packages that bring each and what it needs itself.
SYSTEM_PACKAGES = {"libibverbs.so.1": ("libibverbs1", "libnl-3-200", "libnl-route-3-200")}
_LOADER_SECONDS = 20.0


class ServerError(Exception):
    """A Mooncake server cannot be run or does not answer. The text is one line; `detail` may hold its log."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Installation:
    """The Mooncake of one target.

    `folder` holds the programs; `libraries` is a folder with the system libraries that the machine itself
    lacks, or None when it lacks none.
    """

    folder: Path
    libraries: Path | None = None

    def program(self, name: str) -> Path:
        """The program of that name.

        Raises:
            ServerError: when it is missing or may not be run.
        """
        path = self.folder / name
        if not path.is_file():
            raise ServerError(f"{path} is missing: reinstall {PACKAGE}")
        if not os.access(path, os.X_OK):
            raise ServerError(f"{path} may not be run: reinstall {PACKAGE}, on a file system that allows it")
        return path

    def programs(self) -> tuple[Path, ...]:
        """All programs.

        Raises:
            ServerError: when one is missing or may not be run.
        """
        return tuple(self.program(name) for name in PROGRAMS)

    def environment(self) -> dict[str, str]:
        """The whole environment that a program is started with: none of the caller's settings reach it,
        except where to look for libraries."""
        return {"PATH": os.defpath, "LC_ALL": "C", **library_path(self.libraries)}

    def missing_libraries(self) -> tuple[str, ...]:
        """Names of the libraries that the programs ask for and would not find, in alphabetical order.

        Raises:
            ServerError: when a program is missing or cannot be run here at all.
        """
        return missing_libraries(self.programs(), self.libraries)


def find(python: Path, libraries: Path | None = None) -> Installation:
    """The Mooncake installed for the interpreter `python`.

    Raises:
        ServerError: when there is none, with what to install.
    """
    for folder in _package_folders(python):
        if (folder / PROGRAMS[0]).is_file():
            found = Installation(folder, libraries)
            found.programs()
            return found
    raise ServerError(f"{python} has no Mooncake: run {python} -m pip install {PACKAGE}")


def _package_folders(python: Path) -> list[Path]:
    folders = sorted(python.parent.parent.glob("lib*/python3*/*-packages/mooncake"))
    if python == Path(sys.executable):
        specification = importlib.util.find_spec("mooncake")
        if specification is not None:
            folders += [Path(place) for place in specification.submodule_search_locations or ()]
    return folders


def library_path(libraries: Path | None) -> dict[str, str]:
    """The environment variable that makes a process look into `libraries` first, then where the caller's
    own processes look."""
    places = [str(libraries)] if libraries is not None else []
    own = os.environ.get("LD_LIBRARY_PATH")
    if own:
        places.append(own)
    return {"LD_LIBRARY_PATH": ":".join(places)} if places else {}


def remedy(missing: Sequence[str]) -> str:
    """What to install so that the libraries named `missing` are found; a part of a line."""
    names = sorted({SYSTEM_PACKAGES[name][0] for name in missing if name in SYSTEM_PACKAGES})
    others = [name for name in missing if name not in SYSTEM_PACKAGES]
    advice = []
    if names:
        advice.append(f"install the system package {', '.join(names)} (Debian's name; on Fedora libibverbs)")
    if others:
        advice.append(f"install the system package that has {', '.join(others)}")
    return " and ".join(advice)


def missing_libraries(programs: Sequence[Path], libraries: Path | None = None) -> tuple[str, ...]:
    """Names of the libraries that `programs` ask for and would not find, in alphabetical order.

    The dynamic loader answers, so the answer is what will happen; no program is run.

    Raises:
        ServerError: when the loader refuses a program, for instance a build for another machine.
    """
    missing: set[str] = set()
    for program in programs:
        try:
            listed = subprocess.run(
                [program],
                env={"LD_TRACE_LOADED_OBJECTS": "1", "LC_ALL": "C", **library_path(libraries)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LOADER_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise ServerError(f"{program} cannot be run on this machine: {problem}") from problem
        absent = {line.split()[0] for line in listed.stdout.splitlines() if line.endswith("=> not found")}
        if listed.returncode and not absent:
            reason = (listed.stderr.strip().splitlines() or [f"exit code {listed.returncode}"])[-1]
            raise ServerError(f"{program} cannot be run on this machine: {reason}")
        missing |= absent
    return tuple(sorted(missing))
