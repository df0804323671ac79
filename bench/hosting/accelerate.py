"""A shuffle by P2P and a broadcast on a Dask cluster, with `treadle.accelerate` and without, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd

import treadle
from figures import Figure, Samples

# Of `df.shuffle`, and for `rechunk` none.
BAR = 2.5
COLUMNS = 10


def table(number: int, rows: int) -> pd.DataFrame:
    random = np.random.default_rng(number)
    columns = {f"c{at}": random.integers(0, 1 << 40, rows) for at in range(COLUMNS)}
    return pd.DataFrame(columns)


def length(frame: pd.DataFrame) -> pd.Series:
    return pd.Series([len(frame)])


def frame(partitions: int, rows: int) -> Any:
    make = partial(table, rows=rows // partitions)
    return dd.from_map(make, range(partitions), meta=table(0, 0))


def shuffled(frame: Any) -> Any:
    lengths = frame.shuffle("c1", shuffle_method="p2p").map_partitions(
        length, meta=pd.Series(dtype="int64")
    )
    return lengths.sum()


def rechunked(array: Any) -> Any:
    return array.rechunk((array.shape[0], array.shape[1] // 100), method="p2p").sum()


def measure(quick: bool) -> Iterator[Any]:
    rounds = 2 if quick else 5
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        rows, side = 8_000_000, 10_000
        held = client.persist(frame(64, rows))
        distributed.wait(held)
        yield _figure(
            f"`df.shuffle` of {rows * COLUMNS * 8 / 1e6:.0f} MB, 64 partitions",
            _in_turns(client, partial(shuffled, held), rows, rounds),
            BAR,
        )
        del held
        array = client.persist(da.ones((side, side), chunks=(100, side)))
        distributed.wait(array)
        yield _figure(
            f"`rechunk` of {side * side * 8 / 1e6:.0f} MB, rows to columns",
            _in_turns(client, partial(rechunked, array), side * side, rounds),
            None,
        )
    yield _broadcast(8, 100_000_000, rounds)


def _broadcast(workers: int, nbytes: int, rounds: int) -> Figure:
    array = np.arange(nbytes // 8)

    def scatter(client: distributed.Client) -> Any:
        future = client.scatter(array, broadcast=True, hash=False)
        assert len(client.who_has([future])[future.key]) == workers
        return future

    with (
        # Dask drops copies that no task waits for.
        dask.config.set({"distributed.scheduler.active-memory-manager.start": False}),
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        samples = _timed(client, lambda: scatter(client), rounds)
    what = f"`scatter(broadcast=True)` of {nbytes / 1e6:.0f} MB to {workers} workers"
    return _figure(what, samples, None)


def _in_turns(client: Any, graph: Any, expected: int, rounds: int) -> Samples:
    def compute() -> None:
        result = client.compute(graph()).result()
        assert result == expected, f"{result} came of {expected}"

    return _timed(client, compute, rounds)


def _timed(client: Any, function: Callable[[], object], rounds: int) -> Samples:
    """Time a function with and without Treadle, in turns. The second of two runs counts.

    A cluster is accelerated once, and then computes again and again. Whoever is accelerated anew begins in
    fresh memory.
    """
    samples = Samples()
    for _ in range(rounds):
        for name in ("dask", "treadle"):
            if name == "treadle":
                treadle.accelerate(client)
            for _ in range(2):
                started = time.perf_counter()
                result = function()
                taken = time.perf_counter() - started
                del result
            if name == "treadle":
                treadle.decelerate(client)
            samples.values.setdefault(name, []).append(taken)
    return samples


def _figure(what: str, samples: Samples, bar: float | None) -> Figure:
    ratio = samples.ratio("dask", "treadle")
    return Figure(
        f"{what}, accelerated",
        f"{samples.median('treadle'):.2f} s",
        f"Dask's own {samples.median('dask'):.2f} s",
        f"{ratio:.2f}",
        "" if bar is None else f"≥ {bar:g}",
        None if bar is None else ratio >= bar,
    )
