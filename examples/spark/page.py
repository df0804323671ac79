"""The demo's HTML page: one file that loads nothing, with the look of `treadle demo`."""

from __future__ import annotations

import json
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from queries import QUERIES

if TYPE_CHECKING:
    from demo import Run


def page(treadle: Run, stock: Run, heads: list[str], rows: list[list[str]], scale: str) -> str:
    """The whole page as text."""
    template = resources.files("treadle.demo").joinpath("report.html").read_text(encoding="utf-8")
    style = template[template.index("<style>") : template.index("</style>")]
    script = template[template.index('<div id="tip">') :]
    tiles = {
        "results equal DuckDB's": f"{len(QUERIES)} of {len(QUERIES)}",
        "finished maps that ran again": str(treadle.again()),
        "on stock Spark, which lost one executor and no server": str(stock.again()),
        "seconds for all queries; stock Spark's are "
        f"{sum(map(stock.seconds, QUERIES)):.0f}": f"{sum(map(treadle.seconds, QUERIES)):.0f}",
    }
    shown = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'
        for label, value in tiles.items()
    )
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Treadle: TPC-H on Spark</title>
{style}</style>
</head>
<body>
<main>
<h1>TPC-H on Spark, with shuffles at Treadle's servers</h1>
<p>Eight queries and a skewed join at scale {escape(scale)}; each result is compared with DuckDB's. Each join is a shuffle.</p>
<div class="tiles">{shown}</div>
<section><h2>Queries <span class="ok">✓ all results equal DuckDB's</span></h2>
<p>How long each query took on Treadle and on stock Spark, and what was shuffled. "Maps again": how many maps had finished and ran again, on Treadle and on stock Spark, which loses the same executor and has no server.</p>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>
<div style="height: 14px"></div>
{_timeline("Tasks by executor, on Treadle", "treadle", treadle)}
{_timeline("The same on stock Spark", "stock", stock)}
</main>
{script}"""


def _timeline(title: str, name: str, run: Run) -> str:
    # "<" would let a name end the script element that holds the text.
    data = json.dumps(_trace(run), separators=(",", ":")).replace("<", "\\u003c")
    return f"""<section class="timeline">
<h2>{escape(title)}</h2>
<p>The red lines are <code>kill -9</code>. Pale tasks with a red frame were lost; those with a dark frame had finished before, and ran again.</p>
<div class="bar-row"><div class="legend"></div>
<div><button class="in">Zoom in</button> <button class="out">Zoom out</button> <button class="all">Whole run</button></div></div>
<canvas tabindex="0" aria-label="Timeline of the tasks by executor; arrow keys pan, plus and minus zoom"></canvas>
<script type="application/json" id="{name}">{data}</script>
</section>"""


def _trace(run: Run) -> dict[str, Any]:
    """The tasks for the page's script; times in µs from the first query."""
    start = min(answer["begun"] for answer in run.answers.values())
    names = list(QUERIES)
    tasks = sorted((task for task in run.tasks if task.query in QUERIES), key=lambda one: one.start)
    executors = sorted({task.executor for task in tasks}, key=int)
    done: set[tuple[int, int]] = set()
    shown = []
    for task in tasks:
        key = task.rows, task.partition
        note = "lost with its executor" if not task.is_done else "run again" if key in done else ""
        if task.is_done and task.is_map:
            done.add(key)
        kind = "map" if task.is_map else "result"
        where = executors.index(task.executor), names.index(task.query)
        when = round((task.start - start) * 1e6), round((task.end - task.start) * 1e6)
        shown.append([*where, *when, f"{kind} {task.partition} of stage {task.stage}", note])
    return {
        "lanes": [f"executor {executor}" for executor in executors],
        "names": names,
        "phases": [[name, round((run.answers[name]["ended"] - start) * 1e6)] for name in QUERIES],
        "marks": [[round((at - start) * 1e6), what] for at, _, what in run.losses],
        "tasks": shown,
    }
