"""The gate around a store client: what a target asks of the store waits here until the trace lets it go.

The target's own threads call `GatedClient` as they would call the real client and are stopped in it; the
thread that drives the trace decides who goes on, and how: through to the real client, or with an error.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

KINDS = ("put", "get", "lookup")
SENDER = "KVCacheStoreSendingThread"
TRANSFER_FAILED = -800
NO_ROOM = -200
PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.00005


class GateError(RuntimeError):
    """A target's thread did not come to rest; the text is one line."""


class RefusedError(RuntimeError):
    """What a call ends with where the trace asks for an exception."""


@dataclass(slots=True)
class Call:
    """One call of the client: `keys` and, for transfers, `addresses` (first byte of each key's block).

    `probe` marks a question whether the keys exist, which never fails at the gate. `results` holds one number
    per key (negative: an error), None where the call raised, then `error` tells what.
    """

    kind: str
    keys: list[str]
    addresses: list[int] = field(default_factory=list)
    probe: bool = False
    fate: str = ""
    results: list[int] | None = None
    error: str = ""
    go: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


class CountingQueue(queue.Queue[Any]):
    """A queue that knows how many of its readers are back for more: what tells idle from busy."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__(maxsize)
        self._added = 0
        self._asked = 0

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """As the base class."""
        self._added += 1
        super().put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As the base class."""
        self._asked += 1
        return super().get(block, timeout)

    def idle(self) -> int:
        """How many readers wait for an item."""
        return self._asked - (self._added - self.qsize())


class Gate:
    """Where the calls of one engine stop. `actions` is what the trace asks for, by kind; calls of a kind in
    `immediate` do not stop, since the driving thread itself waits for their answer; `passed` keeps them.
    Transfers of the kinds in `hollow` succeed without moving a byte: a planted fault."""

    def __init__(self, immediate: frozenset[str] = frozenset(), hollow: frozenset[str] = frozenset()) -> None:
        self.immediate, self.hollow = immediate, hollow
        self.actions = dict.fromkeys(KINDS, "release")
        self.passed: list[Call] = []
        self._waiting: dict[str, list[Call]] = {kind: [] for kind in KINDS}
        self._lock = threading.Lock()

    def arrive(self, call: Call) -> None:
        """Called by the target's thread: wait until the call may go on."""
        if call.kind in self.immediate:
            call.fate = self._fate(call.kind)
            self.passed.append(call)
            return
        with self._lock:
            self._waiting[call.kind].append(call)
        call.go.wait()

    def waiting(self, kind: str) -> int:
        """How many calls of a kind stand at the gate."""
        with self._lock:
            return len(self._waiting[kind])

    def let_go(self, kind: str, newest: bool = False) -> Call:
        """Let the oldest or newest waiting call go on; returns it, not ended yet."""
        with self._lock:
            call = self._waiting[kind].pop(-1 if newest else 0)
        call.fate = self._fate(kind)
        return call

    def drain(
        self,
        kind: str,
        at_rest: Callable[[int], bool],
        before: Callable[[Call], None],
        after: Callable[[Call], None],
    ) -> None:
        """Let calls of a kind go, one at a time, until none is left; only wait for rest when they are held.

        `at_rest` tells, given the number of calls at the gate, whether nothing of the kind runs elsewhere;
        `before` and `after` see each call with its thread standing still.

        Raises:
            GateError: when no rest is found in time.
        """
        while True:
            self.settle(kind, at_rest)
            if self.actions[kind] == "hold" or not self.waiting(kind):
                return
            self.run(self.let_go(kind), before, after)

    def run(self, call: Call, before: Callable[[Call], None], after: Callable[[Call], None]) -> None:
        """Send a call on its way and wait for its end.

        Raises:
            GateError: when it does not end in time.
        """
        before(call)
        call.go.set()
        if not call.ended.wait(PATIENCE_SECONDS):
            raise GateError(f"a {call.kind} of the store did not come back within {PATIENCE_SECONDS:g} s")
        after(call)

    def settle(self, kind: str, at_rest: Callable[[int], bool]) -> None:
        """Wait until every thread of a kind is idle or stands at the gate.

        Raises:
            GateError: when that does not happen in time.
        """
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not at_rest(self.waiting(kind)):
            if time.monotonic() > give_up:
                raise GateError(f"the target's threads for {kind} did not come to rest")
            time.sleep(_POLL_SECONDS)

    def _fate(self, kind: str) -> str:
        action = self.actions[kind]
        return "" if action in ("hold", "release", "newest") else action


