"""Draw SVG from lists: boxes in layers, and messages between lanes. Colours come from the site's theme."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from textwrap import wrap

# Of the site's text at 14 px, a little more than the widest letters on average.
LETTER = 7.3
LINE = 18
LANE = 162
LABEL = 24  # letters of a line beside an arrow between neighbours


@dataclass
class Svg:
    """Shapes, and how far down they reach."""

    width: float
    shapes: list[str] = field(default_factory=list)
    height: float = 0

    def box(
        self, x: float, y: float, width: float, height: float, kind: str = "box", radius: int = 6
    ) -> None:
        self.shapes.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"/>'
        )
        self.height = max(self.height, y + height + 8)

    def text(
        self, x: float, y: float, words: str, kind: str = "text", anchor: str = "middle"
    ) -> None:
        self.shapes.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(words)}</text>'
        )
        self.height = max(self.height, y + 8)

    def line(self, x: float, y: float, to_x: float, to_y: float, kind: str = "lane") -> None:
        self.shapes.append(
            f'<line class="{kind}" x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}"/>'
        )

    def arrow(self, x: float, y: float, to_x: float) -> None:
        self.line(x, y, to_x - (7 if to_x > x else -7), y, "arrow")
        back = to_x - (9 if to_x > x else -9)
        self.shapes.append(
            f'<polygon class="head" points="{to_x:g},{y:g} {back:g},{y - 5:g} {back:g},{y + 5:g}"/>'
        )
        self.height = max(self.height, y + 12)

    def __str__(self) -> str:
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" style="max-width: {self.width:g}px"'
        return (
            f'<svg class="drawn" role="img" xmlns="http://www.w3.org/2000/svg" {size}>'
            + "".join(self.shapes)
            + "</svg>"
        )


@dataclass(frozen=True)
class Step:
    """A message from one lane to another, or what one lane does (`to` is None)."""

    at: str
    to: str | None
    words: str


def messages(lanes: Sequence[str], steps: Sequence[Step]) -> Svg:
    """Time goes down. Each lane is a process; a step is numbered."""
    middle = {name: LANE / 2 + LANE * number for number, name in enumerate(lanes)}
    svg = Svg(LANE * len(lanes))
    y = 58.0
    drawn: list[tuple[float, Step, list[str], int]] = []
    for number, step in enumerate(steps, 1):
        across = 1 if step.to is None else abs(lanes.index(step.at) - lanes.index(step.to))
        lines = wrap(f"{number}. {step.words}", LABEL * max(1, across) - (2 if across == 1 else 0))
        drawn.append((y, step, lines, number))
        y += LINE * len(lines) + (30 if step.to is None else 26)
    for x in middle.values():
        svg.line(x, 40, x, y - 6)
    for name, x in middle.items():
        svg.box(x - LANE / 2 + 8, 8, LANE - 16, 32, "lane-box")
        svg.text(x, 29, name, "name")
    for top, step, lines, _ in drawn:
        x = middle[step.at]
        if step.to is None:
            svg.box(x - LANE / 2 + 4, top - 12, LANE - 8, LINE * len(lines) + 12, "step")
            for at, line in enumerate(lines):
                svg.text(x, top + 6 + LINE * at, line, "label")
            continue
        end = middle[step.to]
        for at, line in enumerate(lines):
            svg.text((x + end) / 2, top + 4 + LINE * at, line, "label over")
        svg.arrow(x, top + LINE * len(lines), end)
    svg.height = y
    return svg


def layers(rows: Sequence[Sequence[tuple[str, str, Sequence[str]]]], width: float = 820) -> Svg:
    """Parts above each other: of each its name, a line on what it does, and what it has."""
    svg = Svg(width)
    y = 6.0
    for parts in rows:
        part_width = (width - 12 * (len(parts) - 1)) / len(parts)
        lines = [list(_rows(has, part_width - 24)) for _, _, has in parts]
        height = 46 + 30 * max(map(len, lines))
        for number, ((name, about, _), inside) in enumerate(zip(parts, lines, strict=True)):
            x = number * (part_width + 12)
            svg.box(x + 1, y, part_width - 2, height, "part", 10)
            svg.shapes.append(
                f'<text x="{x + 14:g}" y="{y + 24:g}"><tspan class="name">{escape(name)}</tspan>'
                f'<tspan class="label" dx="10">{escape(about)}</tspan></text>'
            )
            for row, crates in enumerate(inside):
                left = x + 14
                for crate in crates:
                    wide = LETTER * len(crate) + 16
                    svg.box(left, y + 36 + 30 * row, wide, 24, "step")
                    svg.text(left + wide / 2, y + 53 + 30 * row, crate, "label")
                    left += wide + 8
        y += height + 12
    svg.height = y
    return svg


def _rows(names: Sequence[str], width: float) -> Iterator[list[str]]:
    row: list[str] = []
    used = 0.0
    for name in names:
        wide = LETTER * len(name) + 24
        if row and used + wide > width:
            yield row
            row, used = [], 0
        row.append(name)
        used += wide
    yield row
