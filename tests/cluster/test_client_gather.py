"""`Client.gather`."""

from __future__ import annotations

import collections
import queue

import numpy as np
import pytest
from dask import delayed
from distributed import wait
from distributed.client import FutureCancelledError

from client_support import SOON, add, fail, identity, inc


def test_one_future(client):
    assert client.gather(client.submit(inc, 1)) == 2


def test_lists_tuples_sets_and_dicts_keep_their_type(client):
    x, y = client.map(inc, [1, 2])
    assert client.gather([x, y]) == [2, 3]
    assert client.gather((x, y)) == (2, 3)
    assert client.gather({x, y}) == {2, 3}
    assert client.gather({"x": x, "y": y}) == {"x": 2, "y": 3}


def test_nested_containers(client):
    x, y = client.map(inc, [1, 2])
    nested = {"a": [x, (y, [x])], "b": {"c": {y}}}
    assert client.gather(nested) == {"a": [2, (3, [2])], "b": {"c": {3}}}


def test_one_future_in_several_places(client):
    x = client.submit(inc, 1)
    assert client.gather([x, [x], x]) == [2, [2], 2]


def test_several_futures_of_one_key(client):
    x = client.submit(inc, 1)
    y = client.submit(inc, 1)
    assert client.gather([x, y]) == [2, 2]


def test_other_values_are_left_alone(client):
    x = client.submit(inc, 1)
    assert client.gather([x, 5, "text", None]) == [2, 5, "text", None]
    assert client.gather([]) == []
    assert client.gather({}) == {}


def test_a_collection_that_is_not_a_future_is_left_alone(client):
    value = delayed(inc)(1)
    assert client.gather([value])[0].key == value.key


def test_an_iterator_gives_a_generator(client):
    futures = client.map(inc, range(5))
    found = client.gather(iter(futures))
    assert isinstance(found, collections.abc.Iterator)
    assert list(found) == [1, 2, 3, 4, 5]
    assert list(client.gather(f for f in futures)) == [1, 2, 3, 4, 5]


def test_queues_are_refused(client):
    with pytest.raises(TypeError, match="no longer supports gathering over Iterators and Queues"):
        client.gather(queue.Queue())


def test_the_first_error_is_raised(client):
    good, bad = client.submit(inc, 1), client.submit(fail, "gathered")
    with pytest.raises(ValueError, match="gathered"):
        client.gather([good, bad])
    with pytest.raises(ValueError, match="gathered"):
        client.gather({"x": [bad]})


def test_errors_are_raised_while_others_still_run(client, gate):
    from client_support import pass_gate

    slow = client.submit(pass_gate, gate)
    bad = client.submit(fail)
    with pytest.raises(ValueError, match="it failed"):
        client.gather([slow, bad])
    assert not slow.done()
    gate.open()
    wait(slow, timeout=SOON)


def test_errors_may_be_skipped(client):
    x = client.submit(inc, 1)
    bad = client.submit(fail)
    y = client.submit(inc, 2)
    assert client.gather([x, bad, y], errors="skip") == [2, 3]
    assert client.gather([bad], errors="skip") == []


def test_skipped_errors_are_none_in_other_containers(client):
    x = client.submit(inc, 1)
    bad = client.submit(fail)
    assert client.gather({"x": x, "bad": bad}, errors="skip") == {"x": 2, "bad": None}


def test_skipped_errors_reach_through_dependents(client):
    bad = client.submit(fail)
    after = client.submit(add, bad, 1)
    assert client.gather([after, client.submit(inc, 1)], errors="skip") == [2]


def test_errors_must_be_raise_or_skip(client):
    bad = client.submit(fail)
    wait(bad, timeout=SOON)
    with pytest.raises(ValueError, match="Bad value"):
        client.gather([bad], errors="ignore")


def test_a_cancelled_future_raises(client):
    x = client.submit(inc, 1)
    wait(x, timeout=SOON)
    client.cancel([x])
    with pytest.raises(FutureCancelledError):
        client.gather(x)
    with pytest.raises(FutureCancelledError):
        client.gather([x])
    assert client.gather([x], errors="skip") == []


def test_the_exception_keeps_its_message_through_dependents(client):
    bad = client.submit(fail, "far away")
    future = client.submit(inc, client.submit(identity, bad))
    with pytest.raises(ValueError, match="far away"):
        client.gather([future])


def test_futures_of_another_client_are_refused(client, second_client):
    theirs = second_client.submit(inc, 1)
    with pytest.raises(ValueError, match="Cannot gather Futures created by another client"):
        client.gather([theirs])
    assert second_client.gather(theirs) == 2


def test_data_of_both_workers(client, workers):
    futures = [client.submit(np.arange, 1000 + i, workers=[w]) for i, w in enumerate(workers)]
    assert [len(a) for a in client.gather(futures)] == [1000, 1001]


def test_many_small_results(client):
    futures = client.map(str, range(1000))
    assert client.gather(futures) == [str(i) for i in range(1000)]


def test_gathering_directly_from_the_workers(client):
    futures = client.map(inc, range(10))
    assert client.gather(futures, direct=True) == list(range(1, 11))


def test_gathering_twice_gives_equal_values(client):
    future = client.submit(np.arange, 100)
    first, second = client.gather(future), client.gather(future)
    assert (first == second).all()
    first[:] = -1  # a result belongs to who gathered it
    assert (client.gather(future) == second).all()


def test_gathered_arrays_can_be_written_to(client):
    array = client.gather(client.submit(np.zeros, 10))
    array += 1
    assert array.sum() == 10


def test_a_named_tuple_is_an_opaque_value(client):
    Point = collections.namedtuple("Point", "x y")
    x, y = client.map(inc, [1, 2])
    found = client.gather([x, Point(1, 2), y])
    assert found == [2, Point(1, 2), 3]
