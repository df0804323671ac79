"""`wait` and `as_completed`."""

from __future__ import annotations

import dask
import distributed
import pytest
from distributed import as_completed, wait
from distributed.client import FIRST_COMPLETED

from client_support import AGAINST, SOON, add, distributed_fails, fail, inc, pass_gate


def test_wait_returns_what_is_done_and_what_is_not(client):
    futures = client.map(inc, range(5))
    result = wait(futures, timeout=SOON)
    assert result.done == set(futures)
    assert result.not_done == set()
    done, not_done = result
    assert (done, not_done) == (result.done, result.not_done)


def test_wait_for_one_future(client):
    future = client.submit(inc, 1)
    assert wait(future, timeout=SOON).done == {future}


def test_wait_for_errors_too(client):
    good, bad = client.submit(inc, 1), client.submit(fail)
    done, _ = wait([good, bad], timeout=SOON)
    assert done == {good, bad}


def test_wait_for_the_first(client, gate):
    slow, fast = client.submit(pass_gate, gate), client.submit(inc, 1)
    done, not_done = wait([slow, fast], return_when=FIRST_COMPLETED, timeout=SOON)
    assert done == {fast}
    assert not_done == {slow}
    gate.open()
    assert wait([slow], return_when="FIRST_COMPLETED", timeout=SOON).done == {slow}


def test_wait_for_the_first_of_done_futures(client):
    futures = client.map(inc, range(3))
    wait(futures, timeout=SOON)
    assert wait(futures, return_when="FIRST_COMPLETED", timeout=SOON).done == set(futures)


def test_wait_times_out(client, gate):
    future = client.submit(pass_gate, gate)
    with pytest.raises(distributed.TimeoutError):
        wait(future, timeout=0.1)
    with pytest.raises(distributed.TimeoutError):
        wait([future], timeout="100 ms")
    gate.open()
    wait(future, timeout="30 s")


@distributed_fails("it looks at nothing in no time, and always times out")
def test_no_time_is_enough_for_what_is_done(client, gate):
    done, running = client.submit(inc, 1), client.submit(pass_gate, gate)
    wait(done, timeout=SOON)
    assert wait(done, timeout=0).done == {done}
    assert done.result(timeout=0) == 2
    assert next(as_completed([done, running], timeout=0)) is done
    with pytest.raises(distributed.TimeoutError):
        wait([done, running], timeout=0)
    with pytest.raises(distributed.TimeoutError):
        next(as_completed([running], timeout=0))
    gate.open()


def test_wait_takes_one_argument_of_futures(client):
    x, y = client.map(inc, [1, 2])
    with pytest.raises(TypeError, match="Good: wait"):
        wait(x, y)


def test_wait_for_the_first_exception_is_not_there(client):
    with pytest.raises(NotImplementedError, match="Only return_when="):
        wait(client.map(inc, [1]), return_when="FIRST_EXCEPTION")


def test_wait_for_nested_futures_and_collections(client):
    x = client.submit(inc, 1)
    y = dask.delayed(inc)(2).persist()
    done, _ = wait({"x": [x], "y": y}, timeout=SOON)
    assert len(done) == 2


def test_wait_for_nothing(client):
    done, not_done = wait([], timeout=SOON)
    assert (done, not_done) == (set(), set())


def test_futures_come_as_they_complete(client, gate):
    slow, fast = client.submit(pass_gate, gate, 1), client.submit(inc, 1)
    found = as_completed([slow, fast])
    assert next(found) is fast
    gate.open()
    assert next(found) is slow
    with pytest.raises(StopIteration):
        next(found)


def test_as_completed_of_many(client):
    futures = client.map(inc, range(200))
    assert {f.result() for f in as_completed(futures)} == set(range(1, 201))


def test_as_completed_of_nothing(client):
    assert list(as_completed([])) == []
    assert list(as_completed()) == []


