"""Graphs of Dask's collections, run by recipes."""

from __future__ import annotations

import operator

import dask
import numpy as np
import pandas as pd
import pytest
from recipe_support import execute, materialise

# Graphs of Dask's collections


def check(*collections, compare=None):
    graph = materialise(*collections)
    expected = dask.get(dict(graph), list(graph))
    values, encoded = execute(graph)
    for key, value in zip(graph, expected, strict=True):
        if compare is None or not isinstance(value, np.ndarray | pd.DataFrame | pd.Series):
            continue
        compare(values[key], value)
    return encoded


def equal_arrays(one, other):
    if isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)


def equal_tables(one, other):
    if isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(one, other)
    elif isinstance(one, pd.Series):
        pd.testing.assert_series_equal(one, other)


def array_workloads():
    import dask.array as da

    x = da.ones((200, 200), chunks=(20, 20))
    return {
        "ones": x,
        "sum": x.sum(),
        "transpose": x + x.T,
        "reduced": (x + x.T).std(axis=0),
        "rechunk": x.rechunk((100, 4)),
        "overlap": da.map_overlap(lambda block: block * 2, x, depth=1, boundary="none"),
        "periodic": da.map_overlap(lambda block: block * 2, x, depth=2, boundary="periodic"),
        "matmul": x @ x,
        "fused": ((x + 1) * 2 - x[::-1]).cumsum(axis=1),
        "element": x[5, 7],
        "stack": da.concatenate([x, x[:10]], axis=0),
        "percentile": da.percentile(x[0], [10, 50]),
        "from_array": da.from_array(np.arange(40000).reshape(200, 200), chunks=20) + 1,
    }


@pytest.mark.parametrize("name", array_workloads())
def test_arrays(name):
    encoded = check(array_workloads()[name], compare=equal_arrays)
    lengths = [len(recipe) for recipe, _, _ in encoded.values()]
    if name != "from_array":
        assert sum(lengths) / len(lengths) < 150
        # The first occurrence of what turns out to be shared.
        assert sum(length > 300 for length in lengths) <= 2


def frame_workloads():
    import dask.dataframe as dd

    frame = pd.DataFrame(
        {"a": np.arange(1000) % 17, "b": np.arange(1000.0), "c": list("abcde") * 200}
    )
    d = dd.from_pandas(frame, npartitions=8)
    numbers = d[["a", "b"]]
    return {
        "groupby": d.groupby("c").b.mean(),
        "groupby-shuffle": d.groupby("a").b.sum(split_out=3),
        "merge": d.merge(d[d.b < 100], on="a"),
        "rolling": numbers.rolling(3).mean(),
        "cumsum": numbers.cumsum(),
        "std": numbers.std(),
        "loc": d.loc[10:20],
        "apply": d.map_partitions(lambda part: part[part.b > 3]),
        "value_counts": d.c.value_counts(),
        "resample": dask.datasets.timeseries(end="2000-01-05", freq="1min").x.resample("1h").mean(),
    }


@pytest.mark.parametrize("name", frame_workloads())
def test_dataframes(name):
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        check(frame_workloads()[name], compare=equal_tables)


def test_bags():
    import dask.bag as db

    bag = db.from_sequence(range(100), npartitions=7)
    collections = {
        "fold": bag.map(lambda x: x + 1).fold(operator.add),
        "groupby": bag.groupby(lambda x: x % 3, shuffle="tasks"),
        "frequencies": bag.map(str).frequencies(),
        "filter": bag.filter(lambda x: x % 2).map_partitions(list),
    }
    for collection in collections.values():
        graph = materialise(collection)
        values, _ = execute(graph)
        for key in dask.core.flatten(collection.__dask_keys__()):
            expected = dask.get(dict(graph), key)
            assert values[key] == expected


def test_delayed_with_nested_arguments():
    @dask.delayed
    def f(*args, **kwargs):
        return args, kwargs

    one, two = f(1), dask.delayed([1, 2, {"k": f(2)}])
    last = f([one, (two, {"a": one})], {one.key: two}, slice(one, None), k=[f(x=two)], l={3, 4})
    graph = materialise(last)
    values, _ = execute(graph)
    assert values[last.key] == dask.get(dict(graph), last.key)
    assert values[last.key] == last.compute(scheduler="sync")


def test_a_climatology_of_xarray():
    xr = pytest.importorskip("xarray")
    import dask.array as da

    time = pd.date_range("2000", periods=200)
    data = da.random.default_rng(0).random((200, 20), chunks=(25, 10))
    ds = xr.Dataset({"t": (("time", "x"), data)}, coords={"time": time})
    groups = ds.groupby("time.month")
    anomaly = groups - groups.mean()
    graph = materialise(anomaly)
    values, encoded = execute(graph)
    keys = list(dask.core.flatten(anomaly.t.data.__dask_keys__()))
    for key, expected in zip(keys, dask.get(dict(graph), keys), strict=True):
        np.testing.assert_array_equal(values[key], expected)
    lengths = [len(recipe) for recipe, _, _ in encoded.values()]
    assert sum(lengths) / len(lengths) < 150
