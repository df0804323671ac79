"""`Client.get_executor`: the client as a `concurrent.futures.Executor`."""

from __future__ import annotations

import concurrent.futures as cf

import pytest
from distributed import get_worker

from client_support import (
    SOON,
    add,
    attempts,
    double,
    fail,
    fail_times,
    inc,
    note,
    pass_gate,
    reach,
)


def here():
    return get_worker().address


def test_submit(client):
    with client.get_executor() as executor:
        assert isinstance(executor, cf.Executor)
        future = executor.submit(add, 1, y=2)
        assert isinstance(future, cf.Future)
        assert future.result(timeout=SOON) == 3
        assert future.done()
        assert not future.cancelled()
        assert future.exception(timeout=SOON) is None


def test_errors(client):
    with client.get_executor() as executor:
        future = executor.submit(fail, "in the executor")
        with pytest.raises(ValueError, match="in the executor"):
            future.result(timeout=SOON)
        assert isinstance(future.exception(timeout=SOON), ValueError)


def test_map_yields_results_in_order(client):
    with client.get_executor() as executor:
        found = executor.map(inc, range(10))
        assert next(found) == 1
        assert list(found) == list(range(2, 11))


def test_map_over_several_iterables(client):
    with client.get_executor() as executor:
        assert list(executor.map(add, [1, 2], [10, 20])) == [11, 22]
        assert list(executor.map(add, [1, 2], [10, 20], chunksize=2)) == [11, 22]


def test_map_raises_what_a_call_raises(client):
    with client.get_executor() as executor:
        found = executor.map(lambda x: 1 // x, [1, 0])
        assert next(found) == 1
        with pytest.raises(ZeroDivisionError):
            next(found)


def test_map_times_out(client, gate):
    with client.get_executor() as executor:
        found = executor.map(pass_gate, [gate], timeout=0.2)
        with pytest.raises(cf.TimeoutError):
            next(found)
        gate.open()


def test_map_takes_no_other_arguments(client):
    with client.get_executor() as executor, pytest.raises(TypeError, match="unexpected arguments"):
        executor.map(inc, [1], retries=5)


def test_an_abandoned_map_cancels_what_remains(client, workers, gate):
    with client.get_executor(workers=workers[:1], pure=False) as executor:
        found = executor.map(lambda x: x if x == 0 else pass_gate(gate, name=x), range(10))
        assert next(found) == 0
        found.close()
        reach(client)
        gate.open()
    assert len(gate.arrivals()) <= 1


def test_wait(client):
    with client.get_executor() as executor:
        futures = [executor.submit(inc, i) for i in range(5)]
        done, pending = cf.wait(futures, timeout=SOON)
        assert done == set(futures)
        assert not pending


def test_wait_for_the_first(client, gate):
    with client.get_executor() as executor:
        slow, fast = executor.submit(pass_gate, gate), executor.submit(inc, 1)
        done, pending = cf.wait([slow, fast], timeout=SOON, return_when=cf.FIRST_COMPLETED)
        assert done == {fast}
        assert pending == {slow}
        gate.open()


def test_wait_for_the_first_exception(client, gate):
    with client.get_executor() as executor:
        slow, bad = executor.submit(pass_gate, gate), executor.submit(fail)
        done, _ = cf.wait([slow, bad], timeout=SOON, return_when=cf.FIRST_EXCEPTION)
        assert done == {bad}
        gate.open()


def test_as_completed(client):
    with client.get_executor() as executor:
        futures = {executor.submit(inc, i): i for i in range(10)}
        found = {futures[f]: f.result() for f in cf.as_completed(futures, timeout=SOON)}
        assert found == {i: i + 1 for i in range(10)}


def test_a_timeout_of_a_result(client, gate):
    with client.get_executor() as executor:
        future = executor.submit(pass_gate, gate, 5)
        with pytest.raises(cf.TimeoutError):
            future.result(timeout=0.1)
        gate.open()
        assert future.result(timeout=SOON) == 5


def test_callbacks(client, eventually):
    seen = []
    with client.get_executor() as executor:
        future = executor.submit(inc, 1)
        future.add_done_callback(lambda f: seen.append(f.result()))
        eventually(lambda: seen == [2])


def test_a_waiting_call_can_be_cancelled(client, workers, gate, eventually):
    with client.get_executor(workers=workers[:1], pure=False) as executor:
        blocker = executor.submit(pass_gate, gate, name="blocker")
        eventually(gate.arrived)
        waiting = executor.submit(note, gate, "waiting")
        assert waiting.cancel()
        assert waiting.cancelled()
        with pytest.raises(cf.CancelledError):
            waiting.result(timeout=SOON)
        gate.open()
        blocker.result(timeout=SOON)


def test_a_cancelled_call_wakes_who_waits_for_it(client, gate):
    with client.get_executor() as executor:
        future = executor.submit(pass_gate, gate)
        future.cancel()
        done, pending = cf.wait([future], timeout=SOON)
        assert done == {future}
        assert not pending
        assert list(cf.as_completed([future], timeout=SOON)) == [future]
        gate.open()


def test_nothing_is_accepted_after_shutdown(client):
    executor = client.get_executor()
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(inc, 1)
    executor.shutdown()


def test_shutdown_waits_for_what_runs(client, gate, eventually):
    executor = client.get_executor()
    future = executor.submit(pass_gate, gate, 5)
    eventually(gate.arrived)
    gate.open()
    executor.shutdown(wait=True)
    assert future.result(timeout=SOON) == 5


def test_shutdown_without_waiting_cancels(client, gate, eventually):
    executor = client.get_executor()
    future = executor.submit(pass_gate, gate)
    eventually(gate.arrived)
    executor.shutdown(wait=False)
    eventually(future.cancelled)
    gate.open()


def test_leaving_the_block_waits(client):
    with client.get_executor() as executor:
        futures = [executor.submit(inc, i) for i in range(5)]
    assert [f.result(timeout=0) for f in futures] == [1, 2, 3, 4, 5]


def test_the_arguments_of_the_executor_hold_for_each_call(client, workers, tmp_path):
    with client.get_executor(workers=workers[1:], pure=False) as executor:
        assert {executor.submit(here).result(timeout=SOON) for _ in range(4)} == {workers[1]}
    with client.get_executor(retries=2) as executor:
        assert executor.submit(fail_times, 2, str(tmp_path), 1).result(timeout=SOON) == 1
    assert attempts(tmp_path) == 3


def test_calls_are_pure_unless_one_says_otherwise(client, gate):
    with client.get_executor() as executor:
        futures = [executor.submit(note, gate, "pure") for _ in range(3)]
        cf.wait(futures, timeout=SOON)
    with client.get_executor(pure=False) as executor:
        futures = [executor.submit(note, gate, "impure") for _ in range(3)]
        cf.wait(futures, timeout=SOON)
    assert gate.arrivals().count("pure") == 1
    assert gate.arrivals().count("impure") == 3


def test_arguments_that_an_executor_does_not_take(client):
    with pytest.raises(TypeError, match="unsupported arguments to ClientExecutor: \\['foo'\\]"):
        client.get_executor(workers=["w"], foo=1)


def test_a_pool_in_dask_compute_style_code(client):
    # What concurrent.futures promises: results by identity of the futures, any order.
    with client.get_executor() as executor:
        squares = {i: executor.submit(double, i) for i in range(20)}
        assert {i: f.result(timeout=SOON) for i, f in squares.items()} == {
            i: 2 * i for i in range(20)
        }
