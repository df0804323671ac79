"""Arrays and dataframes of the published report, beside distributed and bare NumPy or pandas.

Each workload runs with many small chunks on two workers of one thread (as people start), and with
large chunks on one worker of two threads (as experts do). All engines take turns. distributed has its defaults, with
which it may rechunk by P2P, and beside them tasks: the faster counts. The floor is the bare library on the whole
data with one core, over the number of cores.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.datasets import timeseries

import clusters
from figures import Figure, Samples, interleave, time_of

SIDE = 6_000
CORES = os.cpu_count() or 1


def _array(chunk: int) -> Any:
    return da.random.default_rng(0).random((SIDE, SIDE), chunks=chunk)


def _bare() -> Any:
    return np.random.default_rng(0).random((SIDE, SIDE))


def _frame(partition: str) -> Any:
    return timeseries("2000-01-01", "2000-01-08", freq="1s", partition_freq=partition, seed=0)


def _overlap(x: Any) -> Any:
    return x[1:-1] + x[:-2] + x[2:]


def _keep(client: Any, collection: Any) -> None:
    """Compute it and leave it where it is: the report does not bring results to the client."""
    clusters.wait(client, client.persist(collection))


def _get(client: Any, collection: Any) -> Any:
    return client.gather([client.compute(collection)])[0]


# On a client, and bare.
ARRAYS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "create": (
        lambda c, x: _keep(c, da.ones(x.shape, chunks=x.chunks)),
        lambda x: np.ones(x.shape),
    ),
    "elementwise": (
        lambda c, x: _keep(c, da.sin(x) ** 2 + da.cos(x) ** 2),
        lambda x: np.sin(x) ** 2 + np.cos(x) ** 2,
    ),
    "std": (lambda c, x: _get(c, x.std()), lambda x: x.std()),
    "random access": (lambda c, x: _get(c, x[1234, 4321]), lambda x: x[1234, 4321]),
    "x + x.T": (lambda c, x: _keep(c, x + x.T), lambda x: x + x.T),
    "rechunk, rows to columns": (
        lambda c, x: _keep(c, x.rechunk((SIDE, x.chunksize[1] // 4))),
        lambda x: np.asfortranarray(x),
    ),
    "rechunk, columns to rows": (
        lambda c, x: _keep(c, x.rechunk((x.chunksize[0] // 4, SIDE))),
        lambda x: np.array(x),
    ),
    "map_overlap": (
        lambda c, x: _keep(c, x.map_overlap(_overlap, depth={0: 1}, boundary=None, trim=False)),
        _overlap,
    ),
}

FRAMES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "groupby-mean": (
        lambda c, f: _get(c, f.groupby("name").x.mean()),
        lambda f: f.groupby("name").x.mean(),
    ),
    "std of columns": (
        lambda c, f: _get(c, f[["x", "y"]].std()),
        lambda f: f[["x", "y"]].std(),
    ),
    "rolling": (
        lambda c, f: _keep(c, f[["x", "y"]].rolling(30).mean()),
        lambda f: f[["x", "y"]].rolling(30).mean(),
    ),
    "cumulative sum": (
        lambda c, f: _keep(c, f[["x", "y"]].cumsum()),
        lambda f: f[["x", "y"]].cumsum(),
    ),
    "resample": (
        lambda c, f: _get(c, f[["x", "y"]].resample("1h").mean()),
        lambda f: f[["x", "y"]].resample("1h").mean(),
    ),
    "loc": (
        lambda c, f: _get(c, f.loc["2000-01-05"]),
        lambda f: f.loc["2000-01-05"],
    ),
}

SETTINGS: dict[str, tuple[int, int, int, str]] = {
    # workers, threads of each, chunk of arrays, partition of frames
    "naive": (2, 1, 500, "3h"),
    "expert": (1, 2, 2000, "42h"),
}


def timed(call: Callable[..., Any], *arguments: Any, times: int) -> float:
    call(*arguments)
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        call(*arguments)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def turns_of(
    clients: dict[str, Any], run: Callable[[Any, Any], Any], make: Callable[[], Any]
) -> dict[str, Callable[[], float]]:
    """Seconds of ``run``, on what each client holds already."""

    def turn(client: Any, data: Any, settle: Callable[[], None], method: str | None) -> float:
        settle()
        with dask.config.set({"array.rechunk.method": method}), _current(client):
            start = time.perf_counter()
            run(client, data)
            return time.perf_counter() - start

    found = {}
    for name, client in clients.items():
        data = client.persist(make())
        clusters.wait(client, data)
        settle = clusters.settled(client, clusters.held(client))
        found[name] = partial(turn, client, data, settle, None)
        if name == "distributed" and data.__class__ is da.Array:
            found["distributed, tasks"] = partial(turn, client, data, settle, "tasks")
    return found


def _current(client: Any) -> Any:
    return client.as_current() if hasattr(client, "as_current") else contextlib.nullcontext()


def on(
    clients: dict[str, Any], setting: tuple[int, int, int, str], times: int
) -> Iterator[tuple[str, Samples]]:
    """Seconds of each workload on each client, in turns."""
    *_, chunk, partition = setting
    for workloads, make in ((ARRAYS, partial(_array, chunk)), (FRAMES, partial(_frame, partition))):
        for what, (run, _) in workloads.items():
            # What a client holds is released when the workload is over.
            yield what, interleave(turns_of(clients, run, make), times)


def bare(times: int) -> dict[str, float]:
    found = {}
    array = _bare()
    for what, (_, run) in ARRAYS.items():
        found[what] = timed(run, array, times=times)
    del array
    with dask.config.set(scheduler="threads"):
        whole = _frame("42h").compute()
    for what, (_, run) in FRAMES.items():
        found[what] = timed(run, whole, times=times)
    return found


def mean_of(ratios: Mapping[str, float]) -> float:
    """The geometric mean; what only creates data is shown and not counted."""
    counted = [ratio for what, ratio in ratios.items() if what != "create"]
    return math.exp(statistics.fmean(math.log(ratio) for ratio in counted))


def measure(quick: bool) -> Iterator[Figure]:
    times = 1 if quick else 3
    floors = bare(times)
    for label, setting in SETTINGS.items():
        ratios: dict[str, dict[str, float]] = {"distributed": {}, "frisky": {}}
        with clusters.beside(*setting[:2]) as clients:
            for what, samples in on(clients, setting, times):
                ours = samples.median("treadle")
                theirs = [name for name in samples.values if name.startswith("distributed")]
                best = min(theirs, key=samples.median)
                ratio = ratios["distributed"][what] = samples.ratio(best, "treadle")
                told = [f"{name} {time_of(samples.median(name))}" for name in theirs]
                if "frisky" in samples:
                    ratios["frisky"][what] = samples.ratio("frisky", "treadle")
                    told.append(f"frisky {time_of(samples.median('frisky'))}")
                share = floors[what] / CORES / ours
                yield Figure(
                    f"{what} ({label})",
                    time_of(ours),
                    ", ".join(told),
                    f"{ratio:.2f} ×",
                    "≥ 1 ×",
                    ratio >= 1,
                    f"bare, over {CORES} cores: {time_of(floors[what] / CORES)} ({share:.0%})",
                )
        for peer, least in (("distributed", 2), ("frisky", 1)):
            if ratios[peer]:
                mean = mean_of(ratios[peer])
                yield Figure(
                    f"all of these but `create` ({label}), geometric mean",
                    "",
                    peer,
                    f"{mean:.2f} ×",
                    f"≥ {least} ×",
                    mean >= least,
                )
