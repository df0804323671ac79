"""The demo's HTML page: one file that loads nothing, with the look of `treadle demo`."""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from treadle.coordinator import _charts

if TYPE_CHECKING:
    from demo import Run, Story

size = _charts.size
# The picture is the coordinator's own.
_STYLE = """
.line { fill: none; stroke: var(--line); stroke-width: 1.5; }
.run { stroke-width: 2; fill: var(--card); stroke: var(--other); }
.run.service { fill: var(--accent); stroke: var(--card); } .run.failed { fill: var(--lost); }
.span { fill: var(--line); } .span.kept { fill: color-mix(in oklab, var(--ok) 22%, var(--card)); }
.span.undone { fill: color-mix(in oklab, var(--lost) 18%, var(--card)); }
.label { text-anchor: middle; } .label.left { text-anchor: start; }
td.text { text-align: left; white-space: normal; } svg { overflow: visible; }
"""
_CELL = '<td class="text">{}</td>'


def change(one: dict[str, Any]) -> str:
    """A change in words."""
    old, new = (_charts.setting(one[end], one["parameter"]) for end in ("old", "new"))
    return f"{one['parameter']}, {old} to {new}"


def page(seen: Story) -> str:
    """The whole page as text."""
    template = resources.files("treadle.demo").joinpath("report.html").read_text(encoding="utf-8")
    style = template[template.index("<style>") : template.index("</style>")]
    first, last = _ends(seen)
    kept = [one for one in seen.changes if one["state"] == "kept"]
    tiles = {
        f"runs of one job, {len(seen.runs) - 2} of them on the shuffle servers, with one result": str(
            len(seen.runs)
        ),
        "alerts, which a webhook got, too": str(len(seen.alerts)),
        "settings that it found by itself": str(len(kept)),
        f"times fewer bytes shuffled: {size(first.row['shuffle_bytes'])} became {size(last.row['shuffle_bytes'])}": _times(
            first.row["shuffle_bytes"], last.row["shuffle_bytes"]
        ),
        f"times as fast: {first.row['duration']:.1f} s became {last.row['duration']:.1f} s": _times(
            first.row["duration"], last.row["duration"]
        ),
    }
    shown = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for label, value in tiles.items()
    )
    chart = _charts.story_chart([run.row for run in seen.runs], seen.changes)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Treadle: a coordinator and a job of Spark</title>
{style}{_STYLE}</style>
</head>
<body>
<main>
<h1>A job of Spark comes onto the shuffle servers by a rule, is watched, and is tuned</h1>
<p>The job is the same file with the same arguments in each run. What differs is decided by the coordinator. A rule was tried first: {escape(seen.tried)}.</p>
<div class="tiles">{shown}</div>
<section><h2>Durations of its runs <span class="ok">✓ all runs have the same result</span></h2>
<p>Hollow: on stock shuffle. Filled: on the shuffle servers. Behind the runs that tried a change: green, if it was kept, and red, if it was rolled back.</p>
{chart}</section>
<div style="height: 14px"></div>
{_section("What it changed by itself", ["rule", "change", "why", "state", "what was measured"], [[one["rule"], change(one), one["evidence"], one["state"], one["reason"]] for one in seen.changes])}
{_section("Runs", ["run", "seconds", "shuffled", "expected", "what happens", "what treadle spark-submit says"], [_row(run) for run in seen.runs])}
{_section("Alerts", ["kind", "text"], [[one["kind"], one["text"]] for one in seen.alerts])}
</main>
</body>
</html>
"""


def _ends(seen: Story) -> tuple[Run, Run]:
    """The first run on the servers and the last one."""
    on_service = [run for run in seen.runs if run.row["verdict"] == "service"]
    return on_service[0], on_service[-1]


def _times(before: float, after: float) -> str:
    return f"{before / after:.1f}" if after else "–"


def _row(run: Run) -> list[str]:
    row = run.row
    expected = size(row["predicted_bytes"])
    return [
        str(run.number),
        f"{row['duration']:.1f}",
        size(row["shuffle_bytes"]),
        expected,
        run.what,
        run.said,
    ]


def _section(title: str, heads: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th style="text-align: left">{escape(one)}</th>' for one in heads)
    body = "".join(
        f"<tr>{''.join(_CELL.format(escape(cell)) for cell in row)}</tr>" for row in rows
    )
    return f"""<section><h2>{escape(title)}</h2>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>
<div style="height: 14px"></div>"""
