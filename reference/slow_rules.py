"""The slow engine's rules, one small method each, so that a planted fault is a subclass that overrides one.

Here too is the state that the rules are stated on; what drives them is in `reference.engine`.
"""

from __future__ import annotations

import time

from reference.cache import Key, Lookup, SlowCache
from reference.history import History, Prefixes
from reference.plan import Plan
from reference.publish import Publications, publications
from spec.chunking import can_export, junction_stop, required_stops
from spec.exact_model import output_token
from spec.geometry import Geometry
from spec.observation import Counters, Entry, Event
from spec.trace import Configuration


class SlowRules:
    """What one configuration of the reference decides, alive for one trace."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.geometry = self.layout(Geometry.of(configuration))
        self.prefixes = Prefixes(configuration.unit, self.geometry.hash_lookahead)
        self.cache = SlowCache(self.geometry)
        self.histories: dict[str, History] = {}
        self.content: dict[Key, int] = {}
        self.owners: dict[Key, Entry] = {}
        self.running: list[History] = []
        self.waiting: list[History] = []
        self.expected: dict[str, list[int]] = {}
        self.held: dict[str, int] = {}
        self.late: dict[str, set[tuple[int, int]]] = {}
        self.sampled: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.leaked = 0
        self.pending: list[Event] = []
        self.ending: list[History] = []
        self._began = time.perf_counter()

    # The rules, one method each.

    def layout(self, geometry: Geometry) -> Geometry:
        """The geometry that the engine works with."""
        return geometry

    def lookup(self, history: History) -> Lookup:
        """What a request may reuse."""
        return self.cache.lookup(history)

    def publications(self, history: History, start: int, end: int, drafts: int) -> Publications:
        """What a chunk leaves behind."""
        return publications(self.configuration, self.geometry, history, start, end, drafts)

    def published(self, history: History, left: Publications) -> set[tuple[int, int]]:
        """The entries (group, position) that a chunk makes visible."""
        return set(left.must)

    def chunk_end(self, history: History, start: int, budget: int) -> int:
        """Where the next prefill chunk ends; `start` when the budget allows none."""
        export = self.export(history, start, min(history.known, start + budget))
        end = self.cut(history, start, budget, export)
        # A chunk that is cut no longer ends the prefill, and exports nothing.
        return self.cut(history, start, budget, 0) if export and end < history.prefill_end else end

    def cut(self, history: History, start: int, budget: int, export: int) -> int:
        """Where a chunk ends that exports that state, 0 for none."""
        block, lookahead = self.geometry.mamba_block, self.geometry.lookahead
        end = min(history.known, start + budget)
        if end < history.prefill_end:
            aligned = end // block * block
            if aligned > start or block <= self.configuration.budget:
                end = aligned
        stops = self.stops(history, start, export)
        if start % block and not export:
            stops["boundary"] = start // block * block + block
        stops = {name: at for name, at in stops.items() if not 0 < history.known - at < lookahead}
        end = min((stop for stop in stops.values() if start < stop < end), default=end)
        left = history.known - end
        if 0 < left < lookahead:
            end -= lookahead - left
        return max(end, start)

    def export(self, history: History, start: int, end: int) -> int:
        """What the chunk [start, end) would export at the end of the prefill, 0 for nothing."""
        geometry = self.geometry
        position = geometry.checkpoint(end)
        valid = end >= history.prefill_end and can_export(
            start,
            end,
            position,
            geometry.unit,
            geometry.mamba_block,
            geometry.mamba[0].checkpoint_alignment,
        )
        return position if valid else 0

    def stops(self, history: History, start: int, export: int) -> dict[str, int]:
        """The required stops past `start`, by name."""
        geometry = self.geometry
        return required_stops(
            start=start,
            prompt=history.prompt,
            tokens=history.known,
            can_export=geometry.mamba[0].checkpoint_alignment is not None,
            export=export,
            junction=junction_stop(
                history.junction, history.prompt, geometry.mamba_block, geometry.junctions
            ),
            checkpoint=geometry.checkpoint,
            block_checkpoint=geometry.block_checkpoint,
            lookahead=geometry.lookahead,
        )

    def begin(self, history: History, found: Lookup, plan: Plan) -> bool:
        """Let a waiting request begin after its hit; False when it must wait."""
        raise NotImplementedError

    def must_wait(self, history: History, hit: int, fresh: set[Key]) -> bool:
        """Whether a request must wait a step because the state at its hit is being computed in this one."""
        return hit > 0 and any(
            self.cache.key(group.index, history, hit) in fresh for group in self.geometry.mamba
        )

    def stored(self, kind: str, history: History, position: int, state: int) -> int:
        """The content kept under an entry of a group kind at `position`."""
        return state

    def sample(self, history: History, state: int) -> int:
        """The token sampled from a state."""
        return output_token(state)

    def reported(self, history: History, hit: int) -> int:
        """The tokens reported as reused."""
        return hit

    def blocks_of(self, history: History) -> int:
        """Blocks that a running request holds."""
        return sum(-(-history.known // group.block) for group in self.geometry.groups)

    def released(self, history: History) -> int:
        """Blocks given back when a request ends, of those it held."""
        return self.blocks_of(history)

    def may_run(self, history: History) -> bool:
        """Whether a running request may be scheduled at all."""
        return True

    def advanced(self, history: History, computed: int) -> int:
        """Where the next chunk of a request begins when `computed` tokens are done."""
        return computed

    def has_ended(self, history: History) -> bool:
        """Whether a request has all its outputs."""
        return history.produced >= history.submit.outputs

    def units(self) -> tuple[int, int] | None:
        """The hash unit and the grid of hits in use."""
        return self.geometry.unit, self.geometry.grid

    def reset_clears(self) -> bool:
        """Whether a reset really empties the cache."""
        return True

    def told(self, entry: Entry) -> Event | None:
        """The KV event for an entry that became visible."""
        block = self.geometry.groups[entry.group].block
        start = (entry.position - 1) // block * block
        return Event("stored", (entry,), start, entry.position - start)

    def counted(self, history: History, hit: int) -> Counters:
        """What an admission adds to the counters."""
        if history.hit is None:
            return Counters(requests=1, queries=history.known, hits=hit)
        return Counters(preempted_requests=1, preempted_queries=history.known, preempted_hits=hit)
