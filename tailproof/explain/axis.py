"""Draws the token axis: one bar zoomed to where the marks are, and labels that never hide each other.

Positions are in tokens and lie between two tokens: position p is "after the first p tokens". Distinct marks
always get distinct columns, so the scale is exact only where marks are not crowded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from xml.sax.saxutils import escape

FILLS = {"reused": "█", "proof": "▒", "recomputed": "░"}
COLORS = {"reused": "#3b6ea5", "proof": "#e0a030", "recomputed": "#d9d9d9"}
BREAK = "╱╱"
WIDTH = 78
GAP = 2
MOST_TRIED = 6
CELL = 8
ROW = 18


@dataclass(frozen=True, slots=True)
class Mark:
    """A named position."""

    position: int
    label: str


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end), drawn as `fill`, a name in `FILLS`; later spans cover earlier ones. `name` is what
    the legend says, by default the fill."""

    start: int
    end: int
    fill: str
    name: str = ""

    @property
    def legend(self) -> str:
        """What the legend says."""
        return self.name or self.fill


@dataclass(frozen=True, slots=True)
class _Box:
    """A label: it belongs to the mark in `column` and begins at `start` of label row `row`; a hook before or
    after its text points at the column."""

    column: int
    start: int
    row: int
    text: str

    @property
    def end(self) -> int:
        """The column past the text."""
        return self.start + len(self.text)

    @property
    def left(self) -> int:
        """Where the label begins, its hook included."""
        return min(self.start, self.column) if self.hooked else self.start

    @property
    def right(self) -> int:
        """The column past the label, its hook included."""
        return max(self.end, self.column + 1) if self.hooked else self.end

    @property
    def hooked(self) -> bool:
        """Whether the label has a hook."""
        return self.column in (self.start - 1, self.end)

    @property
    def drawn(self) -> str:
        """The text with its hook."""
        if not self.hooked:
            return self.text
        return f"└{self.text}" if self.column < self.start else f"{self.text}┘"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where everything goes, in columns: a scale of knots (position, column), and the labels' boxes."""

    width: int
    broken: bool
    knots: tuple[tuple[int, int], ...]
    boxes: tuple[_Box, ...]
    rows: int

    @property
    def columns(self) -> tuple[int, ...]:
        """The columns that hold a mark."""
        return tuple(sorted({box.column for box in self.boxes}))

    def column(self, position: int) -> int:
        """The column of any position, between the knots around it."""
        at = bisect_right(self.knots, (position, self.width)) - 1
        low, left = self.knots[at]
        if at + 1 == len(self.knots):
            return left
        high, right = self.knots[at + 1]
        return left + (position - low) * (right - left) // (high - low)


def draw(marks: Iterable[Mark], width: int = WIDTH, spans: Sequence[Span] = ()) -> list[str]:
    """The picture: the bar, one or more label lines, and a legend of the fills in use.

    Raises:
        ValueError: when the width is too small to hold every label.
    """
    layout = _layout(marks, width, spans)
    bar = ["─"] * width
    for at, span in enumerate(_cells(layout, spans)):
        if span is not None:
            bar[at] = FILLS[span.fill]
    bar[0] = "0"
    if layout.broken:
        bar[1 : 1 + len(BREAK)] = BREAK
    for at in layout.columns:
        bar[at] = "│"
    rows = [[" "] * width for _ in range(layout.rows)]
    for box in layout.boxes:
        for above in rows[: box.row]:
            above[box.column] = "│"
    for box in layout.boxes:
        rows[box.row][box.left : box.right] = box.drawn
    return ["".join(row).rstrip() for row in (bar, *rows)] + _legend(layout, spans)


def svg(marks: Iterable[Mark], title: str, spans: Sequence[Span] = (), width: int = WIDTH) -> str:
    """The same picture as a self-contained SVG document.

    Raises:
        ValueError: when the width is too small to hold every label.
    """
    layout = _layout(marks, width, spans)
    top, height = 2 * ROW, ROW
    total = top + height + ROW * (layout.rows + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {(width + 2) * CELL} {total}" role="img" '
        'font-family="monospace" font-size="13">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        _text(0, ROW, title, fit=False),
        f'<g transform="translate({CELL} 0)">',
        f'<rect x="0" y="{top}" width="{(width - 1) * CELL}" height="{height}" fill="#f7f7f7" '
        'stroke="#888888"/>',
    ]
    for span in spans:
        left, right = layout.column(span.start), layout.column(span.end)
        if right > left:
            parts.append(
                f'<rect x="{left * CELL}" y="{top}" width="{(right - left) * CELL}" height="{height}" '
                f'fill="{COLORS[span.fill]}"/>'
            )
    if layout.broken:
        parts.append(
            f'<path d="M{CELL} {top + height}l{CELL} -{height}h{CELL}l-{CELL} {height}z" fill="#ffffff" '
            'stroke="#888888"/>'
        )
    for box in layout.boxes:
        x, y = box.column * CELL, top + height + box.row * ROW
        parts.append(f'<line x1="{x}" x2="{x}" y1="{top - 4}" y2="{y + 4}" stroke="#000000"/>')
    for box in layout.boxes:
        parts.append(_text(box.start * CELL, top + height + box.row * ROW + 15, box.text))
    x, y = 0, total - 6
    for name, fill in _seen(layout, spans).items():
        parts.append(f'<rect x="{x}" y="{y - 10}" width="10" height="10" fill="{COLORS[fill]}"/>')
        parts.append(_text(x + 2 * CELL, y, name))
        x += (len(name) + 5) * CELL
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def _text(x: int, y: int, text: str, fit: bool = True) -> str:
    length = f' textLength="{len(text) * CELL}"' if fit else f' dx="{CELL}"'
    return f'<text x="{x}" y="{y}"{length} fill="#000000">{escape(text)}</text>'


