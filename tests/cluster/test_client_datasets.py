"""Published datasets."""

from __future__ import annotations

import gc

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import pandas as pd
import pytest
from distributed import futures_of, wait

from client_support import SOON, inc


@pytest.fixture(autouse=True)
def nothing_published(client):
    yield
    for name in client.list_datasets():
        client.unpublish_dataset(name)


def test_a_collection_is_found_by_its_name(client, second_client):
    x = client.persist(dask.delayed(inc)(1))
    client.publish_dataset(mine=x)
    found = second_client.get_dataset("mine")
    assert found.key == x.key
    with second_client.as_current():
        assert found.compute() == 2


def test_names_are_listed(client):
    assert list(client.list_datasets()) == []
    client.publish_dataset(b=1, a=2)
    client.publish_dataset(3, name="c")
    assert list(client.list_datasets()) == ["a", "b", "c"]


def test_a_dict_of_datasets(client):
    client.publish_dataset({"x": 1, ("tuple", 2): 3})
    assert client.get_dataset("x") == 1
    assert client.get_dataset(("tuple", 2)) == 3


def test_data_without_a_name_must_be_a_dict(client):
    with pytest.raises(ValueError, match="name is omitted"):
        client.publish_dataset(5)
    with pytest.raises(ValueError, match="name is provided"):
        client.publish_dataset(name="nothing")


def test_several_objects_under_one_name(client):
    x, y = client.persist([dask.delayed(inc)(1), dask.delayed(inc)(2)])
    client.publish_dataset(x, y, name="pair")
    assert [d.key for d in client.get_dataset("pair")] == [x.key, y.key]


def test_a_name_is_used_once(client):
    client.publish_dataset(once=1)
    with pytest.raises(KeyError, match="once"):
        client.publish_dataset(once=2)
    assert client.get_dataset("once") == 1


def test_a_name_can_be_overridden(client):
    client.publish_dataset(changing=1)
    client.publish_dataset(changing=2, override=True)
    assert client.get_dataset("changing") == 2


def test_an_unknown_name(client):
    with pytest.raises(KeyError, match="missing"):
        client.get_dataset("missing")
    assert client.get_dataset("missing", default=5) == 5
    assert client.get_dataset("missing", None) is None


def test_several_names_at_once(client):
    client.publish_dataset(a=1, b=2)
    assert client.get_dataset(["b", "a"]) == [2, 1]
    assert client.get_dataset(["b", "x"], default=0) == [2, 0]
    client.unpublish_dataset(["a", "b"])
    assert list(client.list_datasets()) == []


def test_unpublished_names_are_gone(client):
    client.publish_dataset(short_lived=1)
    client.unpublish_dataset("short_lived")
    with pytest.raises(KeyError):
        client.get_dataset("short_lived")


def test_unpublishing_what_is_not_there_is_no_error(client):
    client.unpublish_dataset("never-published")


def test_published_futures_stay_without_their_client(client, second_client):
    future = second_client.submit(inc, 1, key="published-future")
    second_client.publish_dataset(future=future)
    second_client.close()
    found = client.get_dataset("future")
    assert found.result(timeout=SOON) == 2


def test_data_is_let_go_when_it_is_unpublished(client, eventually):
    future = client.submit(inc, 1, key="published-future")
    wait(future, timeout=SOON)
    client.publish_dataset(future=future)
    del future
    assert "published-future" in client.who_has()
    client.unpublish_dataset("future")
    eventually(lambda: "published-future" not in client.who_has())


def test_a_bag(client, second_client):
    bag = client.persist(db.from_sequence([1, 2, 3], npartitions=3))
    client.publish_dataset(bag=bag)
    found = second_client.get_dataset("bag")
    with second_client.as_current():
        assert found.sum().compute() == 6


def test_an_array(client, second_client):
    x = client.persist(da.ones((10, 10), chunks=5))
    client.publish_dataset(x=x)
    found = second_client.get_dataset("x")
    assert found.chunks == x.chunks
    with second_client.as_current():
        assert found.sum().compute() == 100


def test_a_dataframe(client, second_client):
    df = pd.DataFrame({"x": range(10), "y": range(10, 20)})
    ddf = client.persist(dd.from_pandas(df, npartitions=3))
    client.publish_dataset(df=ddf)
    # Equal expressions are one object in a process: with this one alive, distributed would bind
    # its futures to the second client and leave the first with a count that never falls.
    del ddf
    gc.collect()
    found = second_client.get_dataset("df")
    with second_client.as_current():
        pd.testing.assert_frame_equal(found.compute(), df)


def test_a_dataset_that_is_not_persisted_is_computed_by_who_gets_it(client, second_client):
    client.publish_dataset(lazy=dask.delayed(inc)(1))
    found = second_client.get_dataset("lazy")
    assert not futures_of(found)
    with second_client.as_current():
        assert found.compute() == 2


def test_nested_collections_of_futures(client, second_client):
    futures = {"a": [client.submit(inc, 1)], "b": client.submit(inc, 2)}
    client.publish_dataset(nested=futures)
    found = second_client.get_dataset("nested")
    assert second_client.gather(found) == {"a": [2], "b": 3}


def test_datasets_is_a_mapping(client):
    client.datasets["x"] = 1
    client.datasets["y"] = 2
    assert client.datasets["x"] == 1
    assert sorted(client.datasets) == ["x", "y"]
    assert len(client.datasets) == 2
    assert "x" in client.datasets
    assert dict(client.datasets) == {"x": 1, "y": 2}
    del client.datasets["x"]
    assert list(client.datasets) == ["y"]
    with pytest.raises(KeyError):
        client.datasets["x"]
    assert client.datasets.get("x", 7) == 7


def test_a_dataset_from_a_task(client):
    def total():
        from distributed import get_client

        return sum(get_client().get_dataset("numbers"))

    client.publish_dataset(numbers=[1, 2, 3])
    assert client.submit(total, pure=False).result(timeout=SOON) == 6


async def test_datasets_of_an_asynchronous_client(async_client):
    await async_client.publish_dataset(x=async_client.submit(inc, 1))
    assert list(await async_client.list_datasets()) == ["x"]
    assert [name async for name in async_client.datasets] == ["x"]
    future = await async_client.datasets["x"]
    assert await future == 2
    with pytest.raises(TypeError, match="asynchronous"):
        async_client.datasets["x"] = 1
    with pytest.raises(TypeError, match="asynchronous"):
        del async_client.datasets["x"]
    with pytest.raises(TypeError, match="asynchronous"):
        list(async_client.datasets)
    with pytest.raises(TypeError, match="asynchronous"):
        len(async_client.datasets)
    await async_client.unpublish_dataset("x")


def test_a_synchronous_client_has_no_asynchronous_iteration(client):
    with pytest.raises(TypeError, match="synchronous"):
        client.datasets.__aiter__()