def test_with_results(client):
    futures = client.map(inc, range(10))
    found = dict(as_completed(futures, with_results=True))
    assert found == {f: i + 1 for i, f in enumerate(futures)}


def test_errors_are_raised_with_results(client):
    found = as_completed([client.submit(fail, "raised")], with_results=True)
    with pytest.raises(ValueError, match="raised"):
        next(found)


def test_errors_may_be_results(client):
    bad = client.submit(fail, "returned")
    [(future, result)] = as_completed([bad], with_results=True, raise_errors=False)
    assert future is bad
    kind, error, traceback = result
    assert kind is ValueError
    assert str(error) == "returned"
    assert traceback is not None


def test_errors_without_results_are_just_done(client):
    bad = client.submit(fail)
    assert list(as_completed([bad])) == [bad]
    assert bad.status == "error"


class Unreadable:
    """Its pickle cannot be read."""

    def __reduce__(self):
        return fail, ("unreadable",)


@distributed_fails("it waits for ever")
def test_a_value_that_cannot_be_unpickled_is_raised(client):
    bad = client.submit(Unreadable)
    found = as_completed([bad], with_results=True, timeout=SOON)
    with pytest.raises(ValueError, match="unreadable"):
        next(found)
    assert bad.status == "finished"
    assert found.is_empty()


@distributed_fails("it waits for ever")
def test_a_value_that_cannot_be_unpickled_is_tried_once(client, monkeypatch):
    bad, good = client.submit(Unreadable), client.submit(inc, 1)
    fetched = []
    fetch = client._fetch_then
    monkeypatch.setattr(client, "_fetch_then", lambda *args: fetched.append(args) or fetch(*args))
    options = {"with_results": True, "raise_errors": False, "timeout": SOON}
    results = dict(as_completed([bad, good], **options))
    assert results[good] == 2
    kind, error, traceback = results[bad]
    assert (kind, str(error)) == (ValueError, "unreadable")
    assert traceback is not None
    assert len(fetched) == 2


@distributed_fails("it waits for ever")
async def test_a_value_that_cannot_be_unpickled_is_raised_in_a_coroutine(async_client):
    found = as_completed([async_client.submit(Unreadable)], with_results=True, timeout=SOON)
    with pytest.raises(ValueError, match="unreadable"):
        await anext(found)


def test_a_value_that_looks_like_an_error_is_none(client):
    value = (ValueError, ValueError("fine"), None)
    [(_, result)] = as_completed([client.submit(lambda: value)], with_results=True, timeout=SOON)
    assert result[0] is ValueError


def test_adding_futures(client):
    found = as_completed(client.map(inc, range(3)))
    total = 0
    added = False
    for future in found:
        total += future.result()
        if not added:
            added = True
            found.add(client.submit(inc, 99))
    assert total == 1 + 2 + 3 + 100


def test_adding_to_an_exhausted_iterator(client):
    found = as_completed(client.map(inc, range(2)))
    assert len(list(found)) == 2
    future = client.submit(inc, 5)
    found.add(future)
    assert list(found) == [future]


def test_updating_with_several_futures(client):
    found = as_completed()
    found.update(client.map(inc, range(3)))
    found.update(client.map(inc, range(10, 12)))
    assert sorted(f.result() for f in found) == [1, 2, 3, 11, 12]


def test_only_futures_are_taken(client):
    with pytest.raises(TypeError, match="Input must be a future"):
        as_completed([1, 2])
    with pytest.raises(TypeError, match="Input must be a future"):
        as_completed().add("x")


def test_a_future_that_is_given_twice_comes_twice(client):
    future = client.submit(inc, 1)
    assert list(as_completed([future, future])) == [future, future]


def test_two_futures_of_one_key_both_come(client):
    a = client.submit(inc, 1)
    b = client.submit(inc, 1)
    assert set(as_completed([a, b])) == {a, b}


