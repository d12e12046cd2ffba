"""Stands in for the model runner: content in the blocks that the scheduler hands out, every read checked.

The order of one step is the runner's (vllm/v1/worker/gpu_model_runner.py, mamba_utils.py), named by the
letters of the content check:

a  clear the blocks on the zeroing list, so that no attention reads what was a state
b  copy blocks, by vLLM's own routine, all of a step in one call
c  copy each request's Mamba state to the column that this step runs in
d  verify every read: states before anything is written, attention KV after this step's KV is there (as
   in a layer, where writing KV comes before reading it)
e  write the KV of all scheduled tokens, drafts included, and one state per speculative slot
f  export the internal checkpoint into the column before the running one; kernels do this before they
   write the final state, and the worker's table may still hold a block there that has moved on
g  copy the state of a block boundary that the accepted tokens crossed into the column of that block

Block tables are kept as the worker keeps them: from the scheduler's output alone.

The KV of a draft model depends on the token after too, so where two requests with different continuations
publish the same prefix, the last token of a block holds what the writer's continuation gave. That costs
acceptance, never an output, and no hash of this vLLM covers it: groups of the draft model are checked as if
they belonged to the target model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from adapters.memory import Content, Memory
from adapters.protocol import AdapterError
from spec.exact_model import KV_MASK, first_state, output_token
from spec.geometry import Geometry, GroupGeometry
from spec.observation import FailedRead
from spec.trace import Configuration

STEPS = "abcdefg"
NULL_BLOCK = 0


@dataclass(slots=True)
class Live:
    """One request as the worker knows it: block ids per group, the column of its Mamba state (None before
    the first step), how many tokens the last step accepted, how many tokens are `known` (prompt and
    sampled) and how far it has `computed`."""

    content: Content
    first: int
    prompt: int
    known: int
    computed: int = 0
    tables: list[list[int]] = field(default_factory=list)
    tensors: list[torch.Tensor | None] = field(default_factory=list)
    column: int | None = None
    accepted: int = 1

    def replace_tables(self, blocks: Sequence[Sequence[int]]) -> None:
        """A new or resumed request: all its blocks."""
        self.tables = [list(group) for group in blocks]
        self.tensors = [None] * len(self.tables)
        self.column, self.accepted = None, 1

    def append_blocks(self, blocks: Sequence[Sequence[int]]) -> None:
        """A running request: its additional blocks."""
        for index, group in enumerate(blocks):
            if group:
                self.tables[index].extend(group)
                self.tensors[index] = None

    def table(self, group: int, device: str) -> torch.Tensor:
        """The block ids of a group as a tensor, shape [blocks]."""
        tensor = self.tensors[group]
        if tensor is None:
            tensor = torch.tensor(self.tables[group], dtype=torch.int64, device=device)
            self.tensors[group] = tensor
        return tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens sampled for a request in one step; `first` is the index of the first one among its outputs."""

    first: int
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Work:
    """What one request computes in a step: tokens [start, end), the last `drafts` of them speculative and
    the first `accepted` of those right."""

    id: str
    live: Live
    start: int
    end: int
    drafts: int
    accepted: int

    @property
    def sure(self) -> int:
        """The length without the drafts."""
        return self.end - self.drafts


