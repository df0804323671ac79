"""`Client.map`."""

from __future__ import annotations

import queue

import pytest
from distributed import Future, get_worker, wait

from client_support import (
    SOON,
    add,
    attempts,
    distributed_fails,
    double,
    fail_times,
    inc,
    note,
    pass_gate,
)


def here(_):
    return get_worker().address


def keywords(x, **kwargs):
    return (x, kwargs)


def test_results_come_in_the_order_of_the_arguments(client):
    futures = client.map(inc, range(20))
    assert isinstance(futures, list)
    assert all(isinstance(f, Future) for f in futures)
    assert client.gather(futures) == list(range(1, 21))


def test_several_iterables_stop_at_the_shortest(client):
    assert client.gather(client.map(add, [1, 2, 3], [10, 20])) == [11, 22]


def test_nothing_to_map(client):
    assert client.map(inc, []) == []
    assert client.gather([]) == []


def test_collections_of_every_kind(client):
    for collection in ([1, 2], (1, 2), range(1, 3), {1: "a", 2: "b"}):
        assert client.gather(client.map(inc, collection)) == [2, 3]


def test_a_set_is_mapped_in_its_own_order(client):
    values = {5, 7, 11}
    assert client.gather(client.map(inc, values)) == [v + 1 for v in values]


@pytest.mark.parametrize("make", [iter, lambda x: (i for i in x), lambda x: queue.Queue()])
def test_iterators_and_queues_are_refused(client, make):
    with pytest.raises(TypeError, match="no longer supports mapping over Iterators or Queues"):
        client.map(inc, make([1, 2, 3]))


def test_something_that_cannot_be_called_is_refused(client):
    with pytest.raises(TypeError, match="must be a callable"):
        client.map(1, [1, 2])


def test_futures_as_arguments(client):
    first = client.map(inc, range(5))
    second = client.map(double, first)
    third = client.map(add, first, second)
    assert client.gather(third) == [3 * (i + 1) for i in range(5)]


def test_a_list_with_futures_as_one_argument(client):
    x, y = client.map(inc, [1, 2])
    assert client.gather(client.map(sum, [[x, y], [x, 10]])) == [5, 12]


def test_keyword_arguments_are_the_same_for_each_call(client):
    found = client.gather(client.map(keywords, [1, 2], a=1, b="x"))
    assert found == [(1, {"a": 1, "b": "x"}), (2, {"a": 1, "b": "x"})]


def test_futures_in_keyword_arguments(client):
    x = client.submit(inc, 1)
    y = client.submit(inc, 2)
    assert client.gather(client.map(add, [10, 20], y=x)) == [12, 22]
    found = client.gather(client.map(keywords, [0], pair=[x, (y,)]))
    assert found == [(0, {"pair": [2, (3,)]})]


@distributed_fails("the node of a keyword argument above 100 kB has no priority")
def test_a_large_keyword_argument_is_shared(client):
    data = bytes(200_000)
    found = client.gather(client.map(lambda i, data: (i, len(data)), range(5), data=data))
    assert found == [(i, 200_000) for i in range(5)]


def test_pure_calls_share_keys_between_maps_and_submits(client):
    # The token of a call by `map` is made from other parts than that of a call by `submit`.
    a = client.map(inc, [1, 2, 1])
    b = client.map(inc, [2])
    assert a[0].key == a[2].key
    assert a[1].key == b[0].key
    assert all(f.key.startswith("inc-") for f in a)
    assert client.gather(a) == [2, 3, 2]
    wait(b, timeout=SOON)


def test_equal_arguments_run_once_when_pure(client, gate):
    futures = client.map(note, [gate] * 4, ["x"] * 4)
    wait(futures, timeout=SOON)
    assert gate.arrivals() == ["x"]


def test_impure_calls_have_keys_of_their_own(client, gate):
    futures = client.map(note, [gate] * 4, ["x"] * 4, pure=False)
    assert len({f.key for f in futures}) == 4
    wait(futures, timeout=SOON)
    assert gate.arrivals() == ["x"] * 4


def test_a_string_as_key_is_the_prefix(client):
    futures = client.map(inc, range(3), key="mine")
    assert all(f.key.startswith("mine-") for f in futures)
    assert len({f.key for f in futures}) == 3
    assert client.gather(futures) == [1, 2, 3]


def test_a_list_of_keys(client):
    keys = ["one", ("two", 2), "three"]
    futures = client.map(inc, range(3), key=keys)
    assert [f.key for f in futures] == keys
    assert client.gather(futures) == [1, 2, 3]


def test_batches_give_the_same_results(client):
    futures = client.map(inc, range(103), batch_size=10)
    assert client.gather(futures) == list(range(1, 104))


def test_batches_of_several_iterables_and_keys(client):
    keys = [f"k{i}" for i in range(7)]
    futures = client.map(add, range(7), [10] * 7, key=keys, batch_size=3)
    assert [f.key for f in futures] == keys
    assert client.gather(futures) == [10 + i for i in range(7)]


