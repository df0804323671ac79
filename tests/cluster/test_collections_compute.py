"""`Client.compute`, `persist` and `get` with Dask's collections."""

from __future__ import annotations

import operator

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from dask.highlevelgraph import HighLevelGraph
from distributed import Future, as_completed, futures_of, get_worker, wait

from client_support import (
    IS_DASK,
    SOON,
    add,
    attempts,
    div,
    double,
    fail,
    fail_times,
    inc,
    note,
    pass_gate,
)


def here():
    return get_worker().address


@pytest.fixture
def frame():
    return pd.DataFrame({"x": range(20), "g": [i % 3 for i in range(20)]})


# compute


def test_one_collection_gives_one_future(client):
    future = client.compute(delayed(inc)(1))
    assert isinstance(future, Future)
    assert future.result(timeout=SOON) == 2


def test_a_list_of_collections_gives_a_list_of_futures(client):
    x, y = delayed(inc)(1), delayed(inc)(2)
    futures = client.compute([x, y])
    assert isinstance(futures, list)
    assert client.gather(futures) == [2, 3]
    assert client.gather(client.compute((x, y))) in ([2, 3], (2, 3))


def test_shared_parts_are_computed_once(client, gate):
    x = delayed(note, pure=True)(gate, "shared", 1)
    y, z = delayed(inc)(x), delayed(double)(x)
    assert client.gather(client.compute([y, z])) == [2, 2]
    assert gate.arrivals() == ["shared"]


def test_sync_gives_values(client):
    x = delayed(inc)(1)
    assert client.compute(x, sync=True) == 2
    assert client.compute([x, x], sync=True) == [2, 2]


def test_other_values_are_left_alone(client):
    future, other = client.compute([delayed(inc)(1), 5])
    assert future.result(timeout=SOON) == 2
    assert other == 5
    assert client.compute(7, sync=True) == 7


def test_collections_in_containers_are_found(client):
    x = delayed(inc)(1)
    future = client.compute([[x, {"k": x}]])[0]
    assert future.result(timeout=SOON) == [2, {"k": 2}]


def test_containers_are_left_alone_without_traverse(client):
    x = delayed(inc)(1)
    [same] = client.compute([[x]], traverse=False)
    assert same == [x]


def test_a_bag(client):
    bag = db.from_sequence(range(10), npartitions=3).map(inc)
    assert client.compute(bag).result(timeout=SOON) == list(range(1, 11))
    assert client.compute(bag.sum(), sync=True) == 55


def test_an_array(client):
    x = da.arange(100, chunks=10)
    np.testing.assert_array_equal(client.compute(x, sync=True), np.arange(100))
    assert client.compute((x + 1).sum(), sync=True) == 5050


def test_a_two_dimensional_array(client):
    x = da.ones((20, 30), chunks=(7, 11))
    total = (x + x.T.sum()).mean()
    assert client.compute(total, sync=True) == 601
    np.testing.assert_array_equal((x @ x.T).compute(), np.full((20, 20), 30.0))


def test_rechunk_and_overlap(client):
    x = da.arange(64, chunks=8).reshape(8, 8)
    assert client.compute(x.rechunk((8, 1)).sum(axis=0), sync=True).tolist() == [
        sum(range(i, 64, 8)) for i in range(8)
    ]
    y = da.arange(20, chunks=5).map_overlap(lambda b: b, depth=1, boundary="none")
    np.testing.assert_array_equal(y.compute(), np.arange(20))


def test_a_dataframe(client, frame):
    ddf = dd.from_pandas(frame, npartitions=4)
    assert client.compute(ddf.x.sum(), sync=True) == 190
    pd.testing.assert_frame_equal(client.compute(ddf, sync=True), frame)


def test_groupby_and_merge(client, frame):
    ddf = dd.from_pandas(frame, npartitions=4)
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        found = ddf.groupby("g").x.mean().compute().sort_index()
        expected = frame.groupby("g").x.mean()
        pd.testing.assert_series_equal(found, expected)
        merged = ddf.merge(ddf, on="x", how="inner").compute()
    assert sorted(merged.x) == sorted(frame.x)


