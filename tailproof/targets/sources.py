"""Finds the source of a target; nothing of it is imported, and a version that is not installed is fetched."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tailproof.targets.environments import known_targets, locate
from tailproof.targets.opening import Target, TargetNameError
from tailproof.targets.problems import SourceProblem
from tailproof.targets.versions import PACKAGE, fetched

_LOOK_UP = "import importlib.util as u; s = u.find_spec('vllm'); print(s.origin if s and s.origin else '')"


def source_of(target: Target, progress: Callable[[str], None] = lambda line: None) -> Path:
    """The package folder of a target's source; nothing of it is imported.

    An installed version is read where it is installed, else its wheel is fetched.

    Raises:
        TargetNameError: for a target that has no vLLM source.
        SourceProblem: when there is none where the name points, or it cannot be fetched.
    """
    if target.kind == "reference":
        raise TargetNameError(
            f"{target.name} has no source of vLLM: use vllm==VERSION, vllm@PATH or python:PATH"
        )
    if target.kind == "installed":
        installed = _installed(target)
        return installed if installed is not None else fetched(target.argument, progress)
    path = Path(target.argument).expanduser().absolute()
    if target.kind == "interpreter":
        return _of_interpreter(target, path)
    if (path / PACKAGE / "__init__.py").is_file():
        return path / PACKAGE
    raise SourceProblem(f"{target.name}: {path} holds no vllm package")


def _installed(target: Target) -> Path | None:
    if target.name not in known_targets():
        return None
    environment = locate(target.name)
    if not environment.ready:
        return None
    found = sorted(environment.python.parent.parent.glob(f"lib/python*/site-packages/{PACKAGE}"))
    return found[0] if found else None


def _of_interpreter(target: Target, python: Path) -> Path:
    if not python.is_file():
        raise SourceProblem(f"{target.name}: there is no interpreter at {python}")
    try:
        said = subprocess.run(
            [str(python), "-I", "-c", _LOOK_UP], capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as problem:
        raise SourceProblem(f"{target.name}: {python} cannot say where vllm is: {problem}") from problem
    if not said:
        raise SourceProblem(f"{target.name}: {python} has no vllm package")
    return Path(said).parent
