"""Dask's P2P shuffles, beside pandas and NumPy: every row once, in the order of the inputs."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import dask.local
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.dataframe.shuffle import partitioning_index
from distributed import wait
from numpy.testing import assert_array_equal
from pandas.testing import assert_frame_equal, assert_index_equal, assert_series_equal

from client_support import AGAINST, SOON, Gate, pass_gate
from waiting import until

in_order = pytest.mark.skipif(AGAINST == "distributed", reason="distributed promises no order")
only_here = pytest.mark.skipif(AGAINST != "treadle", reason="distributed refuses it")


@pytest.fixture(autouse=True)
def p2p():
    with dask.config.set({"dataframe.shuffle.method": "p2p", "array.rechunk.method": "p2p"}):
        yield


def rows(n=2000, seed=0):
    """Columns of all kinds, with nulls; an index with duplicates, in no order."""
    random = np.random.default_rng(seed)
    words = np.array(["", "a", "grün", "漢字", "x" * 300], object)[random.integers(0, 5, n)]
    some = random.random(n) < 0.2
    return pd.DataFrame(
        {
            "key": random.integers(0, 50, n),
            "int": random.integers(-9, 9, n).astype("i2"),
            "float": np.where(some, np.nan, random.normal(size=n)),
            "bool": random.random(n) < 0.5,
            "time": pd.Series(random.integers(0, 9**9, n).astype("M8[s]")).where(~some).array,
            "text": pd.array(np.where(some, None, words), dtype="string[pyarrow]"),
            "Int": pd.array(np.where(some, None, random.integers(0, 9, n)), dtype="Int64"),
            "category": pd.Categorical(random.choice(["b", "a"], n), categories=["a", "b", "c"]),
            "arrow": pd.array(random.integers(0, 99, n), dtype=pd.ArrowDtype(pa.int32())),
        },
        index=pd.Index(random.integers(0, n // 2, n), name="place"),
    )


def outputs(frame, column, partitions):
    """What a shuffle has to give: rows in the order of the inputs."""
    numbers = partitioning_index(frame[[column]].astype("f8"), partitions)
    return [frame[numbers == number] for number in range(partitions)]


def unordered(frame):
    return frame.sort_values(list(frame.columns), kind="stable")


# frames


@in_order
@pytest.mark.parametrize(("inputs", "partitions"), [(7, 5), (3, 60), (1, 4), (9, 1)])
def test_each_output_has_its_rows_in_the_order_of_the_inputs(client, inputs, partitions):
    frame = rows()
    lazy = dd.from_pandas(frame, inputs, sort=False)
    shuffled = lazy.shuffle("key", npartitions=partitions).persist()
    wait(shuffled, timeout=SOON)
    expected = outputs(frame, "key", partitions)
    for number in range(partitions):
        assert_frame_equal(shuffled.get_partition(number).compute(), expected[number])


@only_here
def test_columns_that_distributed_refuses(client):
    frame = pd.DataFrame(
        {0: np.arange(20) % 3, "what": [[i] if i % 2 else None for i in range(20)]}
    )
    with dask.config.set({"dataframe.convert-string": False}):
        lazy = dd.from_pandas(frame, 4)
        shuffled = lazy.map_partitions(lambda part: part).set_index(0, shuffle_method="p2p")
        found = shuffled.compute()
    # Dask sorts each partition, and not stably.
    pairs = [
        sorted(zip(one.index, map(str, one.what), strict=True))
        for one in (found, frame.set_index(0))
    ]
    assert pairs[0] == pairs[1]


def test_empty_inputs_and_outputs_have_the_types(client):
    frame = rows(300)
    lazy = dd.from_pandas(frame, 4, sort=False)
    some = lazy[lazy.key < 3].shuffle("key", npartitions=40)
    parts = client.gather(client.compute(some.to_delayed()))
    assert sum(map(len, parts)) == (frame.key < 3).sum()
    for part in parts:
        assert_series_equal(part.dtypes, frame.dtypes)
        assert part.index.name == "place"
    none = lazy[lazy.key > 1000].shuffle("key", npartitions=3).compute()
    assert_frame_equal(none, frame.iloc[:0])


@pytest.mark.parametrize("chosen", [[1], [0, 3, 4], [5]])
def test_outputs_that_nobody_reads_are_dropped(client, chosen):
    frame = rows()
    lazy = dd.from_pandas(frame, 5, sort=False)
    found = lazy.shuffle("key", npartitions=6).partitions[chosen].compute()
    expected = pd.concat([outputs(frame, "key", 6)[number] for number in chosen])
    assert_frame_equal(unordered(found), unordered(expected))


def test_set_index_sorts(client):
    frame = rows().reset_index()
    lazy = dd.from_pandas(frame, 6)
    for divisions in ([0, 10, 20, 49], None):
        found = lazy.set_index("key", divisions=divisions)
        assert found.known_divisions
        computed = found.compute()
        assert computed.index.is_monotonic_increasing
        assert_frame_equal(
            unordered(computed.reset_index()).reset_index(drop=True),
            unordered(frame[["key", *frame.columns.drop("key")]]).reset_index(drop=True),
        )


def test_sort_values(client):
    frame = rows().reset_index()
    found = dd.from_pandas(frame, 6).sort_values(["key", "float"]).compute()
    expected = frame.sort_values(["key", "float"])
    assert_frame_equal(found.reset_index(drop=True), expected.reset_index(drop=True))


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
def test_merge(client, how):
    left, right = rows(600).reset_index(), rows(200, seed=1)[["key", "int", "text"]]
    right = right[right.key > 10]
    one, other = dd.from_pandas(left, 5), dd.from_pandas(right, 3, sort=False)
    merged = one.merge(other, on="key", how=how, npartitions=7)
    assert "hash-join" in str(list(merged.optimize().dask))
    found, expected = merged.compute(), left.merge(right, on="key", how=how)
    columns = ["key", "place", "int_x", "int_y", "text_y", "float"]
    assert_frame_equal(
        found.sort_values(columns).reset_index(drop=True),
        expected.sort_values(columns).reset_index(drop=True),
    )


@only_here
@pytest.mark.parametrize("chosen", [[0], [3], [4, 1]])
def test_a_merge_of_which_some_outputs_are_read(client, chosen):
    left, right = rows(600).reset_index(), rows(200, seed=1)[["key", "int"]]
    merged = dd.from_pandas(left, 5).merge(dd.from_pandas(right, 3, sort=False), on="key")
    parts = client.gather(client.compute(merged.to_delayed()))
    assert sum(map(len, parts)) == len(left.merge(right, on="key"))
    found = merged.partitions[chosen].compute()
    assert_frame_equal(unordered(found), unordered(pd.concat([parts[i] for i in chosen])))


def test_merge_on_the_index(client):
    left, right = rows(600), rows(200, seed=1)[["int"]]
    one = dd.from_pandas(left, 5, sort=False)
    other = dd.from_pandas(right, 4, sort=False)
    found = one.merge(other, left_index=True, right_index=True).compute()
    expected = left.merge(right, left_index=True, right_index=True)
    assert_frame_equal(unordered(found), unordered(expected))


def middle(group):
    return group.float.median() + len(group)


def test_groupby_apply(client):
    frame = rows()
    grouped = dd.from_pandas(frame, 6, sort=False).groupby("key")
    found = grouped.apply(middle, meta=("float", "f8")).compute().sort_index()
    expected = frame.groupby("key")[["float"]].apply(middle)
    assert_series_equal(found, expected, check_names=False)


def test_drop_duplicates(client):
    frame = rows()
    lazy = dd.from_pandas(frame, 6, sort=False)
    found = lazy[["key", "int"]].drop_duplicates(split_out=5, shuffle_method="p2p").compute()
    expected = frame[["key", "int"]].drop_duplicates()
    columns = ["key", "int"]
    assert_frame_equal(
        found.sort_values(columns).reset_index(drop=True),
        expected.sort_values(columns).reset_index(drop=True),
    )


def test_a_series(client):
    frame = rows()
    lazy = dd.from_pandas(frame, 6, sort=False)
    found = lazy.int.drop_duplicates(split_out=4, shuffle_method="p2p").compute()
    assert sorted(found) == sorted(frame.int.drop_duplicates())


def test_the_same_shuffle_again(client):
    frame = rows()
    lazy = dd.from_pandas(frame, 6, sort=False)
    for _ in range(3):
        assert_frame_equal(unordered(lazy.shuffle("key").compute()), unordered(frame))


def test_two_at_once(client):
    one, two = rows(), rows(seed=1)
    lazy = [dd.from_pandas(frame, 6, sort=False).shuffle("key") for frame in (one, two)]
    found = dask.compute(*lazy)
    for frame, computed in zip((one, two), found, strict=True):
        assert_frame_equal(unordered(computed), unordered(frame))


def test_one_after_the_other(client):
    frame = rows()
    lazy = dd.from_pandas(frame, 6, sort=False).shuffle("key", npartitions=4)
    found = lazy.shuffle("int", npartitions=5).compute()
    assert_frame_equal(unordered(found), unordered(frame))


def fail_for(part, partition_info=None):
    if partition_info and partition_info["number"] == 3:
        raise ZeroDivisionError("the user's own")
    return part


def test_an_input_that_fails_gives_its_error(client):
    lazy = dd.from_pandas(rows(), 6, sort=False)
    failing = lazy.map_partitions(fail_for, meta=lazy._meta).shuffle("key")
    with pytest.raises(ZeroDivisionError, match="the user's own"):
        failing.compute()


def rename(part):
    return part.rename(columns={"int": "other"})


def test_an_input_that_is_not_as_the_meta_says(client):
    lazy = dd.from_pandas(rows(), 6, sort=False)
    wrong = lazy.map_partitions(rename, meta=lazy._meta, enforce_metadata=False).shuffle("key")
    with pytest.raises(RuntimeError, match=r"P2P .* failed during transfer phase") as caught:
        wrong.compute()
    if AGAINST == "treadle":
        text = str(caught.value.__cause__)
        assert "input" in text
        assert "at worker treadle" in text
        assert "they differ in 'int', 'other'" in text


# arrays


@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [
        ((40, 30), (4, 30), (40, 3)),
        ((40, 30), (7, 11), (13, 5)),
        ((100,), (10,), (33,)),
        ((6, 5, 4), (2, 5, 1), (3, 2, 4)),
    ],
)
def test_rechunk(client, shape, before, after):
    whole = np.arange(np.prod(shape)).reshape(shape)
    lazy = da.from_array(whole, chunks=before).rechunk(after)
    assert_array_equal(lazy.compute(), whole)
    assert_array_equal((lazy + 1).rechunk(before).compute(), whole + 1)


@pytest.mark.parametrize(
    "dtype", ["f4", "c16", "?", "M8[s]", "S3", "O", [("a", "i4"), ("b", "f8")]]
)
def test_types_of_arrays(client, dtype):
    whole = np.arange(60).astype("i8").astype(dtype if not isinstance(dtype, list) else "i8")
    if isinstance(dtype, list):
        whole = np.array([(i, i / 2) for i in range(60)], dtype)
    whole = whole.reshape(6, 10)
    found = da.from_array(whole, chunks=(1, 10)).rechunk((6, 2)).compute()
    assert found.dtype == whole.dtype
    assert_array_equal(found, whole)


def test_masked_arrays(client):
    whole = np.ma.masked_equal(np.arange(60).reshape(6, 10) % 7, 3)
    found = da.from_array(whole, chunks=(1, 10), asarray=False).rechunk((6, 2)).compute()
    assert_array_equal(np.ma.getmaskarray(found), whole.mask)
    assert_array_equal(found.filled(-1), whole.filled(-1))


@only_here
def test_sparse_arrays(client):
    sparse = pytest.importorskip("sparse")
    whole = np.arange(60).reshape(6, 10) % 7 // 5
    lazy = da.from_array(whole, chunks=(1, 10)).map_blocks(sparse.COO)
    found = lazy.rechunk((6, 2)).compute()
    assert isinstance(found, sparse.COO)
    assert_array_equal(found.todense(), whole)


def test_a_part_of_an_array(client):
    whole = np.arange(1200).reshape(40, 30)
    lazy = da.from_array(whole, chunks=(4, 30)).rechunk((40, 3))
    assert_array_equal(lazy[:, 5:14].compute(), whole[:, 5:14])


# which method


def kinds_of(lazy):
    return {type(expr).__name__ for expr in lazy.optimize().expr.walk()}


@only_here
def test_the_default_is_by_the_number_of_partitions(client):
    frame = rows(100)
    unset = {"dataframe.shuffle.method": None, "array.rechunk.method": None}
    with dask.config.set(unset), client.as_current():
        few, many = dd.from_pandas(frame, 4), dd.from_pandas(frame, 40)
        assert "TaskShuffle" in kinds_of(few.shuffle("key"))
        assert "P2PShuffle" in kinds_of(many.shuffle("key"))
        assert "P2PShuffle" in kinds_of(few.shuffle("key", npartitions=32))
        assert "TaskShuffle" in kinds_of(many.shuffle("key", shuffle_method="tasks"))
        # One that nobody has chosen is alive: it is another expression.
        free, chosen = many.shuffle("key"), many.shuffle("key", shuffle_method="tasks")
        assert free._name != chosen._name
        assert "TaskShuffle" in kinds_of(chosen)
        assert "HashJoinP2P" in kinds_of(many.merge(many, on="key"))
        assert "HashJoinP2P" not in kinds_of(few.merge(few, on="key"))
        with dask.config.set({"dataframe.shuffle.method": "tasks"}):
            assert "TaskShuffle" in kinds_of(many.shuffle("key"))
        with dask.config.set({"treadle.shuffle.tasks-below": 2}):
            assert "P2PShuffle" in kinds_of(few.shuffle("key"))
        # Dask's own check would refuse the names of these columns.
        numbered = dd.from_pandas(frame.rename(columns={"key": 0}), 40).shuffle(0)
        assert "P2PShuffle" in kinds_of(numbered)
        assert_frame_equal(
            unordered(numbered.compute()), unordered(frame.rename(columns={"key": 0}))
        )
        wide = da.ones((160, 1600), chunks=(2, 1600))
        assert any("rechunk-p2p" in str(key) for key in wide.rechunk((160, 20)).dask)
        assert not any("p2p" in str(key) for key in wide.rechunk((4, 1600)).dask)
        with dask.config.set(scheduler="sync"):
            # There is a client, and it does not compute.
            assert len(many.shuffle("key").compute()) == 100
        shuffled = many.shuffle("key")
        for other in ("threads", "sync", dask.local.get_sync):
            assert len(shuffled.compute(scheduler=other)) == 100
            assert len(shuffled.persist(scheduler=other).compute(scheduler=other)) == 100
        assert len(shuffled.compute(scheduler=client)) == 100


@only_here
def test_an_index_that_is_ignored_is_new_in_each_output(client):
    frame = rows(200).set_index(pd.Index([f"row {n}" for n in range(200)]))
    unset = {"dataframe.shuffle.method": None}
    with dask.config.set(unset), client.as_current():
        lazy = dd.from_pandas(frame, 8, sort=False)
        shuffled = lazy.shuffle("key", ignore_index=True)
        assert "P2PShuffle" in kinds_of(shuffled)
        by_tasks = lazy.shuffle("key", ignore_index=True, shuffle_method="tasks")
        outputs = client.gather(client.compute(shuffled.to_delayed()))
        expected = client.gather(client.compute(by_tasks.to_delayed()))
        for output, other in zip(outputs, expected, strict=True):
            assert_index_equal(output.index, pd.RangeIndex(len(output)))
            # Tasks keep what each part counted.
            found, wanted = (unordered(rows).reset_index(drop=True) for rows in (output, other))
            assert_frame_equal(found, wanted)
        one = shuffled.partitions[3].compute()
        assert_frame_equal(one, outputs[3])


class Frame(pd.DataFrame):
    """As other packages derive theirs."""

    @property
    def _constructor(self):
        return Frame


@only_here
@pytest.mark.parametrize("method", [None, "p2p"])
def test_frames_of_a_class_of_their_own_keep_it(client, method):
    with dask.config.set({"dataframe.shuffle.method": method}), client.as_current():
        shuffled = dd.from_pandas(Frame(rows(100)), 8).shuffle("key", npartitions=80)
        assert ("P2PShuffle" in kinds_of(shuffled)) == (method == "p2p")
        outputs = client.gather(client.compute(shuffled.to_delayed()))
        assert sum(map(len, outputs)) == 100
        assert 0 in map(len, outputs)
        assert {type(output) for output in outputs} == {Frame}


@only_here
@pytest.mark.parametrize("levels", [["place"], ["place", "text"], ["text", "Int", "place"]])
def test_an_index_that_the_meta_does_not_know_is_as_by_tasks(client, levels):
    frame = rows(200).reset_index().set_index(levels)
    meta = rows(0).rename_axis("other")[list(frame.columns)]
    parts = [frame.iloc[:90], frame.iloc[90:]]
    lazy = dd.from_map(pd.DataFrame, parts, meta=meta)
    p2p, tasks = (
        client.gather(client.compute(lazy.shuffle("key", shuffle_method=method).to_delayed()))
        for method in ("p2p", "tasks")
    )
    assert sum(map(len, p2p)) == 200
    for one, other in zip(p2p, tasks, strict=True):
        assert_frame_equal(one, other)


# ends


def held(part, gate):
    return pass_gate(gate, part)


@pytest.mark.skipif(AGAINST != "treadle", reason="it asks Treadle's client")
def test_a_cancelled_shuffle_leaves_nothing(client, gate: Gate):
    lazy = dd.from_pandas(rows(20_000), 6, sort=False)
    last = lazy.partitions[5].map_partitions(held, gate, meta=lazy._meta)
    shuffled = dd.concat([lazy.partitions[:5], last], interleave_partitions=True).shuffle("key")
    futures = client.compute(shuffled.to_delayed())
    until(lambda: gate.arrived() and stored(client), "rows are at servers")
    until(lambda: transferred(client) == 5, "all other inputs are transferred")
    [shuffle] = client.shuffles().running
    assert (shuffle.inputs, shuffle.outputs, shuffle.complete) == (6, 6, False)
    assert shuffle.waits_for == "inputs"
    assert shuffle.name in shuffle._repr_html_()
    assert shuffle.bytes > shuffle.rows > 10_000
    client.cancel(futures)
    gate.open()
    del futures
    until(lambda: stored(client) == 0, "nothing is left")
    assert client.shuffles().running == []


def transferred(client):
    return sum(shuffle.transferred for shuffle in client.shuffles().running)


def stored(client):
    """Bytes of shuffled rows at the workers, in memory and on disk."""
    return sum(client.run(rows_here).values())


def rows_here(dask_worker):
    return dask_worker._native.shuffle_stats()["leftovers"]
