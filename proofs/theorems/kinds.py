"""The kinds of functions that theorems take: membership predicates, and functions of the spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spec.lifetime import Pool
from spec.tail import Span

Predicate = Callable[[int], bool]
Checkpoint = Callable[[int, int, bool], int]
Margin = Callable[[int, int, bool, bool], int]
Bound = Callable[[int, int, int, int], int]
Serves = Callable[[int, int, int], bool]
StateServes = Callable[[int, Predicate], bool]
Extent = Callable[[Predicate, int, int, int, bool], int]
Hit = Callable[[int, int, Iterable[Predicate]], int]
Turn = Callable[[int, int, Predicate], int]
StopsAt = Callable[[int], Iterable[int]]
ChunkEnd = Callable[[int, int, int, int, int, StopsAt], int]
Stops = Callable[..., dict[str, int]]
Exported = Callable[[int, int, int, int | None, int, int, int | None, Callable[[int], int]], int]
SpanOf = Callable[[int, int], Span]
Tail = Callable[[int, int, int, int, int, bool], Span]
BlocksOf = Callable[[Span, int], Span]
KeyOf = Callable[[int, Span, int], int]
Saved = Callable[[int, Span, Span, int], bool]
Asked = Callable[[int, int, int], bool]
Completes = Callable[[int, int, int], bool]
Step = Callable[[Pool, str, int], Pool]
Possible = Callable[[Pool, str, int], bool]
Reset = Callable[[Pool], Pool]
