"""The option that rewrites what scenarios expect."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--rewrite`."""
    parser.addoption(
        "--rewrite", action="store_true", help="write what the scenarios show into their files, and pass"
    )
