"""Planted faults: of the reference, and of copies of the real vLLM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def named(space: Mapping[str, object], kind: type[T]) -> dict[str, type[T]]:
    """The planted faults that a module defines (its `vars()`), by name: `TailTwice` is `tail-twice`."""
    return {
        re.sub("(?<!^)(?=[A-Z])", "-", name).lower(): one
        for name, one in space.items()
        if isinstance(one, type) and issubclass(one, kind) and one.__module__ == space["__name__"]
    }
