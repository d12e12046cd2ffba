"""What is said, in one line each, when a target or something that it needs cannot be had."""

from __future__ import annotations


class TargetProblem(Exception):
    """A target could not be run (never a divergence). The text is one line; `detail` may hold more."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class EnvironmentProblem(TargetProblem):
    """An environment cannot be named, built or removed; the line says what to do."""


class SourceProblem(TargetProblem):
    """The files of a version cannot be had; the line says why."""


class LibraryProblem(TargetProblem):
    """A system library is missing and cannot be fetched; the line says what to install."""
