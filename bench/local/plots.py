"""The two plots of Dask's published scheduling overhead, Treadle beside Dask, as pictures in ``bench/local/out``.

The workloads are those of the published page: five layers of ``width`` no-op tasks, each task reading the one below
(cost against nodes), and five layers of 1,000 tasks, each reading ``k`` random tasks of the layer below (cost against
edges). Both are written as tuples there, which every scheduler has to convert; the dashed lines are the
same graphs as ``Task`` nodes, which is what Dask's collections make today. A line ends where one run takes longer
than ``LONGEST`` seconds: Dask's processes take that long well before the last point.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.local
import dask.multiprocessing
import dask.threaded
import numpy as np
from dask._task_spec import convert_legacy_graph

import treadle
from figures import Figure
from timing import us

OUT = Path(__file__).parent / "out"
LAYERS = 5
WIDTH = 1_000
# Seconds after which a line ends.
LONGEST = 20
GETS: dict[str, tuple[Callable[..., Any], str]] = {
    "dask threads": (dask.threaded.get, "tab:orange"),
    "dask sync": (dask.local.get_sync, "tab:red"),
    "dask processes": (dask.multiprocessing.get, "tab:brown"),
    "treadle processes": (treadle.processes.get, "tab:cyan"),
    "treadle threads": (treadle.threaded.get, "tab:blue"),
    "treadle sync": (treadle.sync.get, "tab:green"),
}


def noop(x: Any) -> None:
    pass


def columns(width: int) -> tuple[dict[Any, Any], list[Any]]:
    """Independent chains of five tasks."""
    dsk: dict[Any, Any] = {("x", 0, i): i for i in range(width)}
    for layer in range(1, LAYERS):
        dsk |= {("x", layer, i): (noop, ("x", layer - 1, i)) for i in range(width)}
    return dsk, [("x", LAYERS - 1, i) for i in range(width)]


def crosstalk(reads: int) -> tuple[dict[Any, Any], list[Any]]:
    """Each task reads a list of ``reads`` random tasks of the layer below."""
    rng = random.Random(0)
    dsk: dict[Any, Any] = {("x", 0, i): i for i in range(WIDTH)}
    for layer in range(1, LAYERS):
        for i in range(WIDTH):
            dsk["x", layer, i] = (
                noop,
                [("x", layer - 1, rng.randrange(WIDTH)) for _ in range(reads)],
            )
    return dsk, [("x", LAYERS - 1, i) for i in range(WIDTH)]


def seconds(get: Callable[..., Any], dsk: Any, keys: list[Any], rounds: int) -> float:
    """Best of a few runs, fewer where one takes long: the plots show a cost, not its noise."""
    taken: list[float] = []
    while len(taken) < rounds and sum(taken) < 1:
        gc.collect()
        start = time.perf_counter()
        get(dsk, keys)
        taken.append(time.perf_counter() - start)
    return min(taken)


def sweep(cases: list[tuple[dict[Any, Any], list[Any]]], rounds: int) -> dict[str, np.ndarray]:
    """Seconds of each scheduler (rows tuples, rows ``Task`` nodes) over the cases; NaN where too long."""
    result = {}
    for name, (get, _) in GETS.items():
        get(*cases[0])
        taken = np.full((2, len(cases)), np.nan)
        for row, form in enumerate((dict, convert_legacy_graph)):
            for column, (dsk, keys) in enumerate(cases):
                taken[row, column] = seconds(get, form(dsk), keys, rounds)
                if taken[row, column] > LONGEST:
                    break
        result[name] = taken
    return result


def draw(
    path: Path,
    x: np.ndarray,
    taken: dict[str, np.ndarray],
    per: np.ndarray,
    what: str,
    unit: str,
    log_x: bool,
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (whole, single) = plt.subplots(
        ncols=2, sharex=True, figsize=(12, 5), layout="constrained"
    )
    for name, (_, colour) in GETS.items():
        for row, style, suffix in ((0, "-", ""), (1, "--", ", Task nodes")):
            whole.plot(x, taken[name][row], style, color=colour, label=name + suffix)
            single.plot(x, taken[name][row] / per, style, color=colour)
    for axes, title, label in (
        (whole, "Cost of the entire graph", "s"),
        (single, f"Cost per {unit}", f"s per {unit}"),
    ):
        axes.set(
            title=title,
            xlabel=what,
            ylabel=label,
            yscale="log",
            xscale="log" if log_x else "linear",
        )
        axes.grid(alpha=0.3)
    whole.legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def measure(quick: bool) -> list[Figure]:
    OUT.mkdir(exist_ok=True)
    rounds = 1 if quick else 5
    figures = []

    widths = np.logspace(0, 3 if quick else 4, 10).astype(int)
    nodes = widths * LAYERS
    taken = sweep([columns(int(w)) for w in widths], rounds)
    draw(OUT / "scheduling-nodes.png", nodes, taken, nodes, "number of tasks", "task", log_x=True)
    figures.append(
        published("published plot, nodes", taken, nodes, "task", OUT / "scheduling-nodes.png")
    )

    reads = np.linspace(1, 100, 4 if quick else 10).astype(int)
    edges = reads * WIDTH * (LAYERS - 1)
    taken = sweep([crosstalk(int(k)) for k in reads], rounds)
    draw(
        OUT / "scheduling-edges.png",
        reads,
        taken,
        edges,
        "number of edges per task",
        "edge",
        log_x=False,
    )
    figures.append(
        published("published plot, edges", taken, edges, "edge", OUT / "scheduling-edges.png")
    )
    return figures


def published(
    what: str, taken: dict[str, np.ndarray], counts: np.ndarray, unit: str, path: Path
) -> Figure:
    """The last point of each line, and where the picture is."""

    def last(line: np.ndarray) -> str:
        there = np.flatnonzero(~np.isnan(line))[-1]
        least = "" if there == len(line) - 1 else f" (at {counts[there]:,})"
        return us(line[there] / counts[there]) + least

    points = "; ".join(
        f"{name} {last(t[0])}, as Task nodes {last(t[1])}" for name, t in taken.items()
    )
    return Figure(
        f"{what}: per {unit} at {counts[-1]:,} {unit}s",
        f"{points}; picture: {path.relative_to(Path(__file__).parents[2])}",
    )