class Runner:
    """The memory of one engine and the requests running on it."""

    def __init__(
        self,
        configuration: Configuration,
        geometry: Geometry,
        copy_blocks: Callable[[Any], None],
        checkpoints: Callable[..., tuple[list[int], list[int]]],
        omit: str,
        memory: Memory,
        units: tuple[int, int | None],
    ) -> None:
        self.configuration = configuration
        self.hash_unit, self.hit_alignment = units
        self.geometry = geometry
        self.memory = memory
        self.mamba, self.attention, self.windows = geometry.mamba, geometry.attention, geometry.windows
        self.device = str(memory.pages.device)
        self.omit = omit
        self._copy_blocks = copy_blocks
        self._checkpoints = checkpoints
        self.requests: dict[str, Live] = {}
        self.failed: list[FailedRead] = []
        self.verified = 0
        self.work: list[Work] = []

    def submit(self, request: str, prompt: Sequence[int], outputs: int, salt: str | None) -> None:
        """A request arrives; its content is known from now on, past its last output for drafts too."""
        steps = 2 if self.configuration.asynchronous else 1
        extra = outputs + steps * (self.configuration.speculative + 1)
        content = Content(prompt, extra, salt, self.device)
        self.requests[request] = Live(content, first_state(salt), len(prompt), len(prompt))

    def forget(self, request: str) -> None:
        """A request has ended."""
        self.requests.pop(request, None)

    def execute(self, output: Any, accept: int) -> dict[str, Sampled]:
        """One step of the worker for a SchedulerOutput; returns what it sampled by request, in order."""
        work = self.work = self._receive(output, accept)
        self.verified = 0
        if output.new_block_ids_to_zero and "a" not in self.omit:
            self.memory.zero(output.new_block_ids_to_zero)
        if output.kv_cache_block_copies and "b" not in self.omit:
            self._copy_blocks(output.kv_cache_block_copies)
        for group in self.mamba:
            for item in work:
                self._move_state(item, group.index)
        held = [self._held_state(item) for item in work]
        for item, state in zip(work, held, strict=True):
            self._write_kv(item, state)
        for item in work:
            self._verify_kv(item)
        sampled = {}
        for item, state in zip(work, held, strict=True):
            first = item.live.known - item.live.prompt
            sampled[item.id] = Sampled(first, self._write_states(item, state))
        return sampled

    def _receive(self, output: Any, accept: int) -> list[Work]:
        starts: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            fresh = self.requests[new.req_id]
            fresh.replace_tables(new.block_ids)
            starts[new.req_id] = fresh.computed = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for index, request in enumerate(cached.req_ids):
            blocks = cached.new_block_ids[index]
            starts[request] = cached.num_computed_tokens[index]
            live = self.requests[request]
            if request in cached.resumed_req_ids:
                live.replace_tables(blocks)
                live.computed = starts[request]
                live.known = live.prompt + cached.num_output_tokens[index]
            elif blocks is not None:
                live.append_blocks(blocks)
            if self.configuration.asynchronous:
                # The scheduler counts drafts as accepted that it has no answer about yet; the worker knows.
                starts[request] = live.computed
        work = []
        admitted = {new.req_id for new in output.scheduled_new_reqs} | set(cached.resumed_req_ids)
        for request, count in output.num_scheduled_tokens.items():
            drafts = output.scheduled_spec_decode_tokens.get(request, ())
            usable = sum(token >= 0 for token in drafts)
            if self.configuration.asynchronous and request not in admitted:
                usable = len(drafts)
            start = starts[request]
            work.append(
                Work(
                    id=request,
                    live=self.requests[request],
                    start=start,
                    end=start + count,
                    drafts=len(drafts),
                    accepted=min(accept, usable),
                )
            )
        return work

    def _move_state(self, item: Work, group: int) -> None:
        live, block = item.live, self.geometry.mamba_block
        table = live.tables[group]
        previous = live.column
        if previous is None:
            previous = (item.start - 1) // block
        current = -(-item.end // block) - 1
        moved = previous not in (-1, current)
        if moved and "c" not in self.omit:
            state = self.memory.read_state(table[previous + live.accepted - 1])
            self.memory.write_state(table[current], state)
        if group == self.mamba[-1].index:
            live.column = current
            if moved:
                live.accepted = 1

    def _held_state(self, item: Work) -> int:
        """The state from which the step computes, as the memory holds it; reads of all groups verified."""
        if item.start == 0:
            return item.live.first
        assert item.live.column is not None
        column = item.live.column + item.live.accepted - 1
        expected = int(item.live.content.state[item.start])
        held = expected
        for group in self.mamba:
            block = item.live.tables[group.index][column]
            if "d" in self.omit:
                continue
            self.verified += 1
            if block == NULL_BLOCK:
                self._fail(item, group.index, item.start, "null")
            elif not self.memory.holds_state(block, expected):
                self._fail(item, group.index, item.start, "state")
                held = self.memory.read_state(block)
        return held

    def _write_kv(self, item: Work, held: int) -> None:
        content, sure = item.live.content, item.sure
        right = min(sure + item.accepted, item.end)
        if held == int(content.state[item.start]):
            values = content.kv[item.start : item.end]
        else:
            values = content.drifted(item.start, item.end, held) ^ KV_MASK
        if right < item.end:
            values = values.clone()
            values[right - item.start :].bitwise_not_()
        if "e" in self.omit:
            return
        for group in (*self.attention, *self.windows):
            table = item.live.tables[group.index]
            touched = table[item.start // group.block : -(-item.end // group.block)]
            if NULL_BLOCK in touched or len(table) * group.block < item.end:
                raise AdapterError(
                    f"request {item.id!r} has no block of group {group.index} for tokens "
                    f"[{item.start}, {item.end})"
                )
            blocks = item.live.table(group.index, self.device)
            self.memory.write_kv(blocks, group.block, item.start, values)

    def _verify_kv(self, item: Work) -> None:
        if "d" in self.omit:
            return
        for group in (*self.attention, *self.windows):
            self._verify_cleared(item, group)
            start = max(item.start - group.window + 1, 0) if group.window else 0
            if item.start <= start:
                continue
            blocks = item.live.table(group.index, self.device)
            self.verified += item.start - start
            expected = item.live.content.kv[start : item.start]
            wrong = self.memory.first_wrong_kv(blocks, group.block, expected, start)
            if wrong is not None:
                block = item.live.tables[group.index][wrong // group.block]
                self._fail(item, group.index, wrong, "null" if block == NULL_BLOCK else "kv")

    def _verify_cleared(self, item: Work, group: GroupGeometry) -> None:
        """Attention reads whole blocks and masks what is past the end, which must be numbers all the same."""
        column = (item.end - 1) // group.block
        if item.end % group.block == 0:
            return
        block = item.live.tables[group.index][column]
        if self.memory.strange_after(block, item.end - column * group.block, group.block):
            self._fail(item, group.index, item.end, "stale")

    def _write_states(self, item: Work, held: int) -> list[int]:
        """Write states of all kinds; returns the tokens sampled (none for an unfinished prefill)."""
        live, content = item.live, item.live.content
        block = self.geometry.mamba_block
        assert live.column is not None
        drifted = content.drifted(item.start, item.end, held)
        slots = drifted[item.sure - item.start - 1 :].tolist()
        slots = [state if slot <= item.accepted else ~state for slot, state in enumerate(slots)]
        position, column = self._export(item)
        for group in self.mamba:
            table = live.tables[group.index]
            if position and table[column] != NULL_BLOCK:
                self.memory.write_state(table[column], int(drifted[position - item.start - 1]))
            if "e" not in self.omit:
                for slot, state in enumerate(slots):
                    target = table[live.column + slot]
                    if target == NULL_BLOCK:
                        raise AdapterError(
                            f"request {item.id!r} would write its running state to the null block"
                        )
                    self.memory.write_state(target, state)
        live.computed = item.sure
        if item.sure < live.known:
            live.accepted = 1
            return []
        live.computed += item.accepted
        live.accepted = 1 + item.accepted
        live.known += 1 + item.accepted
        self._keep_boundary(item, block)
        return [output_token(state) for state in slots[: item.accepted + 1]]

    def _export(self, item: Work) -> tuple[int, int]:
        alignment = self.mamba[0].checkpoint_alignment
        if alignment is None or item.drafts or "f" in self.omit:
            return 0, -1
        offsets, columns = self._checkpoints(
            [item.end],
            [item.end - item.start],
            hash_block_size=self.hash_unit,
            mamba_block_size=self.geometry.mamba_block,
            checkpoint_alignment=alignment,
            drop_eagle_block=self.geometry.eagle,
            cache_hit_alignment_tokens=self.hit_alignment,
        )
        return (item.start + offsets[0], columns[0]) if offsets[0] else (0, -1)

    def _keep_boundary(self, item: Work, block: int) -> None:
        live = item.live
        assert live.column is not None
        boundary = (item.sure + item.accepted) // block * block
        if boundary < item.sure:
            return
        slot, column = boundary - item.sure, boundary // block - 1
        if column == live.column:
            live.accepted = 1
        if "g" in self.omit or (column == live.column and slot == 0):
            return
        for group in self.mamba:
            table = live.tables[group.index]
            if table[column] != NULL_BLOCK:
                self.memory.write_state(table[column], self.memory.read_state(table[live.column + slot]))

    def _fail(self, item: Work, group: int, position: int, what: str) -> None:
        self.failed.append(FailedRead(item.id, group, position, what))
