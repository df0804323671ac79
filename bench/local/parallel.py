"""Two threads: NumPy tasks that release the GIL, beside two plain Python threads that call the same function."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from dask._task_spec import Task

import treadle
from figures import Figure
from timing import interleave, ms

TASKS = 400


def crunch(x: np.ndarray) -> float:
    """About half a millisecond in one call that releases the GIL, in the core's own cache."""
    return float(np.sort(x)[0])


def call_all(arrays: list[np.ndarray]) -> None:
    for x in arrays:
        crunch(x)


def plain_threads(arrays: list[np.ndarray], count: int) -> None:
    threads = [threading.Thread(target=call_all, args=(arrays[i::count],)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def measure(quick: bool) -> list[Figure]:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(80_000)] * TASKS
    dsk: dict[Any, Task] = {("x", i): Task(("x", i), crunch, x) for i, x in enumerate(arrays)}
    keys = list(dsk)
    runs: dict[str, Any] = {}
    for count in (1, 2):
        runs[f"treadle {count}"] = lambda count=count: treadle.threaded.get(
            dsk, keys, num_workers=count
        )
        runs[f"plain {count}"] = lambda count=count: plain_threads(arrays, count)
    times = interleave(runs, 5 if quick else 15)
    ours, plain = times.ratio("treadle 1", "treadle 2"), times.ratio("plain 1", "plain 2")
    free = plain >= 1.8
    return [
        Figure(
            f"{TASKS} numpy tasks, 2 threads over 1",
            f"{ours:.2f} × ({ms(times.median('treadle 2'))}; two plain Python threads in the same run: {plain:.2f} ×"
            f"{'' if free else ', so the machine had no two free cores'})",
            bar="≥ 1.8 × with two free cores",
            passed=ours >= 1.8 if free or ours >= 1.8 else None,
        )
    ]
