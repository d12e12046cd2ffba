"""The table of reach: how often each phase was met in cases with each feature, and how that is shown."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

Cell = tuple[str, str]
Impossible = dict[str, dict[str, str]]
_WIDTH = 110


class Table:
    """`counts[axis][phase]` is how often the phase was met in a case with that feature, `totals` how many
    cases had each feature and how often each phase was met. `phases` gives each column its head in a narrow
    table, `impossible` the cells that a target cannot reach, as reasons by axis and phase. Call `begin`
    before the phases of a case are counted.
    """

    def __init__(
        self,
        axes: Iterable[str],
        phases: Mapping[str, str],
        impossible: Callable[[str], Impossible] = lambda target: {},
    ) -> None:
        self.axes, self.phases, self.impossible = tuple(axes), phases, impossible
        self.counts: dict[str, dict[str, int]] = {axis: dict.fromkeys(phases, 0) for axis in self.axes}
        self.totals: Counter[str] = Counter(dict.fromkeys((*self.axes, *phases), 0))
        self.rows: tuple[str, ...] = ()

    def begin(self, features: tuple[str, ...]) -> None:
        """Begin a case with these features."""
        self.rows = features
        self.totals.update(features)

    def count(self, phases: Iterable[str], *more: str) -> list[str]:
        """Count what a step met, also in the rows `more`; returns it."""
        met = list(phases)
        self.totals.update(met)
        for row in (*self.rows, *more):
            for phase in met:
                self.counts[row][phase] += 1
        return met

    def reached(self) -> dict[Cell, int]:
        """The cells met at least once, with their counts."""
        return {
            (axis, phase): count for axis, row in self.counts.items() for phase, count in row.items() if count
        }

    def supported(self, target: str = "") -> dict[Cell, int]:
        """The counts of the cells that can be met at all, on a target when its name is given."""
        impossible = self.impossible(target)
        return {
            (axis, phase): count
            for axis, row in self.counts.items()
            for phase, count in row.items()
            if phase not in impossible.get(axis, {})
        }

    def empty(self, target: str = "") -> list[Cell]:
        """Supported cells that were never met."""
        return [cell for cell, count in self.supported(target).items() if not count]

    def contradicted(self, target: str = "") -> list[Cell]:
        """Cells that were met although they are declared impossible: a fault of Tailproof, not the target."""
        supported = self.supported(target)
        return [cell for cell in self.reached() if cell not in supported]


def reach_lines(reach: Table, target: str) -> Iterator[str]:
    """How many cells of axes and phases a run met, the rarest of them, and the names of the empty ones."""
    counts = reach.supported(target)
    met = {cell: count for cell, count in counts.items() if count}
    line = f"reach: {len(met)} of {len(counts)} cells"
    if met:
        axis, phase = min(met, key=lambda cell: met[cell])
        line += f", fewest {met[axis, phase]} ({axis} × {phase})"
    yield line
    empty = reach.empty(target)
    undrawn = [axis for axis in reach.axes if not any(reach.counts[axis].values())]
    unmet = [phase for phase in reach.phases if not any(row[phase] for row in reach.counts.values())]
    unmet = [phase for phase in unmet if any(phase == cell[1] for cell in empty)]
    yield from folded("no case has", undrawn)
    yield from folded("no case meets", unmet)
    for axis in reach.axes:
        left = [phase for row, phase in empty if row == axis and phase not in unmet]
        if axis not in undrawn:
            yield from folded(f"empty: {axis} ×", left)
    wrong = [f"{axis} × {phase}" for axis, phase in reach.contradicted(target)]
    yield from folded("met, though declared impossible (a fault of tailproof):", wrong)


def folded(head: str, names: list[str]) -> list[str]:
    """A head and names as lines of bounded width; nothing without names."""
    if not names:
        return []
    # No line may break inside a name.
    kept = f"{head} {'; '.join(name.replace(' ', chr(0)) for name in names)}"
    lines = textwrap.wrap(
        kept,
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(chr(0), " ") for line in lines]


def reach_table(reach: Table, target: str) -> Iterator[str]:
    """The table of axes and phases in two halves, its heads, and why some cells cannot be met."""
    impossible = reach.impossible(target)
    phases = list(reach.phases)
    half, legend = (len(phases) + 1) // 2, (len(phases) + 2) // 3
    wide = max(map(len, reach.axes))
    for columns in (phases[:half], phases[half:]):
        yield f"  {'':<{wide}}" + "".join(f"{reach.phases[phase]:>6}" for phase in columns)
        for axis in reach.axes:
            cells = (_cell(reach, (axis, phase), impossible) for phase in columns)
            yield f"  {axis:<{wide}}" + "".join(f"{cell:>6}" for cell in cells)
        yield ""
    heads = [f"{head:<6}{phase:<34}" for phase, head in reach.phases.items()]
    yield from ("  " + "".join(heads[at::legend]).rstrip() for at in range(legend))
    yield ""
    yield "  A dash is a cell that cannot be met:"
    reasons: dict[tuple[str, str], list[str]] = {}
    for axis, row in impossible.items():
        for phase, reason in row.items():
            reasons.setdefault((phase, reason), []).append(axis)
    for (phase, reason), rows in reasons.items():
        where = "every row" if len(rows) == len(reach.axes) else ", ".join(rows)
        yield f"    {where} × {phase}: {reason}"


def _cell(reach: Table, cell: Cell, impossible: Impossible) -> str:
    axis, phase = cell
    count = reach.counts[axis][phase]
    if not count and phase in impossible.get(axis, {}):
        return "-"
    return str(count) if count < 100_000 else f"{count // 1000}k"
