"""Cost an edge: 2,000 tasks that each read k others, k from 1 to 100, against a bare loop that looks them up.

The cost of one edge is the slope of the time over the number of edges, so that the cost of the task is not in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import dask.local
import numpy as np

import graphs
import treadle
from figures import Figure
from timing import interleave, us

TASKS = 2_000
READS = (1, 2, 5, 10, 20, 50, 100)
PEER_READS = (10, 100)  # Dask needs seconds for each

Get = Callable[[Any, Any], Any]
Seconds = dict[int, list[float]]


def slopes(seconds: Seconds, reads: tuple[int, ...]) -> list[float]:
    """Seconds an edge, one a round: least squares over the given numbers of reads."""
    edges = np.array([k * TASKS for k in reads])
    return [
        float(np.polyfit(edges, round_, 1)[0]) for round_ in np.array([seconds[k] for k in reads]).T
    ]


def bend(seconds: Seconds) -> float:
    """What an edge costs between the two largest numbers of reads, over what it costs below."""
    last, rest = slopes(seconds, READS[-2:]), slopes(seconds, READS[:-1])
    return statistics.median(last) / statistics.median(rest)


def sweep(runs: dict[str, Get], reads: tuple[int, ...], rounds: int) -> dict[str, Seconds]:
    """Seconds of each run by the number of reads."""
    result: dict[str, Seconds] = {name: {} for name in runs}
    for k in reads:
        dsk, keys = graphs.dense(TASKS, k)
        bound = {name: partial(run, dsk, keys) for name, run in runs.items()}
        for name, taken in interleave(bound, rounds, least_seconds=0.02).seconds.items():
            result[name][k] = taken
    return result


def measure(quick: bool) -> list[Figure]:
    runs = {
        "bare": lambda dsk, _keys: graphs.bare_dense(dsk),
        "sync": treadle.sync.get,
        "threads": partial(treadle.threaded.get, num_workers=2),
    }
    seconds = sweep(runs, READS, 5 if quick else 11)
    seconds |= sweep({"dask sync": dask.local.get_sync}, PEER_READS, 1 if quick else 3)
    slope = {name: slopes(s, tuple(s)) for name, s in seconds.items()}
    edge = {name: statistics.median(s) for name, s in slope.items()}
    bends = {name: bend(seconds[name]) for name in runs}
    figures = []
    for who in ("sync", "threads"):
        ratio = statistics.median(a / b for a, b in zip(slope[who], slope["bare"], strict=True))
        figures.append(
            Figure(
                f"dense edges, {who}, per edge over bare loop",
                f"{ratio:.2f} × ({us(edge[who])} over {us(edge['bare'])}; dask sync {us(edge['dask sync'])})",
                bar="≤ 1 ×",
                passed=ratio <= 1,
            )
        )
        # Least squares over all k is carried by the largest: compare what an edge costs there with
        # the rest. The bare loop also slows down where the arguments outgrow the caches.
        relative = bends[who] / bends["bare"]
        figures.append(
            Figure(
                f"dense edges, {who}: per edge over bare loop from k = 50 to 100, relative to up to 50",
                f"{relative:.2f} × (edges alone {bends[who]:.2f} ×, bare loop {bends['bare']:.2f} ×)",
                bar="linear: ≤ 1.25 ×",
                passed=relative <= 1.25,
            )
        )
    return figures
