"""Pictures of the pages, as SVG. Colours are classes of the style sheet, so that light and dark are one picture."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

__all__ = [
    "duration",
    "groups_chart",
    "hours_chart",
    "number",
    "setting",
    "size",
    "stages_chart",
    "story_chart",
    "waits_chart",
    "when",
]

_MOST_BARS = 20
# What tasks of a shuffle wait for, in the order of its phases.
_WAITS = {"push": "push_seconds", "barrier": "compare_seconds", "waited": "read_seconds"}


def size(value: float | None) -> str:
    """Return bytes for people."""
    if value is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if value >= 100 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} PB"


def duration(seconds: float | None) -> str:
    """Return seconds for people."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
    )


def number(value: float | None) -> str:
    """Return a count for people."""
    return "–" if value is None else f"{value:,.0f}"


def setting(value: float | None, parameter: str) -> str:
    """Return the value of a setting: bytes as such."""
    if value is None:
        return "default"
    is_size = parameter.endswith(("Bytes", "Threshold", "memory"))
    if not is_size or value < 2**10:
        return number(value)
    return f"{value / 2**20:,.6g} MiB" if value >= 2**20 else f"{value / 2**10:,.6g} KiB"


def when(stamp: float | None) -> str:
    """Return a time in UTC."""
    return "–" if stamp is None else time.strftime("%Y-%m-%d %H:%M", time.gmtime(stamp))


def hours_chart(rows: Sequence[Mapping[str, Any]], now: float, hours: int = 24) -> str:
    """Draw jobs by hour: those on the service below, the others above them."""
    last = int(now // 3600)
    by_hour: dict[int, dict[str, int]] = {hour: {} for hour in range(last - hours + 1, last + 1)}
    for row in rows:
        if row["hour"] in by_hour:
            by_hour[row["hour"]][row["verdict"]] = row["jobs"]
    most = max((sum(one.values()) for one in by_hour.values()), default=0) or 1
    width, height, bottom = 960, 200, 24
    step = width / hours
    parts = [_grid(width, height, most)]
    for at, (hour, counts) in enumerate(by_hour.items()):
        y = float(height)
        for verdict in ("service", "stock", "unasked"):
            if count := counts.get(verdict, 0):
                tall = count / most * (height - 14)
                y -= tall
                title = f"{when(hour * 3600)}: {count:,} {verdict}"
                parts.append(
                    f'<rect class="bar {verdict}" x="{at * step + 2:.1f}" y="{y:.1f}" width="{step - 4:.1f}" '
                    f'height="{tall:.1f}" rx="2"><title>{escape(title)}</title></rect>'
                )
        if hour % 3 == 0:
            text = f"{hour % 24:02}:00"
            parts.append(
                f'<text class="label" x="{at * step + step / 2:.1f}" y="{height + 16}">{text}</text>'
            )
    return _svg(width, height + bottom, parts, "jobs by hour")


def _grid(width: int, height: int, most: float) -> str:
    lines = []
    for share in (0.5, 1.0):
        y = height - share * (height - 14)
        lines.append(f'<line class="grid" x1="0" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text class="label left" x="2" y="{y - 3:.1f}">{most * share:,.0f}</text>')
    return "".join(lines)


def story_chart(runs: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, Any]]) -> str:
    """Draw the durations of runs, the earliest left, with the changes that they were run with.

    A point is a run: filled on the service, hollow on stock shuffle, a cross where it failed.
    """
    width, height, top = 960, 240, 34
    done = [one for one in runs if one["duration"] is not None]
    if not done:
        return '<p class="quiet">No run has ended yet.</p>'
    logs = [math.log10(max(one["duration"], 0.1)) for one in done]
    low, high = min(logs) - 0.08, max(logs) + 0.08
    if high - low < 0.3:
        middle = (low + high) / 2
        low, high = middle - 0.15, middle + 0.15
    step = width / max(len(done), 12)

    def y_of(value: float) -> float:
        return top + (high - value) / (high - low) * (height - top - 6)

    parts = []
    for share in (0.1, 0.5, 0.9):
        value = low + share * (high - low)
        parts.append(
            f'<line class="grid" x1="0" x2="{width}" y1="{y_of(value):.1f}" y2="{y_of(value):.1f}"/>'
        )
        parts.append(
            f'<text class="label left" x="2" y="{y_of(value) - 3:.1f}">{escape(duration(10**value))}</text>'
        )
    told = {one["number"]: one for one in changes}
    spans: dict[int, list[int]] = {}
    for at, run in enumerate(done):
        if run["change"]:
            spans.setdefault(run["change"], []).append(at)
    for change, places in spans.items():
        x, end = places[0] * step, (places[-1] + 1) * step
        state = told.get(change, {}).get("state", "")
        kind = (
            "kept"
            if state in ("kept", "replaced")
            else "undone"
            if state == "rolled back"
            else "trial"
        )
        parts.append(
            f'<rect class="span {kind}" x="{x:.1f}" y="0" width="{end - x:.1f}" height="{height}" rx="4">'
            f"<title>{escape(str(told.get(change, {}).get('reason', '')))}</title></rect>"
        )
        parts.append(
            f'<text class="label {kind}" x="{(x + end) / 2:.1f}" y="14">change {change}</text>'
        )
    points = [(at * step + step / 2, y_of(value)) for at, value in enumerate(logs)]
    parts.append(
        '<polyline class="line" points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>'
    )
    for (x, y), run in zip(points, done, strict=True):
        title = f"{when(run['at'])}: {duration(run['duration'])}, {size(run['shuffle_bytes'])} shuffled, {run['state']}"
        kind = (
            "failed"
            if run["state"] == "failed"
            else "service"
            if run["verdict"] == "service"
            else "stock"
        )
        parts.append(
            f'<circle class="run {kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"><title>{escape(title)}</title></circle>'
        )
    return _svg(width, height, parts, "durations of runs")