def test_count_is_empty_and_has_ready(client, gate, eventually):
    slow, fast = client.submit(pass_gate, gate), client.submit(inc, 1)
    found = as_completed([slow, fast])
    assert found.count() == 2
    assert not found.is_empty()
    eventually(found.has_ready)
    assert found.count() == 2
    assert next(found) is fast
    assert found.count() == 1
    assert not found.has_ready()
    gate.open()
    assert next(found) is slow
    assert found.count() == 0
    assert found.is_empty()


def test_repr(client, gate, eventually):
    future = client.submit(pass_gate, gate)
    found = as_completed([future])
    assert repr(found) == "<as_completed: waiting=1 done=0>"
    gate.open()
    eventually(found.has_ready)
    assert repr(found) == "<as_completed: waiting=0 done=1>"


def test_clearing(client, gate):
    futures = [client.submit(pass_gate, gate, i) for i in range(3)]
    found = as_completed(futures)
    found.clear()
    assert found.is_empty()
    assert list(found) == []
    gate.open()
    wait(futures, timeout=SOON)


def test_batches_are_all_futures_together(client):
    futures = client.map(inc, range(50))
    batches = list(as_completed(futures).batches())
    assert all(isinstance(batch, list) and batch for batch in batches)
    assert {f for batch in batches for f in batch} == set(futures)


def test_what_is_ready_comes_in_one_batch(client, eventually):
    futures = client.map(inc, range(10))
    wait(futures, timeout=SOON)
    found = as_completed(futures)
    eventually(lambda: len(found.queue.queue) == 10)
    [batch] = found.batches()
    assert set(batch) == set(futures)


def test_batches_with_results(client):
    futures = client.map(inc, range(20))
    found = {}
    for batch in as_completed(futures, with_results=True).batches():
        found.update(batch)
    assert found == {f: i + 1 for i, f in enumerate(futures)}


def test_futures_may_be_added_between_batches(client):
    found = as_completed(client.map(inc, range(4)))
    seen = []
    for batch in found.batches():
        values = client.gather(batch)
        seen.extend(values)
        found.update([client.submit(add, v, 10) for v in values if v < 10])
    assert sorted(seen) == [1, 2, 3, 4, 11, 12, 13, 14]


def test_the_next_batch_without_blocking(client, gate, eventually):
    future = client.submit(pass_gate, gate)
    found = as_completed([future])
    assert found.next_batch(block=False) == []
    gate.open()
    eventually(found.has_ready)
    assert found.next_batch(block=False) == [future]
    assert found.next_batch(block=False) == []


def test_as_completed_times_out(client, gate):
    slow, fast = client.submit(pass_gate, gate), client.submit(inc, 1)
    wait(fast, timeout=SOON)
    found = as_completed([slow, fast], timeout=1)
    seen = []
    with pytest.raises(distributed.TimeoutError):
        seen.extend(found)
    gate.open()
    wait(slow, timeout=SOON)


def test_a_timeout_that_does_not_expire(client):
    futures = client.map(inc, range(5))
    assert set(as_completed(futures, timeout="30 s")) == set(futures)


def test_futures_that_fail_later_do_not_stop_the_others(client):
    futures = client.map(lambda x: 10 // x, [0, 1, 2, 0, 5])
    found = list(as_completed(futures))
    assert set(found) == set(futures)
    assert sorted(f.result() for f in found if f.status == "finished") == [2, 5, 10]


def test_a_search_that_stops_early(client, gate):
    futures = [client.submit(pass_gate, gate, i) for i in range(5)]
    found = as_completed(futures)
    gate.open()
    first = next(found)
    client.cancel([f for f in futures if f is not first])
    assert first.result(timeout=SOON) in range(5)


@pytest.mark.skipif(AGAINST == "distributed", reason="it is Treadle's that is asked for")
def test_distributed_s_own_is_treadle_s_with_a_client_of_treadle(client):
    import treadle

    found = as_completed(client.map(inc, range(3)))
    assert type(found) is treadle.as_completed
    assert isinstance(found, as_completed)
    assert sorted(f.result() for f in found) == [1, 2, 3]
