"""Whole analyses beside Dask's own threads: climatologies, joins and aggregates, a decomposition, a stencil, delayed trees.

Both engines have two threads and take turns; a turn builds the collection, as a user's script does, and computes it. The
last column has the shares of the time that Dask itself took (building and optimising graphs), the functions of the tasks,
and the engine: functions are timed in a run of its own by Dask's profiler, and their sum is divided by the threads.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import dask.threaded
import numpy as np
import pandas as pd
import xarray as xr
from dask.diagnostics import Profiler

import treadle
from figures import Figure, interleave, time_of

THREADS = 2
ENGINES = {"treadle": treadle.threaded.get, "dask": dask.threaded.get}


@functools.cache
def temperatures(days: int, chunk: int, side: int = 90) -> Any:
    """Days of a field of ``side`` × 2 ``side`` numbers, ``chunk`` days to a block, in memory."""
    values = np.random.default_rng(0).random((days, side, 2 * side), dtype="f4")
    time_ = pd.date_range("2000-01-01", periods=days)
    field = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"time": time_})
    return field.chunk({"time": chunk})


def climatology() -> Any:
    field = temperatures(1461, 30)
    return (field.groupby("time.month") - field.groupby("time.month").mean()).std("time")


def resampling() -> Any:
    return temperatures(1461, 10).resample(time="1MS").mean()


def rolling() -> Any:
    return temperatures(1461, 60).rolling(time=30).mean().max("time")


def quantiles() -> Any:
    field = temperatures(365, 30).chunk({"time": -1, "lat": 15, "lon": 15})
    return field.quantile([0.1, 0.5, 0.9], dim="time")


@functools.cache
def tables(orders: int, partitions: int) -> tuple[Any, Any, Any]:
    """Customers, their orders, and four lines of each order: keys, dates, prices, flags."""
    random = np.random.default_rng(0)
    days = pd.Timestamp("1995-01-01") + pd.to_timedelta(random.integers(0, 2500, orders), "D")
    customers = orders // 10
    customer = pd.DataFrame({"custkey": np.arange(customers)})
    customer["segment"] = random.integers(0, 5, customers)
    order = pd.DataFrame({"orderkey": np.arange(orders), "date": days})
    order["custkey"] = random.integers(0, customers, orders)
    line = pd.DataFrame({"orderkey": np.repeat(np.arange(orders), 4)})
    line["price"] = random.random(len(line)) * 1e4
    line["discount"] = random.integers(0, 11, len(line)) / 100
    line["flag"] = pd.Categorical.from_codes(random.integers(0, 3, len(line)), ["A", "N", "R"])
    line["status"] = pd.Categorical.from_codes(random.integers(0, 2, len(line)), ["F", "O"])
    return (
        dd.from_pandas(customer, npartitions=max(1, partitions // 8)),
        dd.from_pandas(order, npartitions=max(1, partitions // 2)),
        dd.from_pandas(line, npartitions=partitions),
    )


def aggregate() -> Any:
    """As TPC-H's first query."""
    line = tables(500_000, 64)[2]
    line = line.assign(paid=line.price * (1 - line.discount))
    groups = line.groupby(["flag", "status"], observed=True)
    return groups.agg({"price": ["sum", "mean"], "paid": "sum", "discount": "mean"})


def join() -> Any:
    """As TPC-H's third query: the ten orders of a segment with the highest revenue."""
    customer, order, line = tables(200_000, 32)
    order = order[order.date < "1999-03-15"]
    found = customer[customer.segment == 1].merge(order, on="custkey").merge(line, on="orderkey")
    found = found.assign(revenue=found.price * (1 - found.discount))
    return found.groupby("orderkey").revenue.sum(split_out=4).nlargest(10)


def decomposition() -> Any:
    x = da.random.default_rng(0).random((40_000, 200), chunks=(1_000, 200))
    return da.linalg.svd_compressed(x, k=10, seed=0)[1]


def stencil() -> Any:
    def step(x: Any) -> Any:
        return 0.25 * (np.roll(x, 1, 0) + np.roll(x, -1, 0) + np.roll(x, 1, 1) + np.roll(x, -1, 1))

    x = da.random.default_rng(0).random((2_000, 2_000), chunks=250)
    for _ in range(8):
        x = x.map_overlap(step, depth=1, boundary="periodic")
    return x.sum()


def tree() -> Any:
    add = dask.delayed(np.add, pure=False)
    level = [dask.delayed(np.full)(1_000, leaf) for leaf in range(2_048)]
    while len(level) > 1:
        level = [add(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0]


PIPELINES: dict[str, Callable[[], Any]] = {
    "climatology of four years, anomalies by month (xarray)": climatology,
    "monthly means of four years (xarray)": resampling,
    "rolling means over 30 days (xarray)": rolling,
    "three quantiles of each place (xarray)": quantiles,
    "aggregates by two flags, 2 million lines (TPC-H 1)": aggregate,
    "three tables joined, 800,000 lines (TPC-H 3)": join,
    "SVD of 40,000 × 200, compressed": decomposition,
    "eight steps of a stencil, 64 blocks": stencil,
    "a tree of 4,095 delayed sums": tree,
}


class Timed:
    """A scheduler, and the seconds that it took."""

    def __init__(self, get: Callable[..., Any]) -> None:
        self._get, self.seconds = get, 0.0

    def __call__(self, *args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return self._get(*args, **options)
        finally:
            self.seconds += time.perf_counter() - start


def run(build: Callable[[], Any], get: Callable[..., Any]) -> Any:
    return dask.compute(build(), scheduler=get, num_workers=THREADS)[0]


def shares(build: Callable[[], Any], get: Callable[..., Any]) -> str:
    """Of the time of one run: Dask itself, the functions of the tasks, the engine."""
    timed = Timed(get)
    start = time.perf_counter()
    run(build, timed)
    whole = time.perf_counter() - start
    with Profiler() as profiler:
        run(build, get)
    # The profiler makes functions a little longer: they cannot take more than there was.
    functions = sum(task.end_time - task.start_time for task in profiler.results) / THREADS
    functions = min(functions, timed.seconds)
    parts = (whole - timed.seconds, functions, timed.seconds - functions)
    return "{:.0%}, {:.0%}, {:.0%}".format(*(part / whole for part in parts))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, pd.DataFrame | pd.Series):
        # The order of rows of one group is not promised.
        return bool(np.allclose(one.sort_index(), other.sort_index()))
    return bool(np.allclose(one, other, equal_nan=True))


def measure(quick: bool) -> Iterator[Figure]:
    rounds = 2 if quick else 5
    # Tables are large enough for Dask to turn strings into Arrow's, which is no part of this.
    with dask.config.set({"dataframe.convert-string": False}):
        for what, build in PIPELINES.items():
            if not equal(*(run(build, get) for get in ENGINES.values())):
                raise RuntimeError(f"{what}: the engines' results differ")

            def seconds(get: Callable[..., Any], build: Callable[[], Any] = build) -> float:
                start = time.perf_counter()
                run(build, get)
                return time.perf_counter() - start

            turns = {name: functools.partial(seconds, get) for name, get in ENGINES.items()}
            samples = interleave(turns, rounds)
            ratio = samples.ratio("dask", "treadle")
            told = {name: shares(build, get) for name, get in ENGINES.items()}
            yield Figure(
                what,
                time_of(samples.median("treadle")),
                f"Dask's threads {time_of(samples.median('dask'))}",
                f"{ratio:.2f} ×",
                "≥ 1 ×",
                ratio >= 1,
                f"Dask, functions, engine: {told['treadle']}; with Dask's threads {told['dask']}",
            )