class GatedClient:
    """What a target gets as its store client. `real` is the client behind it, `give_back` takes it back."""

    def __init__(self, gate: Gate, real: Any, give_back: Callable[[Any], None]) -> None:
        self._gate = gate
        self._real: Any = real
        self._give_back = give_back
        self._buffers: list[int] = []

    def setup(self, *values: Any, **options: Any) -> int:
        """The real client is connected already."""
        return 0

    def register_buffer(self, address: int, size: int) -> int:
        """Register memory with the real client, until `close`."""
        self._buffers.append(address)
        return int(self._real.register_buffer(address, size))

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """Which keys exist: a lookup, or the question of a save whether it has to put at all."""
        probe = threading.current_thread().name == SENDER
        call = Call("put" if probe else "lookup", list(keys), probe=probe)
        return self._pass(call, lambda: self._real.batch_is_exist(call.keys), lambda: [-1] * len(keys))

    def batch_put_from_multi_buffers(
        self, keys: Sequence[str], addresses: Sequence[Sequence[int]], sizes: Sequence[Any], *rest: Any
    ) -> list[int]:
        """Put blocks under keys."""
        call = Call("put", list(keys), [one[0] for one in addresses])
        return self._transfer(
            call,
            lambda count: self._real.batch_put_from_multi_buffers(
                list(keys[:count]), addresses[:count], sizes[:count], *rest
            ),
        )

    def batch_get_into_multi_buffers(
        self, keys: Sequence[str], addresses: Sequence[Sequence[int]], sizes: Sequence[Any], *rest: Any
    ) -> list[int]:
        """Get blocks under keys."""
        call = Call("get", list(keys), [one[0] for one in addresses])
        return self._transfer(
            call,
            lambda count: self._real.batch_get_into_multi_buffers(
                list(keys[:count]), addresses[:count], sizes[:count], *rest
            ),
        )

    def remove_all(self, force: bool = False) -> int:
        """Empty the store."""
        return int(self._real.remove_all(force))

    def close(self) -> None:
        """Give the real client back; nothing may be called afterwards."""
        real, self._real = self._real, None
        if real is not None:
            for address in self._buffers:
                real.unregister_buffer(address)
            self._give_back(real)

    def _transfer(self, call: Call, forward: Callable[[int], list[int]]) -> list[int]:
        def passing() -> list[int]:
            return [0] * len(call.keys) if call.kind in self._gate.hollow else forward(len(call.keys))

        def failing() -> list[int]:
            count = len(call.keys) - 1
            if call.fate != "part":
                return [NO_ROOM if call.fate == "full" else TRANSFER_FAILED] * (count + 1)
            return [*(forward(count) if count else []), TRANSFER_FAILED]

        return self._pass(call, passing, failing)

    def _pass(
        self, call: Call, forward: Callable[[], list[int]], failing: Callable[[], list[int]]
    ) -> list[int]:
        self._gate.arrive(call)
        try:
            if call.fate == "raise" and not call.probe:
                raise RefusedError("the trace makes this call fail")
            results = failing() if call.fate and not call.probe else list(forward())
            call.results = results
            return results
        except Exception as problem:
            call.error = type(problem).__name__
            raise
        finally:
            call.ended.set()
