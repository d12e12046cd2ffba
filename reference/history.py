"""Histories: the tokens of each request, and an identity for every prefix at a hash boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spec.exact_model import outputs, plain, with_media
from spec.trace import TURN, Submit, prompt_length, prompt_tokens

# Further apart than the units of any request, and than there are salts.
_APART = 1 << 32


class Prefixes:
    """Gives equal prefixes (same tokens and media, same salt and adapter) the same number, different ones
    different numbers. Where hashes cover `lookahead` tokens past their unit, these belong to the prefix
    too."""

    def __init__(self, unit: int, lookahead: int = 0) -> None:
        self.unit = unit
        self.lookahead = lookahead
        self._roots: dict[str | None, int] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}

    def root(self, salt: str | None) -> int:
        """The identity of the empty prefix under a salt and an adapter (`Submit.root`)."""
        return self._roots.setdefault(salt or None, -1 - len(self._roots))

    def extend(self, numbers: list[int], tokens: Sequence[int], salt: str | None) -> None:
        """Add the identities of all whole units of `tokens` that `numbers` does not have yet."""
        unit, whole = self.unit, self.unit + self.lookahead
        parent = numbers[-1] if numbers else self.root(salt)
        for start in range(len(numbers) * unit, len(tokens) - whole + 1, unit):
            key = (parent, tuple(tokens[start : start + whole]))
            parent = self._numbers.setdefault(key, len(self._numbers))
            numbers.append(parent)


@dataclass(slots=True)
class History:
    """One request. Lengths are in tokens.

    `tokens` are those known so far (prompt, with the media behind it, then fed outputs), `numbers` the
    identities of its known prefixes, `final_numbers` of all that ever will be. `computed` tokens are in its
    cache; `reached_before` is how far that went before it was last preempted. `junction` comes from its last
    lookup; `crossed_boundary` is the block boundary that its last accepted drafts passed over (0: none).
    `state` is waiting, loading, running or finished. `told` is how many outputs the scheduler knows of (with
    asynchronous scheduling one step behind). `exports` are the states that it exported since it last began,
    by the block end whose place each took.
    """

    submit: Submit
    prompt: int
    tokens: list[int]
    sampled: list[int]
    numbers: list[int]
    order: int
    final_numbers: list[int] = field(default_factory=list)
    computed: int = 0
    junction: int = 0
    crossed_boundary: int = 0
    hit: int | None = None
    state: str = "waiting"
    told: int = 0
    reached_before: int = 0
    exports: dict[int, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The request's name."""
        return self.submit.id

    @property
    def known(self) -> int:
        """Tokens that exist: prompt and outputs so far."""
        return len(self.tokens)

    @property
    def prefill_end(self) -> int:
        """Where the present prefill ends: at the prompt, or, for a resumed request, before its last token."""
        return max(self.prompt, self.known - 1)

    @property
    def produced(self) -> int:
        """Outputs so far."""
        return self.known - self.prompt

    @property
    def turn(self) -> list[int]:
        """All its tokens once it has ended: prompt and outputs."""
        return plain(self.tokens[: self.prompt]) + self.sampled

    @staticmethod
    def of(submit: Submit, prefixes: Prefixes, earlier: Mapping[str, History]) -> History:
        """The history of a request that has just arrived after `earlier` ones."""
        named = {name.removeprefix(TURN) for name, _ in submit.prompt if name.startswith(TURN)}
        prompt = prompt_tokens(submit.prompt, {name: earlier[name].turn for name in named})
        tokens = with_media(prompt, submit.media)
        history = History(
            submit=submit,
            prompt=prompt_length(submit.prompt),
            tokens=tokens,
            sampled=outputs(tokens, submit.outputs, submit.root),
            numbers=[],
            order=len(earlier),
        )
        prefixes.extend(history.numbers, history.tokens, submit.root)
        history.final_numbers = list(history.numbers)
        prefixes.extend(history.final_numbers, tokens + history.sampled, submit.root)
        return history

    def produce(self, count: int, prefixes: Prefixes) -> int:
        """Feed the next outputs, at most those still wanted; returns how many."""
        fed = self.sampled[self.produced : self.produced + count]
        self.tokens.extend(fed)
        prefixes.extend(self.numbers, self.tokens, self.submit.root)
        return len(fed)

    def forget(self, prefixes: Prefixes) -> None:
        """Outputs that the scheduler was never told of are dropped; they are sampled again."""
        del self.tokens[self.prompt + self.told :]
        del self.numbers[max(len(self.tokens) - prefixes.lookahead, 0) // prefixes.unit :]

    def number(self, position: int, unit: int) -> int:
        """The identity of the first `position` tokens (a positive multiple of the unit), known or to come;
        one that nothing else has where no hash can ever cover them."""
        index = position // unit - 1
        return (
            self.final_numbers[index]
            if index < len(self.final_numbers)
            else -2 - _APART * (self.order + 1) - index
        )

    def shares(self, other: History, position: int, unit: int) -> bool:
        """Whether it begins, now or later, with the first `position` tokens of another request."""
        reach = min(len(self.final_numbers), len(other.final_numbers)) * unit
        return position <= reach and self.number(position, unit) == other.number(position, unit)


def live(histories: Mapping[str, History], engine: int) -> list[History]:
    """The requests of an engine that have arrived and not ended."""
    return [one for one in histories.values() if one.state != "finished" and one.submit.engine == engine]
