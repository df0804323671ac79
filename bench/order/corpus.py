"""The corpus on which orderings are compared: real collections, materialised as a scheduler receives them.

Each builder returns the collections that a user would compute (or persist) together.
:func:`build` captures the graph and the keys that ``dask.compute`` hands to a scheduler's ``get``,
so optimisation, fusion and finalising tasks are Dask's own, and nothing is computed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr
from dask._task_spec import GraphNode, Task, TaskRef, convert_legacy_graph
from dask.core import flatten
from dask.delayed import delayed

Graph = dict[Any, GraphNode]
Case = tuple[Graph, list[Any]]

BUILDERS: dict[str, tuple[str, Callable[[], Any]]] = {}


def case(mode: str = "compute") -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a builder: what it returns goes to ``dask.compute`` or, where every chunk is kept, to
    ``dask.persist``; with ``graph`` it is a graph and its keys already."""

    def register(builder: Callable[[], Any]) -> Callable[[], Any]:
        BUILDERS[builder.__name__] = (mode, builder)
        return builder

    return register


class _Captured(Exception):
    """Stops ``compute`` at the moment it would have called the scheduler."""


def capture(collections: Iterable[Any], mode: str = "compute") -> Case:
    """The graph and flat list of keys that ``dask.compute`` or ``dask.persist`` gives to ``get``."""
    received: list[tuple[Any, Any]] = []

    def get(dsk: Any, keys: Any, **_kwargs: Any) -> None:
        received.append((dsk, keys))
        raise _Captured

    with contextlib.suppress(_Captured):
        getattr(dask, mode)(*collections, scheduler=get)
    dsk, keys = received[0]
    if not isinstance(dsk, Mapping):
        dsk = dsk.__dask_graph__()
    return convert_legacy_graph(dsk), list(flatten([keys]))


def build(name: str) -> Case:
    """Build one graph of the corpus by name.

    Seeds are fixed; what still changes from run to run is Dask's walking over sets: fix ``PYTHONHASHSEED``
    (a few graphs, such as the climatology with flox, move by some percent even then).
    """
    mode, builder = BUILDERS[name]
    made = builder()
    if mode == "graph":
        return made
    return capture(made if isinstance(made, tuple) else (made,), mode)


def normal(*shape: int, chunks: Any) -> da.Array:
    return da.random.default_rng(0).standard_normal(shape, chunks=chunks)


