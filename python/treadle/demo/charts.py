"""The page's charts as inline SVG: its style colours them, its script shows each ``data-tip``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pandas as pd

WIDTH = 640


def bars(labels: Sequence[str], values: Sequence[float], tips: Sequence[str]) -> str:
    """Horizontal bars, in minutes, from a common zero; missing values leave a gap."""
    row, left, right = 24, 190, 50
    low, high = min(0.0, np.nanmin(values)), max(0.0, np.nanmax(values))
    # Room for the figure on the left of a negative bar.
    left += right if low < 0 else 0
    scale = (WIDTH - left - right) / ((high - low) or 1)
    zero = left - low * scale
    parts = []
    for i, (label, value, tip) in enumerate(zip(labels, values, tips, strict=True)):
        middle = i * row + row / 2
        parts.append(_text(0, middle + 4, label, "start"))
        if np.isnan(value):
            continue
        length = abs(value) * scale
        start = zero if value >= 0 else zero - length
        parts.append(
            f'<rect class="{"bar" if value >= 0 else "bar early"}" x="{start:.1f}" y="{middle - 8:.1f}"'
            f' width="{length:.1f}" height="16" rx="2" data-tip="{escape(tip)}"/>'
        )
        end = zero + length + 5 if value >= 0 else start - 5
        anchor = "start" if value >= 0 else "end"
        parts.append(_text(end, middle + 4, _minutes(value), anchor, "value"))
    height = row * len(labels)
    parts.append(f'<line class="axis" x1="{zero:.1f}" x2="{zero:.1f}" y1="0" y2="{height}"/>')
    return _svg(height, parts)


def columns(labels: Sequence[str], values: Sequence[float], tips: Sequence[str]) -> str:
    """Vertical bars, in minutes; for values that have an order and no negatives worth a look."""
    height, bottom, top = 230, 24, 20
    step = WIDTH / len(labels)
    scale = (height - bottom - top) / (max(0.0, np.nanmax(values)) or 1)
    parts = []
    for i, (label, value, tip) in enumerate(zip(labels, values, tips, strict=True)):
        centre = (i + 0.5) * step
        parts.append(_text(centre, height - 6, label, "middle"))
        tall = max(0.0, value) * scale
        if np.isnan(tall):
            continue
        y = height - bottom - tall
        parts.append(
            f'<rect class="bar" x="{centre - step * 0.36:.1f}" y="{y:.1f}" width="{step * 0.72:.1f}"'
            f' height="{tall:.1f}" rx="2" data-tip="{escape(tip)}"/>'
        )
        parts.append(_text(centre, y - 5, _minutes(value), "middle", "value"))
    parts.append(_rule(0, height - bottom, "axis"))
    return _svg(height, parts)


def lines(dates: pd.Series, thin: pd.Series, thick: pd.Series) -> str:
    """A thin and a thick line over the days of a year, in minutes."""
    height, left, bottom, top = 260, 34, 24, 8
    low, high = min(0.0, float(thin.min())), max(1.0, float(thin.max()))
    first = dates.iloc[0]
    step = (WIDTH - left) / len(dates)
    days = (dates - first).dt.days

    def x(day: float) -> float:
        return left + (day + 0.5) * step

    def y(value: float) -> float:
        return top + (high - value) / (high - low) * (height - top - bottom)

    parts = []
    for tick in range(math.ceil(low / 20) * 20, math.ceil(high), 20):
        parts.append(_rule(left, y(tick), "axis" if tick == 0 else "grid"))
        parts.append(_text(left - 6, y(tick) + 4, f"{tick}".replace("-", "−"), "end"))
    for month in pd.date_range(first, dates.iloc[-1], freq="MS"):
        parts.append(_text(x((month - first).days + 15), height - 6, f"{month:%b}", "middle"))
    for name, series in (("thin", thin), ("thick", thick)):
        # A day without flights breaks the line.
        points = zip(days, series, strict=True)
        for known, run in groupby(points, key=lambda point: not np.isnan(point[1])):
            if known:
                path = " ".join(f"{x(day):.1f},{y(value):.1f}" for day, value in run)
                parts.append(f'<polyline class="{name}" points="{path}"/>')
    for day, date, one, mean in zip(days, dates, thin, thick, strict=True):
        tip = f"{date:%a %d %b}: {_minutes(one)} min, seven days {_minutes(mean)} min"
        parts.append(
            f'<rect class="hit" x="{x(day) - step / 2:.1f}" y="{top}" width="{step:.2f}"'
            f' height="{height - top - bottom}" data-tip="{escape(tip)}"/>'
        )
    return _svg(height, parts)


def heat_map(labels: Sequence[str], matrix: npt.NDArray[np.float64], name: str) -> str:
    """A square of cells, from the page's background (0 and less) to its accent colour (1)."""
    left, top, scale_height = 46, 4, 46
    cell = (WIDTH - left) / len(labels)
    bottom = top + cell * len(labels)
    parts = []
    for i, row in enumerate(labels):
        parts.append(_text(left - 6, top + (i + 0.5) * cell + 4, row, "end"))
        parts.append(_text(left + (i + 0.5) * cell, bottom + 14, row[:2], "middle"))
        for j, column in enumerate(labels):
            value = matrix[i, j]
            known = not np.isnan(value)
            shade = f"--share:{max(0.0, value) * 100:.0f}%" if known else "fill:none"
            tip = (
                f"{row} and {column}: {name} {value:.2f}"
                if known
                else f"{row} and {column}: too few days"
            )
            parts.append(
                f'<rect class="cell" style="{shade}" x="{left + j * cell:.1f}" y="{top + i * cell:.1f}"'
                f' width="{cell - 1:.1f}" height="{cell - 1:.1f}" data-tip="{escape(tip)}"/>'
            )
    swatch = 20
    for i in range(11):
        x = left + i * swatch
        parts.append(
            f'<rect class="cell" style="--share:{i * 10}%" x="{x}" y="{bottom + 26}"'
            f' width="{swatch}" height="10"/>'
        )
    parts.append(_text(left - 6, bottom + 35, "0", "end"))
    parts.append(_text(left + 11 * swatch + 6, bottom + 35, f"1  {name}", "start"))
    return _svg(bottom + scale_height, parts)


def _minutes(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.1f}".replace("-", "−")


def _text(x: float, y: float, text: str, anchor: str, kind: str = "label") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _rule(left: float, y: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{left}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'