def test_a_mixture_of_collections(client, frame):
    values = dask.compute(
        delayed(inc)(1),
        da.ones(5, chunks=2).sum(),
        db.from_sequence([1, 2, 3], npartitions=2).sum(),
        dd.from_pandas(frame, npartitions=2).x.max(),
    )
    assert values == (2, 5, 6, 19)


def test_collections_of_futures(client):
    x, y = client.map(inc, [1, 2])
    assert delayed(add)(x, y).compute() == 5
    assert delayed(sum)([x, y]).compute() == 5
    blocks = client.map(np.ones, [3, 4])
    arrays = [da.from_delayed(delayed(b), (n,), float) for b, n in zip(blocks, (3, 4), strict=True)]
    assert da.concatenate(arrays).sum().compute() == 7


@pytest.mark.skipif(
    IS_DASK, reason="Dask's bag does not hold them: distributed may have dropped them"
)
def test_a_bag_holds_the_futures_that_it_is_made_of(client, eventually):
    made = [client.submit(list, (n, n), pure=False) for n in range(3)]
    keys = [future.key for future in made]
    bag = db.from_delayed(made)
    del made
    # Whoever answers has heard of what was released before.
    client.submit(inc, 1, pure=False).result()
    assert bag.map(operator.neg).map(operator.neg).sum().compute() == 6
    assert set(keys) <= set(client.futures)
    del bag
    eventually(lambda: not set(keys) & set(client.futures))


def test_errors_of_collections(client):
    x = delayed(div)(1, 0)
    with pytest.raises(ZeroDivisionError):
        x.compute()
    future = client.compute(delayed(inc)(x))
    assert isinstance(future.exception(timeout=SOON), ZeroDivisionError)


def test_retries(client, tmp_path):
    assert (
        client.compute(
            delayed(fail_times)(1, str(tmp_path), 5), retries=1, optimize_graph=False
        ).result(timeout=SOON)
        == 5
    )
    assert attempts(tmp_path) == 2


def test_retries_of_persist(client, tmp_path):
    x = client.persist(delayed(fail_times)(1, str(tmp_path), 5), retries=1)
    assert client.compute(x, sync=True) == 5


def test_workers(client, workers):
    for address in workers:
        future = client.compute(delayed(here, pure=False)(), workers=[address])
        assert future.result(timeout=SOON) == address
        x = client.persist(delayed(here, pure=False)(), workers=address)
        assert client.compute(x, sync=True) == address


def test_workers_of_an_array(client, workers):
    x = client.persist(da.ones((10, 10), chunks=5), workers=workers[:1])
    wait(x, timeout=SOON)
    assert {a for w in client.who_has(x).values() for a in w} == {workers[0]}


def test_other_workers_may_be_allowed(client):
    future = client.compute(
        delayed(inc)(1), workers=["tcp://127.0.0.1:9"], allow_other_workers=True
    )
    assert future.result(timeout=SOON) == 2


def test_priority(client, workers, gate, eventually):
    blocker = client.submit(pass_gate, gate, name="blocker", workers=workers[:1])
    low = client.compute(delayed(note)(gate, "low", blocker), priority=-1, workers=workers[:1])
    high = client.compute(delayed(note)(gate, "high", blocker), priority=1, workers=workers[:1])
    eventually(lambda: len(client.who_has()) >= 3)
    client.run_on_scheduler(int)
    gate.open()
    wait([low, high], timeout=SOON)
    assert gate.arrivals() == ["blocker", "high", "low"]


def test_resources_of_a_computation(new_client):
    client = new_client(workers=1, resources={"GPU": 1})
    x = delayed(inc)(1)
    assert client.compute(x, resources={"GPU": 1}).result(timeout=SOON) == 2
    waiting = client.compute(delayed(inc)(5), resources={"FPGA": 1})
    with pytest.raises(distributed.TimeoutError):
        waiting.result(timeout=0.2)


