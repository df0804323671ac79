"""`Client.scatter`."""

from __future__ import annotations

import collections
import queue

import numpy as np
import pandas as pd
import pytest
from distributed import Future, wait

from client_support import SOON, add, distributed_fails, identity, inc


def test_a_single_value(client):
    future = client.scatter(10)
    assert isinstance(future, Future)
    assert future.status == "finished"
    assert future.type is int
    assert future.result(timeout=SOON) == 10


def test_a_list_gives_a_list_of_futures(client):
    futures = client.scatter([1, 2, 3])
    assert isinstance(futures, list)
    assert client.gather(futures) == [1, 2, 3]


def test_containers_keep_their_type(client):
    # The same data is not scattered twice here: distributed may lose it where the last future
    # is released at the same time.
    for data in ((1, 2), {3, 4}, frozenset([5, 6])):
        futures = client.scatter(data)
        assert type(futures) is type(data)
        assert type(data)(client.gather(list(futures))) == data


@distributed_fails("ValueError, not enough values to unpack")
def test_an_empty_list(client):
    assert client.gather(client.scatter([])) == []


def test_a_range_gives_a_list(client):
    assert client.gather(client.scatter(range(4))) == [0, 1, 2, 3]


def test_the_keys_of_a_dict_are_the_keys_of_the_futures(client):
    futures = client.scatter({"alpha": 1, ("beta", 2): 3})
    assert {k: f.key for k, f in futures.items()} == {"alpha": "alpha", ("beta", 2): ("beta", 2)}
    assert client.gather(futures) == {"alpha": 1, ("beta", 2): 3}


def test_a_named_tuple_keeps_its_type(client):
    Point = collections.namedtuple("Point", "x y")
    futures = client.scatter(Point(1, 2))
    assert isinstance(futures, Point)
    assert all(isinstance(f, Future) for f in futures)
    assert client.gather(list(futures)) == [1, 2]


def test_subclasses_of_containers_are_one_value(client):
    class Bunch(dict):
        pass

    future = client.scatter(collections.OrderedDict(a=1))
    assert isinstance(future, Future)
    assert future.result(timeout=SOON) == collections.OrderedDict(a=1)
    future = client.scatter(Bunch(a=1))
    assert type(future.result(timeout=SOON)).__name__ == "Bunch"


@pytest.mark.parametrize("make", [iter, lambda _: queue.Queue()])
def test_iterators_and_queues_are_refused(client, make):
    with pytest.raises(TypeError, match="no longer supports mapping over Iterators or Queues"):
        client.scatter(make([1]))


def test_equal_data_has_one_key(client):
    a = client.scatter("some text")
    b = client.scatter("some text")
    assert a.key == b.key
    assert a.key.startswith("str-")
    assert client.gather([a, b]) == ["some text"] * 2


def test_unhashed_data_has_a_key_of_its_own(client):
    a = client.scatter("some text", hash=False)
    b = client.scatter("some text", hash=False)
    assert a.key != b.key
    assert a.key.startswith("str-")


def test_arrays(client):
    array = np.arange(12, dtype="f4").reshape(3, 4)[:, ::2]
    future = client.scatter(array)
    np.testing.assert_array_equal(future.result(timeout=SOON), array)
    assert future.type is np.ndarray
    assert client.submit(np.sum, future).result(timeout=SOON) == array.sum()


def test_a_large_array_is_scattered_once_and_used_often(client):
    array = np.random.default_rng(0).random(1_000_000)
    future = client.scatter(array)
    futures = client.map(lambda i, a: float(a[i]), range(10), a=future)
    assert client.gather(futures) == [float(array[i]) for i in range(10)]


def test_dataframes(client):
    df = pd.DataFrame({"x": [1, 2, 3], "y": list("abc")})
    future = client.scatter(df)
    pd.testing.assert_frame_equal(future.result(timeout=SOON), df)


def test_the_client_may_change_its_data_afterwards(client):
    data = [1, 2, 3]
    [future] = client.scatter([data])
    data.append(4)
    assert future.result(timeout=SOON) == [1, 2, 3]


def test_none_and_nested_values(client):
    nested = {"a": [1, {"b": None}]}
    futures = client.scatter([None, nested])
    assert client.gather(futures) == [None, nested]


def test_workers_say_where(client, workers):
    for address in workers:
        futures = client.scatter([1, 2, 3], workers=[address], hash=False)
        assert all(list(where) == [address] for where in client.who_has(futures).values())
    future = client.scatter(5, workers=workers[0])
    assert list(client.who_has([future])[future.key]) == [workers[0]]


def test_scattered_data_is_spread(client, workers):
    futures = client.scatter(list(range(10)), hash=False)
    where = client.who_has(futures)
    assert {a for addresses in where.values() for a in addresses} == set(workers)


def test_broadcast_puts_a_copy_on_each_worker(client, workers):
    future = client.scatter(np.arange(10), broadcast=True)
    assert set(client.who_has([future])[future.key]) == set(workers)
    futures = client.scatter([1, 2], broadcast=True, hash=False)
    assert all(set(w) == set(workers) for w in client.who_has(futures).values())


def test_broadcast_to_some_workers(client, workers):
    future = client.scatter(7, broadcast=True, workers=workers[:1])
    assert list(client.who_has([future])[future.key]) == workers[:1]


def test_futures_of_scattered_data_in_calls(client):
    x, y = client.scatter([1, 2])
    assert client.submit(add, x, y).result(timeout=SOON) == 3
    assert client.submit(sum, [x, y, x]).result(timeout=SOON) == 4


def test_data_is_gone_when_its_last_future_is(client, eventually):
    future = client.scatter("to be released")
    key = future.key
    assert key in client.who_has()
    del future
    eventually(lambda: key not in client.who_has())


def test_a_second_client_scatters_the_same_data(client, second_client):
    a = client.scatter("shared")
    b = second_client.scatter("shared")
    assert a.key == b.key
    a.release()
    assert b.result(timeout=SOON) == "shared"


def test_data_that_cannot_be_pickled_is_refused(client):
    with open(__file__) as file, pytest.raises(TypeError):
        client.scatter(file)


def test_scattering_directly_to_the_workers(client):
    futures = client.scatter([1, 2, 3], direct=True)
    assert client.gather(futures) == [1, 2, 3]


def test_scattered_data_does_not_need_a_wait(client):
    futures = client.scatter({f"k{i}": i for i in range(100)})
    done, not_done = wait(list(futures.values()), timeout=SOON)
    assert len(done) == 100
    assert not not_done
    assert client.submit(identity, futures["k42"]).result(timeout=SOON) == 42


def test_a_scattered_key_is_reused_by_submit(client):
    future = client.scatter({"precomputed": 99})["precomputed"]
    again = client.submit(inc, 1, key="precomputed")
    assert again.result(timeout=SOON) == 99
    assert future.result(timeout=SOON) == 99


def test_what_was_cancelled_can_be_scattered_again(client):
    array = np.arange(1000)
    for _ in range(3):
        first = client.scatter(array)
        client.cancel(first)
        again = client.scatter(array)
        assert first.key == again.key
        total = client.submit(np.sum, again, pure=False)
        assert total.result(timeout=SOON) == array.sum()
        assert client.gather(again).sum() == array.sum()
        assert first.cancelled()
        del first
        assert client.submit(len, again, pure=False).result(timeout=SOON) == 1000
        del again, total
