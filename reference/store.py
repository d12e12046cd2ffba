"""The slow store: exact content under keys, and the gates at which what is asked of it waits or fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

from reference.cache import Key
from spec.observation import Entry

# A piece of work of one thread: it stops at the gate before each call and is told there how the call fares.
Work = Generator[None, str, None]
OPEN = ("release", "hold", "newest")


class SlowStore:
    """What all engines share. A key is (group, identity of a prefix); its content is a number that stands for
    the exact bytes: the state after the prefix, whatever the group holds.

    `alive` tells whether it runs. A store that does not run holds nothing and answers nothing.
    """

    def __init__(self) -> None:
        self.alive = True
        self._contents: dict[Key, int] = {}
        self._entries: dict[Key, Entry] = {}
        self._shown: dict[Key, Entry] = {}

    def keys(self) -> set[Key]:
        """All keys."""
        return set(self._contents)

    def holds(self, key: Key) -> bool:
        """Whether there is anything under a key."""
        return key in self._contents

    def put(self, key: Key, entry: Entry, content: int) -> bool:
        """Store under a key, where there is nothing yet; whether the store took it."""
        if self.alive and key not in self._contents:
            self._contents[key], self._entries[key] = content, entry
        return self.alive

    def get(self, key: Key) -> int | None:
        """What is stored under a key, None for nothing."""
        return self._contents.get(key)

    def changes(self) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
        """What the store gained and lost since this was last asked; what it gained by group and position."""
        gone = [key for key in self._shown if key not in self._contents]
        dropped = tuple(self._shown.pop(key) for key in gone)
        new = [key for key in self._contents if key not in self._shown]
        new.sort(key=lambda key: _place(self._entries[key]))
        self._shown.update((key, self._entries[key]) for key in new)
        return tuple(self._entries[key] for key in new), dropped

    def drop(self, count: int) -> None:
        """Lose `count` keys, the last ones that `changes` told first."""
        for key in list(reversed(self._shown))[:count]:
            self._contents.pop(key, None)

    def reset(self) -> None:
        """Lose everything."""
        self._contents.clear()

    def kill(self) -> None:
        """Stop running; what was stored is gone."""
        self.alive = False
        self.reset()

    def restart(self) -> None:
        """Run again, empty."""
        self.alive = True
        self.reset()


def _place(entry: Entry) -> tuple[int, int, str]:
    return entry.group, entry.position, entry.request


class Line:
    """What one engine asks of the store, calls of one kind: `threads` of them can stand at the gate at once,
    the others wait behind them in order. `action` is what the gate does with those that come."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.action = "release"
        self._queue: deque[Work] = deque()
        self._gate: list[Work] = []

    @property
    def waiting(self) -> int:
        """How many calls stand at the gate."""
        return len(self._gate)

    @property
    def fate(self) -> str:
        """How a call fares that goes through now: "" well, else the kind of its error."""
        return "" if self.action in OPEN else self.action

    def add(self, work: Work) -> None:
        """Queue a piece of work."""
        self._queue.append(work)

    def discard(self, work: Work) -> None:
        """Forget a piece of work that has not come to the gate."""
        if work in self._queue:
            self._queue.remove(work)

    def run(self) -> None:
        """Let all go on as far as the gate lets them, the oldest first."""
        self._fill()
        while self._gate and self.action != "hold":
            self._pass(0)

    def act(self, action: str) -> None:
        """Set the gate; what it lets go, goes at once.

        `newest` lets the latest of the calls at the gate go and holds the others.
        """
        if action == "newest":
            self._fill()
            if self._gate:
                self._pass(-1)
            self.action = "hold"
            return
        self.action = action
        self.run()

    def release_held(self) -> None:
        """Open a gate that holds; one that fails stays as it is."""
        if self.action == "hold":
            self.act("release")

    def _fill(self) -> None:
        """Let queued work come to the gate while a thread is free."""
        while self._queue and len(self._gate) < self.threads:
            work = self._queue.popleft()
            if next(work, "ended") is None:
                self._gate.append(work)

    def _pass(self, index: int) -> None:
        """Let a call at the gate go; its thread comes back to the gate with its next call, if it has one."""
        work = self._gate.pop(index)
        try:
            work.send(self.fate)
        except StopIteration:
            self._fill()
        else:
            self._gate.append(work)
