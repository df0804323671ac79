"""Two processes: pure Python tasks beside one thread and a bare pool, and a large value from one process to the other.

Dask's processes are in the same turns. They are started for each graph, as Dask does by itself; ours are kept.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import dask.multiprocessing
import numpy as np

import treadle
from figures import Figure
from timing import interleave, ms

TASKS = 40
STEPS = 400_000
# Doubles: 160 MB.
LONG = 20_000_000


def count(start: int) -> int:
    """Some 20 ms of pure Python, which holds the interpreter's lock."""
    total = start
    for step in range(STEPS):
        total += step & 3
    return total


def make(value: int) -> np.ndarray:
    return np.full(LONG, float(value))


def corners(first: np.ndarray, second: np.ndarray) -> float:
    return float(first[0] + first[-1] + second[0] + second[-1])


def pure_python(rounds: int) -> list[Figure]:
    dsk: dict[Any, Any] = {("x", i): (count, i) for i in range(TASKS)}
    keys = list(dsk)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        times = interleave(
            {
                "treadle sync": lambda: treadle.sync.get(dsk, keys),
                "treadle threads": lambda: treadle.threaded.get(dsk, keys, num_workers=2),
                "treadle processes": lambda: treadle.processes.get(dsk, keys, num_workers=2),
                "dask processes": lambda: dask.multiprocessing.get(dsk, keys, num_workers=2),
                "bare pool": lambda: list(pool.map(count, range(TASKS))),
            },
            rounds,
        )
    ours = times.ratio("treadle sync", "treadle processes")
    bare = times.ratio("treadle sync", "bare pool")
    # Where even a bare pool gains less, the machine has no two free cores.
    free = bare >= 1.8
    return [
        Figure(
            f"{TASKS} pure Python tasks of {ms(times.median('treadle sync') / TASKS)}, two processes over one thread",
            f"{ours:.2f} × ({ms(times.median('treadle processes'))}; two threads {times.ratio('treadle sync', 'treadle threads'):.2f} ×, "
            f"dask's processes {times.ratio('treadle sync', 'dask processes'):.2f} ×, a bare pool of two {bare:.2f} ×"
            f"{'' if free else ', so the machine had no two free cores'})",
            bar="≥ 1.8 × with two free cores",
            passed=ours >= 1.8 if free or ours >= 1.8 else None,
        )
    ]


def between_tasks(rounds: int) -> list[Figure]:
    dsk = {"a": (make, 1), "b": (make, 2), "c": (corners, "a", "b")}
    times = interleave(
        {
            "treadle": lambda: treadle.processes.get(dsk, "c", num_workers=2),
            "dask": lambda: dask.multiprocessing.get(dsk, "c", num_workers=2, optimize_graph=False),
        },
        rounds,
    )
    ratio = times.ratio("dask", "treadle")
    return [
        Figure(
            "two arrays of 160 MB made on two processes, read by one task: dask's processes over treadle's",
            f"{ratio:.1f} × ({ms(times.median('dask'))} over {ms(times.median('treadle'))})",
            bar="≥ 10 ×",
            passed=ratio >= 10,
        )
    ]


def measure(quick: bool) -> list[Figure]:
    rounds = 3 if quick else 7
    return [*pure_python(rounds), *between_tasks(rounds)]
