"""The demo's HTML page: one file that loads nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from importlib import resources
from itertools import accumulate
from string import Template
from typing import Any

import pandas as pd

from treadle.demo import charts
from treadle.demo.cluster import ClusterOutcome
from treadle.demo.run import Outcome
from treadle.demo.views import VIEWS


class _Page(Template):
    delimiter = "%%"  # `$` belongs to the page's JavaScript


def page(
    outcome: Outcome,
    cluster: ClusterOutcome,
    tiles: dict[str, str],
    figures: dict[str, str],
    cluster_figures: dict[str, str],
    flights: int,
) -> str:
    """The whole page as text; ``tiles`` and ``figures`` say by label what the runs cost."""
    template = resources.files("treadle.demo").joinpath("report.html").read_text(encoding="utf-8")
    return _Page(template).substitute(
        flights=f"{flights:,}",
        tiles=_tiles(tiles),
        figures=_figures(figures),
        timeline=_timeline_of_threads(outcome),
        cluster_figures=_figures(cluster_figures),
        cluster_timeline=_timeline_of_workers(cluster),
        results="\n".join(_result(name, outcome.results[name]) for name in VIEWS),
    )


def _tiles(tiles: dict[str, str]) -> str:
    return "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for label, value in tiles.items()
    )


def _figures(figures: dict[str, str]) -> str:
    rows = (
        f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>"
        for label, text in figures.items()
    )
    return f'<table class="figures">{"".join(rows)}</table>'


def _timeline_of_threads(outcome: Outcome) -> str:
    """The trace of the run on threads, for the page's script."""
    threads = {
        event["tid"]: event["args"]["name"]
        for event in outcome.events
        if event["name"] == "thread_name"
    }
    rows = {event["tid"]: threads.get(event["tid"], "") for event in outcome.task_events}
    tasks = [(event["tid"], event, "") for event in outcome.task_events]
    return _timeline(rows, tasks, outcome.phases, [])


def _timeline_of_workers(outcome: ClusterOutcome) -> str:
    """The trace of the run on worker processes, with the moment in which one was killed."""
    loss = outcome.loss
    repeated, seen = {*loss.repeated, *loss.interrupted}, set()
    rows: dict[tuple[int, int], str] = {}
    tasks = []
    for event in sorted(outcome.events, key=lambda event: float(event.get("ts", 0))):
        if event.get("cat") not in ("task", "lost") or event["ph"] != "X":
            continue
        row = event["pid"], event["tid"]
        rows[row] = f"worker {event['args']['worker']}, {event['pid']}.{event['tid']}"
        key = event["args"]["key"]
        note = "lost with its worker" if event["cat"] == "lost" else ""
        if key in seen and key in repeated:
            note = "run again"
        seen.add(key)
        tasks.append((row, event, note))
    title = f"kill -9 of worker {loss.worker}"
    return _timeline(rows, tasks, outcome.phases, [(loss.time, title)])


def _timeline(
    rows: dict[Any, str],
    tasks: list[tuple[Any, dict[str, Any], str]],
    phases: dict[str, float],
    marks: list[tuple[float, str]],
) -> str:
    """A trace as compact JSON for the page's script; times in µs from the trace's start."""
    lanes = sorted(rows, key=lambda row: (rows[row], row))
    names = sorted({event["name"] for _, event, _ in tasks})
    lane_of = {row: i for i, row in enumerate(lanes)}
    name_of = {name: i for i, name in enumerate(names)}
    ends = accumulate(phases.values())
    data = {
        "lanes": [rows[row] or f"thread {row}" for row in lanes],
        "names": names,
        "phases": [[title, round(end * 1e6)] for title, end in zip(phases, ends, strict=True)],
        "marks": [[round(time, 1), title] for time, title in marks],
        "tasks": [
            [
                lane_of[row],
                name_of[event["name"]],
                round(event["ts"], 1),
                round(event["dur"], 1),
                event["args"]["key"],
                note,
            ]
            for row, event, note in tasks
        ],
    }
    # "<" would let a key end the script element that holds the text.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _result(name: str, result: pd.DataFrame) -> str:
    view = VIEWS[name]
    chart = _CHARTS.get(name)
    picture = (
        f"<figure><figcaption>{chart[0]}</figcaption>{chart[1](name, result)}</figure>"
        if chart
        else ""
    )
    head = "".join(f"<th>{escape(heading)}</th>" for heading in view.headings())
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in view.rows(result)
    )
    return f"""<section id="{name}">
<h2>{escape(view.title)} <span class="ok">✓ equals pandas</span></h2>
<p>{escape(view.note)}</p>
{picture}
<details{"" if chart else " open"}><summary>Table</summary>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
</details>
</section>"""


def _bars(
    draw: Callable[[list[str], list[float], list[str]], str], column: str
) -> Callable[[str, pd.DataFrame], str]:
    """A chart of one column, labelled by the view's first; the tooltip is the whole row."""

    def chart(name: str, result: pd.DataFrame) -> str:
        view = VIEWS[name]
        rows = list(view.rows(result))
        headings = view.headings()
        tips = [
            ", ".join(f"{heading} {cell}" for heading, cell in zip(headings, row, strict=True))
            for row in rows
        ]
        return draw([row[0] for row in rows], view.select(result)[column].tolist(), tips)

    return chart


def _daily(_: str, result: pd.DataFrame) -> str:
    daily = result.sort_values("date")
    return charts.lines(daily["date"], daily["dep_delay"], daily["week"])


def _hours(_: str, result: pd.DataFrame) -> str:
    labels = [f"{hour:02d}:00" for hour in result["hour"]]
    return charts.heat_map(labels, result.drop(columns="hour").to_numpy(), "correlation")


_DEPARTURE = "Mean departure delay, minutes"
_ARRIVAL = "Mean arrival delay, minutes"

#: Charts by result: the caption, and what draws it from the result's name and table.
_CHARTS: dict[str, tuple[str, Callable[[str, pd.DataFrame], str]]] = {
    "carriers": (_ARRIVAL, _bars(charts.bars, "arr_delay")),
    "months": (_DEPARTURE, _bars(charts.columns, "dep_delay")),
    "daily": ("Departure delay, minutes: each day (thin), mean of seven days (thick)", _daily),
    "makers": (_ARRIVAL, _bars(charts.bars, "arr_delay")),
    "ages": (_ARRIVAL, _bars(charts.bars, "arr_delay")),
    "rain": (_DEPARTURE, _bars(charts.columns, "dep_delay")),
    "wind": (_DEPARTURE, _bars(charts.columns, "dep_delay")),
    "visibility": (_DEPARTURE, _bars(charts.columns, "dep_delay")),
    "hours": ("Correlation of the mean departure delays of two scheduled hours", _hours),
}
