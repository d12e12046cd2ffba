"""Runs the program in the process of a test, and says how it ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tailproof.cli import main as cli


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The one line that a refused command said on standard error; nothing else was said."""
        assert self.out == ""
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1
        return self.err.rstrip("\n")

    @property
    def document(self) -> dict[str, Any]:
        """What it printed, as JSON."""
        found: dict[str, Any] = json.loads(self.out)
        return found


Command = Callable[..., Ended]


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Works in a new folder, with a cache of its own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TAILPROOF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tailproof(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the program in this process, with a list of words as its command line."""

    def command(*words: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["tailproof", *map(str, words)])
        capsys.readouterr()
        code: Any = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return Ended(code or 0, out, err)

    return command
