"""Arrays and dataframes of the published report, beside distributed and bare NumPy or pandas.

Each workload runs with many small chunks on two workers of one thread (as people start), and with
large chunks on one worker of two threads (as experts do). The floor is the bare library on the whole
data with one core, over the number of cores.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.datasets import timeseries
from distributed import wait

import clusters
from figures import Figure, time_of

SIDE = 6_000
CORES = os.cpu_count() or 1


def _array(chunk: int) -> Any:
    return da.random.default_rng(0).random((SIDE, SIDE), chunks=chunk).persist()


def _bare() -> Any:
    return np.random.default_rng(0).random((SIDE, SIDE))


def _frame(partition: str) -> Any:
    return timeseries(
        "2000-01-01", "2000-01-08", freq="1s", partition_freq=partition, seed=0
    ).persist()


def _overlap(x: Any) -> Any:
    return x[1:-1] + x[:-2] + x[2:]


def _keep(collection: Any) -> None:
    """Compute it and leave it where it is: the report does not bring results to the client."""
    wait(dask.persist(collection)[0])


ARRAYS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "create": (
        lambda x: _keep(da.ones(x.shape, chunks=x.chunks)),
        lambda x: np.ones(x.shape),
    ),
    "elementwise": (
        lambda x: _keep(da.sin(x) ** 2 + da.cos(x) ** 2),
        lambda x: np.sin(x) ** 2 + np.cos(x) ** 2,
    ),
    "std": (lambda x: x.std().compute(), lambda x: x.std()),
    "random access": (lambda x: x[1234, 4321].compute(), lambda x: x[1234, 4321]),
    "x + x.T": (lambda x: _keep(x + x.T), lambda x: x + x.T),
    "rechunk, rows to columns": (
        lambda x: _keep(x.rechunk((SIDE, x.chunksize[1] // 4), method="tasks")),
        lambda x: np.asfortranarray(x),
    ),
    "rechunk, columns to rows": (
        lambda x: _keep(x.rechunk((x.chunksize[0] // 4, SIDE), method="tasks")),
        lambda x: np.array(x),
    ),
    "map_overlap": (
        lambda x: _keep(x.map_overlap(_overlap, depth={0: 1}, boundary=None, trim=False)),
        _overlap,
    ),
}

FRAMES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "groupby-mean": (
        lambda f: f.groupby("name").x.mean().compute(),
        lambda f: f.groupby("name").x.mean(),
    ),
    "std of columns": (
        lambda f: f[["x", "y"]].std().compute(),
        lambda f: f[["x", "y"]].std(),
    ),
    "rolling": (
        lambda f: _keep(f[["x", "y"]].rolling(30).mean()),
        lambda f: f[["x", "y"]].rolling(30).mean(),
    ),
    "cumulative sum": (
        lambda f: _keep(f[["x", "y"]].cumsum()),
        lambda f: f[["x", "y"]].cumsum(),
    ),
    "resample": (
        lambda f: f[["x", "y"]].resample("1h").mean().compute(),
        lambda f: f[["x", "y"]].resample("1h").mean(),
    ),
    "loc": (
        lambda f: f.loc["2000-01-05"].compute(),
        lambda f: f.loc["2000-01-05"],
    ),
}

SETTINGS: dict[str, tuple[int, int, int, str]] = {
    # workers, threads of each, chunk of arrays, partition of frames
    "naive": (2, 1, 500, "3h"),
    "expert": (1, 2, 2000, "42h"),
}


def timed(
    call: Callable[[Any], Any],
    argument: Any,
    times: int,
    settle: Callable[[], None] = lambda: None,
) -> float:
    call(argument)
    seconds = []
    for _ in range(times):
        settle()
        start = time.perf_counter()
        call(argument)
        seconds.append(time.perf_counter() - start)
    settle()
    return statistics.median(seconds)


def on(name: str, setting: tuple[int, int, int, str], times: int) -> dict[str, float]:
    workers, threads, chunk, partition = setting
    dask.config.set({"dataframe.shuffle.method": "tasks"})
    found = {}
    with clusters.CLIENTS[name](workers, threads) as client:
        array = _array(chunk)
        wait(array)
        settle = clusters.settled(client, set(client.who_has()))
        for what, (run, _) in ARRAYS.items():
            found[what] = timed(run, array, times, settle)
        del array
        frame = _frame(partition)
        wait(frame)
        settle = clusters.settled(client, set(client.who_has()))
        for what, (run, _) in FRAMES.items():
            found[what] = timed(run, frame, times, settle)
        del frame
    return found


def bare(times: int) -> dict[str, float]:
    found = {}
    array = _bare()
    for what, (_, run) in ARRAYS.items():
        found[what] = timed(run, array, times)
    del array
    with dask.config.set(scheduler="threads"):
        whole = timeseries(
            "2000-01-01", "2000-01-08", freq="1s", partition_freq="42h", seed=0
        ).compute()
    for what, (_, run) in FRAMES.items():
        found[what] = timed(run, whole, times)
    return found


def measure(quick: bool) -> Iterator[Figure]:
    times = 1 if quick else 3
    floors = bare(times)
    for label, setting in SETTINGS.items():
        ours = on("treadle", setting, times)
        theirs = on("distributed", setting, times)
        ratios = {what: theirs[what] / ours[what] for what in ours}
        for what, ratio in ratios.items():
            share = floors[what] / CORES / ours[what]
            yield Figure(
                f"{what} ({label})",
                time_of(ours[what]),
                f"distributed {time_of(theirs[what])}",
                f"{ratio:.2f} ×",
                "≥ 1 ×",
                ratio >= 1,
                f"bare, over {CORES} cores: {time_of(floors[what] / CORES)} ({share:.0%})",
            )
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios.values()))
        yield Figure(
            f"all of these ({label}), geometric mean",
            "",
            "distributed",
            f"{mean:.2f} ×",
            "≥ 2 ×",
            mean >= 2,
        )
