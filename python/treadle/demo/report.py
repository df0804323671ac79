"""The demo's HTML page: one file that loads nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from importlib import resources
from itertools import accumulate
from string import Template

import pandas as pd

from treadle.demo import charts
from treadle.demo.run import Outcome
from treadle.demo.views import VIEWS


class _Page(Template):
    delimiter = "%%"  # `$` belongs to the page's JavaScript


def page(outcome: Outcome, tiles: dict[str, str], figures: dict[str, str], flights: int) -> str:
    """The whole page as text; ``tiles`` and ``figures`` say by label what the run cost."""
    template = resources.files("treadle.demo").joinpath("report.html").read_text(encoding="utf-8")
    return _Page(template).substitute(
        flights=f"{flights:,}",
        tiles=_tiles(tiles),
        figures=_figures(figures),
        timeline=_timeline(outcome),
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


def _timeline(outcome: Outcome) -> str:
    """The trace as compact JSON for the page's script; times in µs from the trace's start."""
    tasks = outcome.task_events
    threads = {
        event["tid"]: event["args"]["name"]
        for event in outcome.events
        if event["name"] == "thread_name"
    }
    lanes = sorted({event["tid"] for event in tasks}, key=lambda tid: (threads.get(tid, ""), tid))
    names = sorted({event["name"] for event in tasks})
    lane_of = {tid: i for i, tid in enumerate(lanes)}
    name_of = {name: i for i, name in enumerate(names)}
    ends = accumulate(outcome.phases.values())
    data = {
        "lanes": [threads.get(tid, f"thread {tid}") for tid in lanes],
        "names": names,
        "phases": [
            [title, round(end * 1e6)] for title, end in zip(outcome.phases, ends, strict=True)
        ],
        "tasks": [
            [
                lane_of[event["tid"]],
                name_of[event["name"]],
                round(event["ts"], 1),
                round(event["dur"], 1),
                event["args"]["key"],
            ]
            for event in tasks
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