def test_graphs_are_optimized_unless_told_otherwise(client):
    # Of two graphs with the same keys one should be released before the other is sent.
    x = db.from_sequence(range(4), npartitions=2).map(inc).map(inc)
    assert client.compute(x, sync=True) == [2, 3, 4, 5]
    y = db.from_sequence(range(5), npartitions=2).map(inc).map(inc)
    assert client.compute(y, sync=True, optimize_graph=False) == [2, 3, 4, 5, 6]


def test_computing_twice_gives_one_key(client):
    x = delayed(inc, pure=True)(1)
    a, b = client.compute(x), client.compute(x)
    assert a.key == b.key
    assert client.gather([a, b]) == [2, 2]


def test_an_empty_list(client):
    assert list(client.compute([])) == []
    assert list(client.compute([], sync=True)) == []


# persist


def test_a_persisted_collection_holds_futures(client):
    x = delayed(inc)(1)
    y = client.persist(x)
    assert type(y) is type(x)
    [future] = futures_of(y)
    assert future.key == y.key
    assert client.compute(y, sync=True) == 2


def test_several_persisted_collections(client):
    x, y = client.persist([delayed(inc)(1), delayed(inc)(2)])
    assert client.gather(client.compute([x, y])) == [2, 3]


def test_a_persisted_array_keeps_its_shape(client):
    x = da.random.default_rng(0).random((20, 20), chunks=5)
    y = client.persist(x)
    assert y.chunks == x.chunks
    assert y.dtype == x.dtype
    assert len(futures_of(y)) == 16
    np.testing.assert_array_equal(y.compute(), y.compute())
    assert y[3, 4].compute() == y.compute()[3, 4]


def test_a_persisted_dataframe(client, frame):
    ddf = client.persist(dd.from_pandas(frame, npartitions=4))
    assert ddf.npartitions == 4
    assert len(futures_of(ddf)) == 4
    pd.testing.assert_frame_equal(ddf.compute(), frame)
    assert ddf.x.sum().compute() == 190


def test_a_persisted_bag(client):
    bag = client.persist(db.from_sequence(range(10), npartitions=5))
    assert bag.npartitions == 5
    assert bag.map(inc).sum().compute() == 55


def test_persist_of_dask_itself(client):
    x = da.ones(10, chunks=5).persist()
    assert all(isinstance(f, Future) for f in futures_of(x))
    (y,) = dask.persist(delayed(inc)(1))
    assert len(futures_of(y)) == 1


def test_persisted_data_is_not_computed_again(client, gate):
    x = client.persist(delayed(note)(gate, "once", 5))
    assert [delayed(add)(x, i).compute() for i in range(3)] == [5, 6, 7]
    assert gate.arrivals() == ["once"]


def test_persisted_data_is_let_go_with_its_collection(client, eventually):
    x = client.persist(da.ones(10, chunks=5))
    wait(x, timeout=SOON)
    assert len(client.who_has()) == 2
    del x
    eventually(lambda: not client.who_has())


def test_persisted_errors(client):
    x = client.persist(delayed(fail)("persisted"))
    with pytest.raises(ValueError, match="persisted"):
        x.compute()
    assert [f.status for f in futures_of(x)] == ["error"]


def test_only_collections_are_persisted(client):
    with pytest.raises(AssertionError):
        client.persist(5)


def test_normalizing_a_collection_uses_what_is_there(client, gate):
    x = delayed(note, pure=True)(gate, "once", 1)
    y = delayed(inc, pure=True)(x)
    persisted = client.persist(x)
    normal = client.normalize_collection(y)
    assert normal.key == y.key
    assert normal.compute() == 2
    assert gate.arrivals() == ["once"]
    assert persisted.key == x.key


def test_as_completed_of_the_futures_of_a_collection(client):
    x = client.persist(da.arange(10, chunks=2))
    found = [f.result() for f in as_completed(futures_of(x))]
    assert sorted(int(b.sum()) for b in found) == [1, 5, 9, 13, 17]


def test_scattered_data_in_collections(client):
    array = np.arange(10)
    future = client.scatter(array)
    x = da.from_delayed(delayed(future), shape=(10,), dtype=array.dtype)
    assert x.sum().compute() == 45


# get