def test_batches_keep_the_keyword_arguments(client):
    x = client.submit(inc, 1)
    futures = client.map(add, range(5), y=x, batch_size=2)
    assert client.gather(futures) == [2, 3, 4, 5, 6]


def test_workers_pins_all_calls(client, workers):
    for address in workers:
        futures = client.map(here, range(4), workers=[address], pure=False)
        assert set(client.gather(futures)) == {address}
    futures = client.map(here, range(4), workers=workers[0], pure=False)
    assert set(client.gather(futures)) == {workers[0]}


def test_workers_must_be_a_list_or_a_set(client, workers):
    with pytest.raises(TypeError, match="Workers must be a list or set"):
        client.map(inc, range(3), workers=dict.fromkeys(workers))


def test_allow_other_workers_needs_workers(client):
    with pytest.raises(ValueError, match="Only use allow_other_workers"):
        client.map(inc, range(3), allow_other_workers=True)


def test_allow_other_workers_runs_elsewhere_when_it_must(client):
    futures = client.map(
        inc, range(3), workers=["tcp://127.0.0.1:9"], allow_other_workers=True, pure=False
    )
    assert client.gather(futures) == [1, 2, 3]


def test_retries_hold_for_each_call(client, tmp_path):
    directories = [tmp_path / str(i) for i in range(3)]
    for directory in directories:
        directory.mkdir()
    futures = client.map(fail_times, [1] * 3, [str(d) for d in directories],
                         retries=1)  # fmt: skip
    wait(futures, timeout=SOON)
    assert [f.status for f in futures] == ["finished"] * 3
    assert [attempts(d) for d in directories] == [2, 2, 2]


def test_one_error_does_not_spoil_the_others(client):
    futures = client.map(lambda x: 1 / x, [1, 0, 2])
    wait(futures, timeout=SOON)
    assert [f.status for f in futures] == ["finished", "error", "finished"]
    assert client.gather([futures[0], futures[2]]) == [1, 0.5]


def test_calls_run_in_the_order_of_the_arguments_on_one_worker(client, workers, gate, eventually):
    # Resources aside, a map on one thread is a loop.
    blocker = client.submit(pass_gate, gate, name="blocker", workers=workers[:1])
    futures = client.map(note, [gate] * 20, range(20), value=blocker, workers=workers[:1])
    eventually(lambda: len(client.who_has()) == 21)
    gate.open()
    wait(futures, timeout=SOON)
    assert gate.arrivals() == ["blocker", *map(str, range(20))]


def test_priority_puts_one_map_before_another(client, workers, gate, eventually):
    blocker = client.submit(pass_gate, gate, name="blocker", workers=workers[:1])
    low = client.map(note, [gate] * 3, ["low"] * 3, value=blocker, workers=workers[:1],
                     priority=-1, pure=False)  # fmt: skip
    high = client.map(note, [gate] * 3, ["high"] * 3, value=blocker, workers=workers[:1],
                      priority=1, pure=False)  # fmt: skip
    eventually(lambda: len(client.who_has()) == 7)
    gate.open()
    wait([*low, *high], timeout=SOON)
    assert gate.arrivals() == ["blocker", *["high"] * 3, *["low"] * 3]


def test_resources_hold_for_each_call(new_client, gate, eventually):
    client = new_client(workers=1, threads_per_worker=2, resources={"GPU": 1})
    futures = client.map(pass_gate, [gate] * 3, range(3), resources={"GPU": 1})
    eventually(gate.arrived)
    assert client.submit(inc, 1).result(timeout=SOON) == 2
    assert len(gate.arrivals()) == 1
    gate.open()
    assert client.gather(futures) == [0, 1, 2]


def test_both_workers_take_part(client, workers, gate, eventually):
    # Each call waits for the other: it ends only if they run at the same time.
    futures = client.map(pass_gate, [gate] * 2, pure=False)
    eventually(lambda: gate.arrived(2))
    gate.open()
    wait(futures, timeout=SOON)
    assert {a for where in client.who_has(futures).values() for a in where} == set(workers)


def test_a_large_map(client):
    futures = client.map(inc, range(1500))
    assert client.submit(sum, futures).result(timeout=SOON) == sum(range(1, 1501))
    assert client.gather(futures) == list(range(1, 1501))


def test_a_reduction_over_a_map(client):
    values = client.map(inc, range(64))
    while len(values) > 1:
        values = [client.submit(add, *pair) for pair in zip(values[::2], values[1::2], strict=True)]
    assert values[0].result(timeout=SOON) == sum(range(1, 65))


def test_coroutine_functions(client):
    async def f(x):
        return x + 1

    assert client.gather(client.map(f, range(4))) == [1, 2, 3, 4]
