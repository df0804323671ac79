"""The page that ``distributed.performance_report`` writes."""

from __future__ import annotations

import html
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from dask.utils import format_bytes, format_time, key_split

from treadle.common._groups import prefix_of

__all__ = ["page"]


def page(
    runs: Sequence[Mapping[str, Any]],
    identity: Mapping[str, Any],
    *,
    start: float,
    code: str,
    mode: str | None = None,
) -> str:
    """Return an HTML page about the runs of tasks since a time.

    Parameters
    ----------
    runs
        As ``Client.get_task_stream`` has them.
    identity
        As ``Scheduler.identity`` has it, with all workers.
    start
        Seconds since 1970.
    code
        What was computed.
    mode
        Where the page takes Bokeh from: ``"inline"``, ``"cdn"``, …; by default as Bokeh is
        configured.
    """
    from bokeh.embed import components
    from bokeh.resources import Resources

    from treadle._compat.distributed import rectangles, task_stream_figure

    source, figure = task_stream_figure(sizing_mode="stretch_width", height=400)
    source.data.update(rectangles([_drawable(run) for run in runs]))
    script, stream = components(figure)
    body = [
        "<h1>Dask Performance Report</h1>",
        "<p><i>Select the parts of the task stream to see which tasks they are.</i></p>",
        _summary(runs, identity, start),
        f"<h2>Calling code</h2><pre>{html.escape(code)}</pre>",
        "<h2>Task stream</h2>",
        stream,
        "<h2>Functions</h2>",
        _table("function", runs, lambda run: prefix_of(run["key"])),
        "<h2>Workers</h2>",
        _table("worker", runs, lambda run: run["worker"]),
        script,
    ]
    head = (
        f"<meta charset='utf-8'><title>Dask Performance Report</title>{_resources(Resources, mode)}"
    )
    return (
        f"<!DOCTYPE html>\n<html><head>{head}</head><body>\n" + "\n".join(body) + "</body></html>"
    )


def _drawable(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a run with a key that distributed can name: it cannot name ``()``."""
    try:
        key_split(run["key"])
    except Exception:
        return {**run, "key": str(run["key"])}
    return run


def _resources(resources: Any, mode: str | None) -> str:
    found: str = (resources(mode=mode) if mode else resources()).render()
    return found


def _seconds(runs: Collection[Mapping[str, Any]]) -> float:
    steps = (step for run in runs for step in run["startstops"])
    total: float = sum(step["stop"] - step["start"] for step in steps)
    return total


def _summary(runs: Sequence[Mapping[str, Any]], identity: Mapping[str, Any], start: float) -> str:
    workers = identity["workers"].values()
    memory = sum(worker["memory_limit"] or 0 for worker in workers)
    facts = {
        "Duration": format_time(time.time() - start),
        "number of tasks": len(runs),
        "compute time": format_time(_seconds(runs)),
        "failed": sum(run["status"] != "OK" for run in runs),
        "Scheduler": identity["address"],
        "Workers": len(workers),
        "Threads": sum(worker["nthreads"] for worker in workers),
        "Memory": format_bytes(memory),
        "Dask Version": version("dask"),
        "Dask.Distributed Version": version("distributed"),
        "Python": ".".join(map(str, sys.version_info[:3])),
    }
    items = (f"<li>{name}: {html.escape(str(value))}</li>" for name, value in facts.items())
    return f"<ul>{''.join(items)}</ul>"


def _table(title: str, runs: Sequence[Mapping[str, Any]], group: Any) -> str:
    """How many runs there were of each, and how long they took together."""
    groups: defaultdict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[group(run)].append(run)
    rows = sorted(
        ((_seconds(some), len(some), name) for name, some in groups.items()), reverse=True
    )
    cells = "".join(
        f"<tr><td>{html.escape(str(name))}</td><td>{count}</td><td>{format_time(seconds)}</td></tr>"
        for seconds, count, name in rows
    )
    return f"<table><tr><th>{title}</th><th>tasks</th><th>time</th></tr>{cells}</table>"
