"""The real vLLM, opened once per test process."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tailproof.targets.opening import DEFAULT, Target, open_target
from tailproof.targets.worker import Worker


@pytest.fixture(scope="session")
def vllm() -> Iterator[Worker]:
    """The default target; its environment is built when it is missing."""
    opened = open_target(Target.parse(DEFAULT), lambda line: print(line, file=sys.stderr))
    assert isinstance(opened, Worker)
    opened.describe()
    yield opened
    opened.close()