def test_get_of_a_graph(client):
    dsk = {"x": 1, "y": (inc, "x"), "z": (add, "y", 10)}
    assert client.get(dsk, "z") == 12
    assert client.get(dsk, ["y", "z"]) == [2, 12]
    assert client.get(dsk, [["y"], ["z", ["x"]]]) == [[2], [12, [1]]]


def test_get_without_sync_gives_futures(client):
    futures = client.get({"x": (inc, 1), "y": (inc, 2)}, ["x", "y"], sync=False)
    assert [f.key for f in futures] == ["x", "y"]
    assert client.gather(futures) == [2, 3]


def test_get_of_a_high_level_graph(client):
    graph = HighLevelGraph.from_collections("layer", {("layer", 0): (inc, 1)}, dependencies=[])
    assert client.get(graph, [("layer", 0)]) == [2]


def test_get_with_tuple_keys_and_nested_tasks(client):
    dsk = {("x", 0): (sum, [(inc, 1), (inc, 2)]), ("x", 1): (operator.neg, ("x", 0))}
    assert client.get(dsk, [("x", 1), ("x", 0)]) == [-5, 5]


def test_get_computes_only_what_is_asked_for(client, gate):
    dsk = {"a": (note, gate, "ran a", 1), "b": (note, gate, "ran b", 2), "c": (inc, "a")}
    assert client.get(dsk, "c") == 2
    assert gate.arrivals() == ["ran a"]


def test_get_raises_the_errors_of_tasks(client):
    with pytest.raises(ZeroDivisionError):
        client.get({"x": (div, 1, 0), "y": (inc, "x")}, "y")


def test_get_with_futures_in_the_graph(client):
    x = client.submit(inc, 1)
    assert client.get({"y": (add, x, 1)}, "y") == 3


def test_get_takes_the_options_of_compute(client, workers, tmp_path):
    assert client.get({"x-1": (here,)}, "x-1", workers=workers[1]) == workers[1]
    assert client.get({"x-2": (fail_times, 1, str(tmp_path), 5)}, "x-2", retries=1) == 5


def test_get_is_a_scheduler_of_dask(client):
    assert delayed(inc)(1).compute(scheduler=client) == 2
    assert delayed(inc)(1).compute(scheduler=client.get) == 2
    assert dask.config.get("scheduler") == "dask.distributed"


def test_a_long_chain_in_one_graph(client):
    dsk = {("chain", 0): 0} | {("chain", i): (inc, ("chain", i - 1)) for i in range(1, 300)}
    assert client.get(dsk, ("chain", 299)) == 299


def test_a_tree_in_one_graph(client):
    dsk = {("leaf", i): (inc, i) for i in range(64)}
    level, width = "leaf", 64
    while width > 1:
        new = f"of-{level}"
        width //= 2
        dsk |= {(new, i): (add, (level, 2 * i), (level, 2 * i + 1)) for i in range(width)}
        level = new
    assert client.get(dsk, (level, 0)) == sum(range(1, 65))


def test_two_graphs_share_what_is_known(client, gate):
    dsk = {"shared-part": (note, gate, "once", 1), "a-part": (inc, "shared-part")}
    first = client.get(dsk, ["shared-part", "a-part"], sync=False)
    wait(first, timeout=SOON)
    second = client.get({**dsk, "b-part": (double, "shared-part")}, ["b-part"], sync=False)
    assert client.gather(second) == [2]
    assert gate.arrivals() == ["once"]


def test_a_graph_with_a_cycle_is_refused(client):
    futures = client.get({"a": (inc, "b"), "b": (inc, "a")}, ["a"], sync=False)
    with pytest.raises(Exception, match=r"[Cc]ycle|cancelled"):
        futures[0].result(timeout=SOON)
    assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_xarray(client):
    xr = pytest.importorskip("xarray")
    array = xr.DataArray(np.arange(24.0).reshape(4, 6), dims=("t", "x")).chunk({"t": 2})
    assert float(array.mean().compute()) == 11.5
    persisted = array.persist()
    assert len(futures_of(persisted)) == 2
    expected = np.arange(24.0).reshape(4, 6).sum(axis=0)
    np.testing.assert_array_equal(persisted.sum("t").compute(), expected)