def read_part(part: int, rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng((seed, part))
    return pd.DataFrame(
        {"a": rng.integers(0, 100, rows), "x": rng.random(rows), "y": rng.random(rows)}
    )


def table(npartitions: int, rows: int = 8, seed: int = 0) -> dd.DataFrame:
    """A dataframe whose partitions are made by one opaque task each, as reading a file would."""
    return dd.from_map(read_part, range(npartitions), rows=rows, seed=seed, meta=read_part(0, 0, 0))


# Reductions ---------------------------------------------------------------------------------------


@case()
def tree_sum() -> Any:
    return normal(8000, chunks=(2,)).sum()


@case()
def mean_and_std_2d() -> Any:
    x = normal(400, 400, chunks=(10, 10))
    return x.mean(axis=0), x.std(axis=1), x.max()


@case()
def standardise() -> Any:
    # Every chunk is needed again after the statistics of all chunks are known.
    x = normal(2000, 40, chunks=(10, 10))
    return ((x - x.mean(axis=0)) / x.std(axis=0)).sum()


@case()
def covariance() -> Any:
    return da.cov(normal(40, 2000, chunks=(10, 20)))


@case()
def wide_fan_in() -> Any:
    # Each of 60 outputs reads each of 200 inputs: 12,000 edges, no structure to exploit.
    parts = [delayed(np.ones)(10, dask_key_name=("part", i)) for i in range(200)]
    return tuple(delayed(sum)(parts, dask_key_name=("out", j)) for j in range(60))


# Moving chunks: large arrays, so that Dask does not merge all chunks into one on the way.


@case()
def rechunk_rows_to_columns() -> Any:
    return (
        normal(20_000, 20_000, chunks=(500, 20_000))
        .rechunk((20_000, 500), method="tasks")
        .sum(axis=0)
    )


@case("persist")
def rechunk_columns_to_rows() -> Any:
    return normal(20_000, 20_000, chunks=(20_000, 500)).rechunk((500, 20_000), method="tasks") + 1


@case()
def rechunk_in_steps() -> Any:
    x = normal(1200, 1200, 1200, chunks=(30, 600, 600)).rechunk((600, 30, 600), method="tasks")
    return (x * 2).rechunk((600, 600, 30), method="tasks").std()


@case()
def shuffle_tasks() -> Any:
    return table(128).shuffle("a", shuffle_method="tasks", max_branch=8).x.sum()


@case("persist")
def shuffle_then_map() -> Any:
    return table(64).shuffle("a", shuffle_method="tasks", max_branch=64).map_partitions(len)


@case()
def merge_tasks() -> Any:
    left, right = table(40), table(24, seed=1)
    return left.merge(right, on="a", shuffle_method="tasks").groupby("a").x_x.mean()


@case()
def transpose_sum() -> Any:
    x = normal(300, 300, chunks=(10, 10))
    return (x + x.T).sum()


# Neighbourhoods -----------------------------------------------------------------------------------


@case()
def map_overlap() -> Any:
    x = normal(300, 300, chunks=(10, 10))
    return x.map_overlap(lambda b: b, depth=1, boundary="periodic", meta=x._meta).sum()


@case("persist")
def stencil_three_steps() -> Any:
    x = normal(160, 160, chunks=(10, 10))
    for _ in range(3):
        x = x.map_overlap(lambda b: b, depth=1, boundary="none", meta=x._meta)
    return x


@case()
def vorticity() -> Any:
    # A field and its neighbours in both directions, as a gradient on a periodic grid needs them.
    u, v = (
        da.random.default_rng(s).standard_normal((30, 90, 90), chunks=(1, 90, 30)) for s in (1, 2)
    )
    pad_x = lambda a: da.concatenate([a, a[:, :, :1]], axis=2)  # noqa: E731
    pad_y = lambda a: da.concatenate([a, a[:, :1, :]], axis=1)  # noqa: E731
    zeta = da.diff(pad_x(v), axis=2) - da.diff(pad_y(u), axis=1)
    return (zeta**2).mean(axis=0)


# Linear algebra -----------------------------------------------------------------------------------


@case()
def matmul() -> Any:
    return (normal(200, 200, chunks=(10, 10)) @ normal(200, 200, chunks=(10, 10))).sum()


@case("persist")
def tensordot() -> Any:
    a = normal(40, 40, 40, chunks=(5, 5, 10))
    return da.tensordot(a, a, axes=((1, 2), (0, 2)))


@case()
def tall_qr() -> Any:
    q, r = da.linalg.qr(normal(4000, 10, chunks=(10, 10)))
    return (q @ r).sum()


@case()
def svd_compressed() -> Any:
    u, s, v = da.linalg.svd_compressed(
        normal(1000, 200, chunks=(20, 50)), k=5, n_power_iter=2, seed=0
    )
    return u, s, v


@case()
def cholesky() -> Any:
    x = normal(120, 120, chunks=(10, 10))
    return da.linalg.cholesky(x @ x.T, lower=True)


@case()
def linear_regression() -> Any:
    # Gradient descent: the data is read again in each step.
    x, y = normal(4000, 8, chunks=(20, 8)), normal(4000, chunks=(20,))
    beta = da.zeros(8, chunks=8)
    for _ in range(5):
        beta = beta - 0.1 * (x.T @ (x @ beta - y)) / len(y)
    return beta


@case()
def normal_equations() -> Any:
    x, y = normal(8000, 20, chunks=(20, 10)), normal(8000, chunks=(20,))
    return x.T @ x, x.T @ y


@case("persist")
def fft2() -> Any:
    x = normal(15_000, 15_000, chunks=(500, 15_000))
    return (
        abs(da.fft.fft(da.fft.fft(x, axis=1).rechunk((15_000, 500), method="tasks"), axis=0)) ** 2
    )


# Scans --------------------------------------------------------------------------------------------


@case("persist")
def cumsum_sequential() -> Any:
    return normal(40, 4000, chunks=(10, 20)).cumsum(axis=1, method="sequential")


@case("persist")
def cumprod_blelloch() -> Any:
    return normal(40, 4000, chunks=(10, 20)).cumprod(axis=1, method="blelloch")


@case()
def dataframe_cumsum() -> Any:
    return table(300).x.cumsum().max()


# Tables -------------------------------------------------------------------------------------------


@case()
def groupby_tree() -> Any:
    return table(1000).groupby("a").agg({"x": ["mean", "std"], "y": "max"})


@case("persist")
def groupby_split_out() -> Any:
    return table(100).groupby("a").x.mean(split_out=12)


@case()
def dataframe_pipeline() -> Any:
    t = table(200)
    t = t[t.x > 0.1].assign(z=t.x * t.y)
    return t.z.sum(), t.groupby("a").z.mean(), t.z.mean(), t.x.max() - t.y.min()


@case()
def bag_foldby() -> Any:
    words = db.from_sequence(range(20000), npartitions=400).map(str)
    return words.foldby(len, lambda n, _: n + 1, 0, lambda p, q: p + q), words.map(len).mean()


# Weather and climate ------------------------------------------------------------------------------


def air(years: int = 3, step: int = 10) -> xr.DataArray:
    time = pd.date_range("2001-01-01", periods=365 * years, freq="D")
    data = normal(len(time), 40, 60, chunks=(step, 40, 30))
    return xr.DataArray(data, dims=("time", "lat", "lon"), coords={"time": time}, name="air")


@case()
def climatology_anomaly() -> Any:
    with xr.set_options(use_flox=False):
        groups = air(years=2).groupby("time.dayofyear")
        return (groups - groups.mean("time")).std("time")


if importlib.util.find_spec("flox"):  # without it xarray would quietly take its own way

    @case()
    def climatology_anomaly_flox() -> Any:
        with xr.set_options(use_flox=True):
            groups = air(years=4).groupby("time.month")
            return (groups - groups.mean("time")).std("time")


@case()
def monthly_means() -> Any:
    with xr.set_options(use_flox=False):
        return air(years=4).resample(time="MS").mean().max("time")


@case()
def quadratic_means() -> Any:
    # Pangeo's example: products of two fields that must not all wait for each other.
    u, v = (
        da.random.default_rng(s).standard_normal((600, 20, 20), chunks=(1, 20, 20)) for s in (1, 2)
    )
    ds = xr.Dataset({"u": (("time", "y", "x"), u), "v": (("time", "y", "x"), v)})
    ds["uv"] = ds.u * ds.v
    quad = ds**2
    quad["uv"] = ds.uv
    return quad.mean("time")


# Input and output ---------------------------------------------------------------------------------


class Sink:
    """A target as ``da.store`` writes to; never written, the graphs are only measured."""

    def __setitem__(self, index: Any, value: Any) -> None:
        raise AssertionError("the corpus is not run")


@case()
def store_leaves() -> Any:
    # Two results from one source, written chunk by chunk; no chunk is a requested key.
    x = normal(400, 400, chunks=(20, 20))
    y = x - x.mean(axis=0)
    return da.store([y, y**2], [Sink(), Sink()], lock=False, compute=False)


@case()
def opened_store() -> Any:
    # One metadata task that every read depends on, and variables that are combined chunk by chunk.
    meta = delayed(dict)(dask_key_name="open-store")

    def variable(name: str) -> da.Array:
        reads = [
            delayed(getattr)(meta, name, i, dask_key_name=(f"read-{name}", i)) for i in range(600)
        ]
        return da.concatenate([da.from_delayed(r, (10,), dtype=float) for r in reads])

    t, s, w = variable("t"), variable("s"), variable("w")
    return (t * w).sum() / w.sum(), (s * w).sum() / w.sum()


@case()
def shared_source_arrays() -> Any:
    # from_array keeps the source as one data node that every getter reads.
    source = np.zeros((400, 400))
    x, y = (da.from_array(source + i, chunks=(10, 10), inline_array=False) for i in range(2))
    return ((x - y) ** 2).mean(axis=0), (x * y).sum()


@case()
def delayed_pipelines() -> Any:
    # Files: read, clean, three statistics each; a summary of all.
    stats = []
    for i in range(500):
        cleaned = delayed(sorted)(
            delayed(open)(i, dask_key_name=("open", i)), dask_key_name=("clean", i)
        )
        stats.append([delayed(f)(cleaned, dask_key_name=(f.__name__, i)) for f in (min, max, sum)])
    return delayed(list)(stats, dask_key_name="summary")


# Random -------------------------------------------------------------------------------------------


def layered(seed: int, layers: int, width: int, inputs: int, reach: int, keep: float) -> Case:
    """A random graph in layers: each task reads 1 to ``inputs`` tasks of the ``reach`` layers before it.

    A share ``keep`` of the tasks, and every task that nothing reads, is requested.
    """
    rng = random.Random(seed)
    dsk: Graph = {}
    read: set[Any] = set()
    for layer in range(layers):
        for i in range(width):
            key = ("t", layer, i)
            sources = [
                ("t", lower, j)
                for lower in range(max(0, layer - reach), layer)
                for j in range(width)
            ]
            deps = rng.sample(sources, min(rng.randint(1, inputs), len(sources)))
            read.update(deps)
            dsk[key] = Task(key, max, *map(TaskRef, deps))
    keys = [k for k in dsk if k not in read or rng.random() < keep]
    return dsk, keys


@case("graph")
def random_narrow() -> Case:
    return layered(seed=1, layers=100, width=20, inputs=3, reach=2, keep=0.0)


@case("graph")
def random_wide() -> Case:
    return layered(seed=2, layers=10, width=400, inputs=2, reach=1, keep=0.01)


@case("graph")
def random_long_reach() -> Case:
    return layered(seed=3, layers=60, width=50, inputs=4, reach=20, keep=0.01)