def _cells(layout: _Layout, spans: Sequence[Span]) -> list[Span | None]:
    """The span that is seen in each column."""
    cells: list[Span | None] = [None] * layout.width
    for span in spans:
        for at in range(layout.column(span.start), layout.column(span.end)):
            cells[at] = span
    return cells


def _seen(layout: _Layout, spans: Sequence[Span]) -> dict[str, str]:
    """The legend: name to fill, of the spans that are seen."""
    return {span.legend: span.fill for span in _cells(layout, spans) if span is not None}


def _legend(layout: _Layout, spans: Sequence[Span]) -> list[str]:
    lines: list[str] = []
    for name, fill in _seen(layout, spans).items():
        item = f"{FILLS[fill]} {name}"
        if lines and len(lines[-1]) + 3 + len(item) <= layout.width:
            lines[-1] += f"   {item}"
        else:
            lines.append(item)
    return lines


def _layout(marks: Iterable[Mark], width: int, spans: Sequence[Span]) -> _Layout:
    named: dict[int, list[str]] = {}
    for mark in marks:
        named.setdefault(mark.position, []).append(mark.label)
    if not named:
        raise ValueError("an axis needs at least one mark")
    if min(named) < 0 or any(not 0 <= span.start <= span.end for span in spans):
        raise ValueError("positions on the axis must be 0 or more, and a span must not end before it starts")
    unknown = sorted({span.fill for span in spans} - set(FILLS))
    if unknown:
        raise ValueError(f"fill {unknown[0]!r} is not known: use {', '.join(FILLS)}")
    items = [(at, text) for at in sorted(named) for text in _texts(at, list(dict.fromkeys(named[at])), width)]
    need = max(
        2 * len(named) + len(BREAK) + 2,
        *(len(text) for _, text in items),
        *(len(span.legend) + 2 for span in spans),
    )
    if width < need:
        raise ValueError(f"width {width} is too small for this picture: use {need} or more")
    edges = [edge for span in spans for edge in (span.start, span.end)]
    knots, broken = _scale(sorted(named), max(*named, *edges, 1), width)
    columns = dict(knots)
    labels = [(columns[at], text) for at, text in items]
    sides = product((False, True), repeat=len(labels)) if len(labels) <= MOST_TRIED else [()]
    boxes = min((_place(labels, width, side) for side in sides), key=_height)
    return _Layout(width, broken, knots, tuple(boxes), _height(boxes))


def _texts(position: int, labels: list[str], width: int) -> list[str]:
    together = f"{position} {', '.join(labels)}"
    return [together] if len(together) <= width else [f"{position} {label}" for label in labels]


def _scale(positions: list[int], last: int, width: int) -> tuple[tuple[tuple[int, int], ...], bool]:
    """The knots of the scale, and whether the axis is broken after 0 to zoom to where the marks are."""
    inner = [position for position in positions if position > 0]
    low = 0
    if inner and inner[-1] > inner[0]:
        low = max(inner[0] - max((last - inner[0]) // 2, 1), 0)
    broken = low > last // 3
    left = 1 + len(BREAK) if broken else 0
    if not broken:
        low = 0
    ends = sorted({*inner, last})
    columns = [left + (at - low) * (width - 1 - left) // (last - low) for at in ends]
    # Two columns for each mark, so that what lies between two marks stays visible.
    for index in range(len(columns)):
        columns[index] = max(columns[index], columns[index - 1] + 2 if index else left + 2)
    limit = width - 1
    for index in reversed(range(len(columns))):
        columns[index] = min(columns[index], limit)
        limit = columns[index] - 2
    knots = [(0, 0), *zip(ends, columns, strict=True)]
    if broken:
        knots.insert(1, (low, left))
    return tuple(knots), broken


def _height(boxes: Sequence[_Box]) -> int:
    return max(box.row for box in boxes) + 1


def _place(labels: list[tuple[int, str]], width: int, before: Sequence[bool]) -> list[_Box]:
    """Give each label a row: beside its own column, clear of its neighbours and of the stems of later rows.

    `before` tells for each label whether it is better put before its column than after it.
    """
    remaining = list(range(len(labels)))
    boxes: list[_Box] = []
    row = 0
    while remaining:
        later: list[int] = []
        free = 0
        for at, index in enumerate(remaining):
            column, text = labels[index]
            beyond = labels[remaining[at + 1]][0] - GAP + 1 if at + 1 < len(remaining) else width
            after, ahead = _Box(column, column + 1, row, text), _Box(column, column - len(text), row, text)
            first, second = (ahead, after) if before and before[index] else (after, ahead)
            box = next((box for box in (first, second) if free <= box.left and box.right <= beyond), None)
            if box is not None:
                boxes.append(box)
                free = box.right + GAP
            else:
                later.append(index)
                free = column + GAP
        if len(later) == len(remaining):
            # Too crowded for stems: the label names its position, which is enough to read it.
            column, text = labels[later.pop(0)]
            boxes.append(_Box(column, min(column, width - len(text)), row, text))
        remaining = later
        row += 1
    return boxes