def stages_chart(stages: Sequence[Mapping[str, Any]]) -> str:
    """Draw where the tasks' time went, a bar a stage: computing, garbage collection, waiting for rows."""
    rows = []
    for one in sorted(_longest(stages, "run"), key=lambda one: one["number"]):
        gc, waited = min(one["gc"], one["run"]), min(one["waited"], one["run"])
        parts = {"compute": max(0.0, one["run"] - gc - waited), "gc": gc, "waited": waited}
        rows.append((f"{one['number']} · {number(one['tasks'])} tasks", one["run"], parts))
    return _bars(rows, "time of tasks by stage") if rows else _nothing("No stage has ended yet.")


def groups_chart(groups: Sequence[Mapping[str, Any]]) -> str:
    """Draw the time of tasks of Dask, a bar a name, the longest first."""
    rows = [
        (f"{_cut(one['name'])} · {number(one['tasks'])}", one["seconds"], {"compute": one["seconds"]})
        for one in _longest(groups, "seconds")
    ]  # fmt: skip
    return _bars(rows, "time of tasks by name") if rows else _nothing("No task has ended well.")


def waits_chart(shuffles: Sequence[Mapping[str, Any]]) -> str:
    """Draw for how long tasks waited, a bar a shuffle: for workers or servers to take rows, the barrier, rows to read."""
    rows = []
    for place, one in enumerate(shuffles, 1):
        parts = {kind: float(one.get(name) or 0.0) for kind, name in _WAITS.items()}
        rows.append((f"{place} · {one['kind']} · {size(one['bytes'])}", sum(parts.values()), parts))
    shown = sorted(rows, key=lambda one: -one[1])[:_MOST_BARS]
    shown = [one for one in rows if one in shown and one[1] > 0]
    return _bars(shown, "blocked times by shuffle") if shown else _nothing("No task waited.")


def _longest(rows: Sequence[Mapping[str, Any]], by: str) -> list[Mapping[str, Any]]:
    return sorted(rows, key=lambda one: -one[by])[:_MOST_BARS]


def _cut(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"


def _nothing(text: str) -> str:
    return f'<p class="quiet">{escape(text)}</p>'


def _bars(rows: Sequence[tuple[str, float, Mapping[str, float]]], name: str) -> str:
    """Draw a bar a row: its label, its seconds, and these by kind."""
    most = max(seconds for _, seconds, _ in rows) or 1.0
    width, row, left = 960, 26, 190
    parts = []
    for at, (label, total, kinds) in enumerate(rows):
        y, x = at * row, float(left)
        parts.append(f'<text class="label left" x="0" y="{y + 16}">{escape(label)}</text>')
        for kind, seconds in kinds.items():
            wide = seconds / most * (width - left - 90)
            if wide > 0:
                title = f"{kind}: {duration(seconds)}"
                parts.append(
                    f'<rect class="part {kind}" x="{x:.1f}" y="{y + 4}" width="{wide:.1f}" height="{row - 9}">'
                    f"<title>{escape(title)}</title></rect>"
                )
                x += wide
        parts.append(
            f'<text class="label left" x="{x + 6:.1f}" y="{y + 16}">{escape(duration(total))}</text>'
        )
    return _svg(width, row * len(rows), parts, name)


def _svg(width: int, height: int, parts: Sequence[str], name: str) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(name)}">{"".join(parts)}</svg>'
