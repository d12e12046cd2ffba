"""Remembers, along a run, who computed and who registered what, in which step and why it was kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from reference.cache import Key
from reference.forecast import ChunkForecast
from reference.history import History
from reference.oracle import Oracle
from spec.chunking import junction_stop
from spec.observation import Entry
from spec.retention import keeps_interval
from tailproof.judge.step import Step

KINDS = {"full": "attention", "window": "window", "mamba": "state"}


@dataclass(frozen=True, slots=True)
class Registration:
    """An entry that became visible in observation `index`, by the chunk of `request` over tokens `span` (its
    owner and None where no chunk of the step has its prefix); `how` that chunk made its content, "" when it
    did not."""

    index: int
    request: str
    entry: Entry
    how: str
    span: tuple[int, int] | None = None


@dataclass(slots=True)
class Evidence:
    """What was seen until now. `registered` holds what is visible, `states` every Mamba state computed on
    the hash grid since the last reset, as (observation, request, how), `chunks` all chunks since then, by
    observation."""

    oracle: Oracle
    registered: dict[Key, Registration] = field(default_factory=dict)
    states: dict[Key, tuple[int, str, str]] = field(default_factory=dict)
    chunks: list[tuple[int, ChunkForecast]] = field(default_factory=list)

    def key(self, entry: Entry) -> Key:
        """The key of an entry."""
        return self.oracle.cache.key_of(entry, self.oracle.histories)

    def registrations(self, index: int, step: Step) -> list[Registration]:
        """What the step registered, in the order of groups and positions."""
        found = []
        for entry in sorted(step.observation.published, key=lambda entry: (entry.group, entry.position)):
            chunk = self._chunk(entry, step)
            if chunk is None:
                found.append(Registration(index, entry.request, entry, ""))
                continue
            span = chunk.scheduled.start, chunk.scheduled.end
            how = self._how(entry, chunk, step)
            found.append(Registration(index, chunk.history.id, entry, how, span))
        return found

    def learn(self, index: int, step: Step) -> None:
        """Take a step over."""
        observation = step.observation
        if observation.do == "reset_local" and observation.reset:
            self.registered.clear()
            self.states.clear()
            self.chunks.clear()
        for chunk in step.expected.chunks:
            self.chunks.append((index, chunk))
            for group, position in self._computed_states(chunk):
                key = self.oracle.cache.key(group, chunk.history, position)
                how = "exported" if position == chunk.publications.export else "chunk end"
                self.states.setdefault(key, (index, chunk.history.id, how))
        for entry in observation.withdrawn:
            self.registered.pop(self.key(entry), None)
        for one in self.registrations(index, step):
            self.registered[self.key(one.entry)] = one

    def why_kept(self, history: History, position: int, junction: int) -> str:
        """The retention reason for a Mamba state of a request, "" when there is none; `junction` is what the
        request has learned of by now (0: none)."""
        geometry, configuration = self.oracle.geometry, self.oracle.configuration
        block, prompt = geometry.mamba_block, history.prompt
        stop = junction_stop(junction, prompt, block, geometry.junctions)
        if position == geometry.checkpoint(prompt):
            return "the resend checkpoint"
        if position in geometry.replay_boundaries(prompt, block):
            return "a replay boundary"
        if junction and position in (junction, stop, junction // block * block):
            return "the junction"
        if keeps_interval(position, block, configuration.retention):
            return "a block end" if configuration.retention is None else "a multiple of the retention"
        return ""

    def computed_before(self, group: int, history: History) -> list[tuple[int, str]]:
        """The states computed so far on a request's prefix: position, and by whom and when."""
        unit = self.oracle.geometry.unit
        found = []
        for position in range(unit, len(history.numbers) * unit + 1, unit):
            state = self.states.get(self.oracle.cache.key(group, history, position))
            if state is not None:
                index, request, how = state
                by = f"{request}, step {index}"
                found.append((position, f"{by}, {how}" if how == "exported" else by))
        return found

    def passing(self, entry: Entry) -> tuple[int, ChunkForecast] | None:
        """The last chunk that ran past the end of an entry, and its observation; None where none did."""
        unit, owner = self.oracle.geometry.unit, self.oracle.histories[entry.request]
        for index, chunk in reversed(self.chunks):
            inside = chunk.scheduled.start < entry.position < chunk.scheduled.end
            if inside and chunk.history.shares(owner, entry.position, unit):
                return index, chunk
        return None

    def _chunk(self, entry: Entry, step: Step) -> ChunkForecast | None:
        """The chunk that registered an entry, in the order of scheduling: of those with its prefix the first
        that left something to register there, else the first that reaches its position."""
        having = [chunk for chunk in step.expected.chunks if step.begins(chunk.history, entry)]
        at, block = entry.position, self.oracle.geometry.mamba_block
        left = [
            chunk
            for chunk in having
            if at in (chunk.publications.sure, chunk.publications.export)
            # The block that a chunk begins inside of is in its table when it is run past.
            or (chunk.scheduled.start % block and 0 < at - chunk.scheduled.start < block and at % block == 0)
        ]
        reaching = [chunk for chunk in having if chunk.scheduled.start < at <= chunk.scheduled.end]
        first = left if step.kind(entry) == "mamba" else reaching
        return next(iter((*first, *reaching, *having)), None)

    def _computed_states(self, chunk: ChunkForecast) -> list[tuple[int, int]]:
        unit, reach = self.oracle.geometry.unit, len(chunk.history.final_numbers) * self.oracle.geometry.unit
        ends = {chunk.publications.sure, chunk.publications.export, chunk.history.crossed_boundary}
        return [
            (group.index, end)
            for group in self.oracle.geometry.mamba
            for end in sorted(ends)
            if 0 < end <= reach and end % unit == 0
        ]

    def _how(self, entry: Entry, chunk: ChunkForecast, step: Step) -> str:
        key, left = self.key(entry), chunk.publications
        if step.kind(entry) != "mamba":
            return "computed" if key in step.expected.may or key in step.expected.computed else ""
        if entry.position == left.export:
            return "exported"
        if entry.position == left.sure:
            return "chunk end"
        if self.oracle.ledger.loading.get(entry.request) == entry.position:
            return "loaded"
        index, request, _ = self.states.get(key, (0, "", ""))
        return f"computed in step {index}" if request == chunk.history.id else ""
