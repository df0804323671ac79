"""Peak memory of the workers while arrays move between them, beside distributed.

What counts is the proportional set size of the worker processes, so pages that two of them share
count once. It is sampled; the peak is that above what the workers have before, when they have done
the same work once on a small array: the modules that it needs are loaded, by both engines.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask
import dask.array as da
from dask.distributed import wait

import clusters
from figures import Figure
from peaks import peak, proportional

SIDE = 6_000
CHUNK = 500
WARM_SIDE, WARM_CHUNK = 64, 16
MB = 1e6

WORK: dict[str, Callable[[Any], Any]] = {
    "x + x.T": lambda x: x + x.T,
    "rechunk, rows to columns": lambda x: x.rechunk(
        (x.shape[0], x.chunksize[1] // 4), method="tasks"
    ),
}


def _do(work: Callable[[Any], Any], side: int, chunk: int) -> None:
    x = da.random.default_rng(0).random((side, side), chunks=chunk).persist()
    wait(x)
    wait(dask.persist(work(x))[0])


def _load() -> None:
    """Load what the work needs, on a worker that none of the small array's tasks may have run on."""
    import dask.array

    dask.array.random.default_rng(0).random((2, 2), chunks=1).sum().compute(scheduler="sync")


def on(name: str, rounds: int) -> dict[str, float]:
    """The peak of each work, in bytes above the memory of workers that have just started."""
    found: dict[str, list[float]] = {what: [] for what in WORK}
    for what, work in WORK.items():
        for _ in range(rounds):
            with clusters.CLIENTS[name]() as client:
                pids = list(client.run(os.getpid).values())
                _do(work, WARM_SIDE, WARM_CHUNK)
                client.run(_load)
                before = sum(map(proportional, pids))
                found[what].append(peak(pids, partial(_do, work, SIDE, CHUNK)) - before)
    return {what: statistics.median(peaks) for what, peaks in found.items()}


def measure(quick: bool) -> Iterator[Figure]:
    rounds = 1 if quick else 3
    ours = on("treadle", rounds)
    theirs = on("distributed", rounds)
    size = SIDE * SIDE * 8
    for what in WORK:
        ratio = ours[what] / theirs[what]
        yield Figure(
            f"peak memory of {what}",
            f"{ours[what] / MB:.0f} MB",
            f"distributed {theirs[what] / MB:.0f} MB",
            f"{ratio:.2f} ×",
            "≤ 1 ×",
            ratio <= 1,
            f"input and result: {2 * size / MB:.0f} MB",
        )
