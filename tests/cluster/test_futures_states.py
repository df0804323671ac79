"""`Future`: states, results, callbacks, lifetime, identity."""

from __future__ import annotations

import gc
import pickle
import sys
import threading

import dask
import distributed
import numpy as np
import pytest
from distributed import Future, fire_and_forget, get_client, wait

from client_support import SOON, add, connect, fail, identity, inc, note, pass_gate


def test_from_pending_to_finished(client, gate, eventually):
    future = client.submit(pass_gate, gate, 5)
    eventually(gate.arrived)
    assert future.status == "pending"
    assert not future.done()
    assert not future.cancelled()
    gate.open()
    assert future.result(timeout=SOON) == 5
    assert future.status == "finished"
    assert future.done()
    assert not future.cancelled()


def test_from_pending_to_error(client, gate, eventually):
    future = client.submit(lambda gate: pass_gate(gate) or fail(), gate)
    eventually(gate.arrived)
    assert future.status == "pending"
    gate.open()
    wait(future, timeout=SOON)
    assert future.status == "error"
    assert future.done()


def test_from_finished_to_cancelled(client):
    future = client.submit(inc, 1)
    wait(future, timeout=SOON)
    future.cancel()
    assert future.status == "cancelled"
    assert future.done()


def test_from_error_to_pending_by_a_retry(client, gate):
    def f(gate):
        gate.arrive()
        if len(gate.arrivals()) == 1:
            raise ValueError("first")
        gate.wait()

    future = client.submit(f, gate)
    wait(future, timeout=SOON)
    future.retry()
    assert future.status == "pending"
    gate.open()
    wait(future, timeout=SOON)
    assert future.status == "finished"


def test_a_result_times_out(client, gate):
    future = client.submit(pass_gate, gate, 5)
    with pytest.raises(distributed.TimeoutError):
        future.result(timeout=0.1)
    with pytest.raises(distributed.TimeoutError):
        future.result(timeout="100 ms")
    with pytest.raises(distributed.TimeoutError):
        future.exception(timeout=0.1)
    with pytest.raises(distributed.TimeoutError):
        future.traceback(timeout=0.1)
    assert future.status == "pending"
    gate.open()
    assert future.result(timeout=SOON) == 5


def test_the_timeout_error_is_distributeds(client, gate):
    future = client.submit(pass_gate, gate)
    # Python's own, too, where distributed's is.
    expected = TimeoutError if sys.version_info >= (3, 11) else distributed.TimeoutError
    with pytest.raises(expected):
        future.result(timeout=0.05)
    gate.open()
    wait(future, timeout=SOON)


def test_a_result_can_be_asked_for_again(client):
    future = client.submit(list, (1, 2))
    assert future.result(timeout=SOON) == future.result(timeout=SOON) == [1, 2]


def test_the_type_of_a_result(client):
    futures = [client.submit(identity, x) for x in (1, "a", np.ones(2), {"a": 1})]
    wait(futures, timeout=SOON)
    assert [f.type for f in futures] == [int, str, np.ndarray, dict]


def test_the_type_is_known_when_the_future_is_finished(client, gate, eventually):
    future = client.submit(pass_gate, gate, 5)
    eventually(gate.arrived)
    assert future.type is None
    gate.open()
    wait(future, timeout=SOON)
    assert future.type is int


def test_repr(client, gate, eventually):
    future = client.submit(pass_gate, gate, 5, key="my-key")
    eventually(gate.arrived)
    assert repr(future) == str(future) == "<Future: pending, key: my-key>"
    gate.open()
    wait(future, timeout=SOON)
    assert repr(future) == "<Future: finished, type: int, key: my-key>"
    bad = client.submit(fail, key="bad-key")
    wait(bad, timeout=SOON)
    assert repr(bad) == "<Future: error, key: bad-key>"


def test_html_repr(client):
    future = client.submit(inc, 1, key="my-key")
    wait(future, timeout=SOON)
    html = future._repr_html_()
    assert "my-key" in html
    assert "finished" in html


def test_a_future_knows_its_client(client):
    future = client.submit(inc, 1)
    assert future.client is client
    assert future.executor is client


def test_futures_are_equal_only_to_themselves(client):
    a = client.submit(inc, 1)
    b = client.submit(inc, 1)
    assert a.key == b.key
    assert a == a
    assert a != b
    assert a != a.key
    assert len({a, b, a}) == 2


def test_a_callback_runs_when_the_future_is_done(client, gate, eventually):
    seen = []
    future = client.submit(pass_gate, gate, 5)
    future.add_done_callback(lambda f: seen.append((f is future, f.status)))
    eventually(gate.arrived)
    assert seen == []
    gate.open()
    eventually(lambda: seen == [(True, "finished")])


def test_a_callback_on_a_done_future_runs_too(client, eventually):
    future = client.submit(inc, 1)
    wait(future, timeout=SOON)
    seen = []
    future.add_done_callback(lambda f: seen.append(f.status))
    eventually(lambda: seen == ["finished"])


def test_callbacks_run_after_errors_and_cancellations(client, gate, eventually):
    seen = []
    bad = client.submit(fail)
    bad.add_done_callback(lambda f: seen.append(f.status))
    eventually(lambda: seen == ["error"])
    cancelled = client.submit(pass_gate, gate)
    cancelled.add_done_callback(lambda f: seen.append(f.status))
    cancelled.cancel()
    eventually(lambda: seen == ["error", "cancelled"])
    gate.open()


def test_callbacks_run_on_another_thread_and_may_use_the_future(client, eventually):
    seen = []
    future = client.submit(inc, 1)

    def callback(f):
        seen.append((threading.current_thread() is threading.main_thread(), f.result()))

    future.add_done_callback(callback)
    eventually(lambda: seen == [(False, 2)])


def test_several_callbacks(client, eventually):
    seen = []
    future = client.submit(inc, 1)
    for i in range(5):
        future.add_done_callback(lambda _, i=i: seen.append(i))
    eventually(lambda: sorted(seen) == [0, 1, 2, 3, 4])


def test_a_callback_that_fails_harms_nobody(client, eventually, quiet):
    seen = []
    future = client.submit(inc, 1)
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda _: seen.append(1))
    eventually(lambda: seen == [1])
    assert client.submit(inc, future).result(timeout=SOON) == 3


def test_a_result_is_let_go_with_its_last_future(client, eventually):
    a = client.submit(inc, 1, key="counted")
    b = client.submit(inc, 1, key="counted")
    wait([a, b], timeout=SOON)
    a.release()
    a.release()
    del a
    assert client.submit(inc, b).result(timeout=SOON) == 3
    assert b.result(timeout=SOON) == 2
    del b
    eventually(lambda: "counted" not in client.who_has())
    assert "counted" not in client.futures


def test_a_dependency_stays_as_long_as_somebody_needs_it(client, gate, eventually):
    x = client.submit(inc, 1, key="needed")
    y = client.submit(lambda x, gate: pass_gate(gate, x), x, gate)
    x.release()
    del x
    eventually(gate.arrived)
    assert "needed" in client.who_has()
    gate.open()
    assert y.result(timeout=SOON) == 2
    # The recipe stays for as long as y may have to be computed again; the data does not.
    eventually(lambda: not client.who_has().get("needed"))


def test_a_released_pending_task_does_not_run(client, workers, gate, eventually):
    blocker = client.submit(pass_gate, gate, name="blocker", workers=workers[:1])
    waiting = client.submit(note, gate, "waiting", blocker, workers=workers[:1])
    key = waiting.key
    eventually(lambda: gate.arrived() and key in client.who_has())
    waiting.release()
    del waiting
    eventually(lambda: key not in client.who_has())
    gate.open()
    wait(client.submit(note, gate, "last", blocker, workers=workers[:1]), timeout=SOON)
    assert gate.arrivals() == ["blocker", "last"]


def test_a_future_can_be_made_from_its_key(client):
    a = client.submit(inc, 1, key="by-key")
    wait(a, timeout=SOON)
    b = Future("by-key", client)
    assert b.status == "finished"
    assert b.result(timeout=SOON) == 2


def test_a_future_of_another_clients_key(client, second_client):
    mine = client.submit(inc, 1, key="by-key")
    wait(mine, timeout=SOON)
    theirs = second_client.submit(inc, 1, key="by-key")
    assert theirs.result(timeout=SOON) == 2
    mine.release()
    del mine
    assert theirs.result(timeout=SOON) == 2


def test_a_future_that_was_pickled_has_no_client_until_it_gets_one(client):
    future = client.submit(inc, 1)
    again = pickle.loads(pickle.dumps(future))
    assert again.key == future.key
    assert again.client is None
    assert again.status is None
    with pytest.raises(RuntimeError, match="not properly initialized"):
        again.result()
    again.bind_client(client)
    assert again.client is client
    del future
    gc.collect()
    assert again.result(timeout=SOON) == 2


def test_a_future_without_a_client_says_so():
    import subprocess
    import sys

    script = """
from distributed import Future
future = Future("key")
assert future.status is None
for call in (future.result, future.exception, future.cancel, future.release):
    try:
        call()
    except RuntimeError as error:
        assert "not properly initialized" in str(error)
    else:
        raise AssertionError(call)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=50,
                   capture_output=True)  # fmt: skip


class Holder:
    def __init__(self, future):
        self.future = future


def test_a_future_hidden_in_an_object_has_no_client_in_the_task(client):
    x = client.submit(inc, 1)

    def f(holder):
        assert isinstance(holder.future, Future)
        return (holder.future.key, holder.future.status)

    assert client.submit(f, Holder(x)).result(timeout=SOON) == (x.key, None)


def heard(client, eventually):
    """Wait until the scheduler has heard all that the client said before."""
    marker = client.submit(inc, 1, pure=False)
    eventually(lambda: marker.key in client.who_has())


def test_fire_and_forget_runs_without_a_future(client, gate, eventually):
    future = client.submit(pass_gate, gate, name="fired")
    fire_and_forget(future)
    del future
    heard(client, eventually)
    gate.open()
    eventually(gate.arrived)
    eventually(lambda: not client.who_has())


def test_fire_and_forget_of_many_and_of_collections(client, gate, eventually):
    futures = [client.submit(pass_gate, gate, name=i) for i in range(5)]
    fire_and_forget(futures)
    del futures
    fire_and_forget(dask.delayed(pass_gate)(gate, name="delayed").persist())
    heard(client, eventually)
    gate.open()
    eventually(lambda: sorted(gate.arrivals()) == ["0", "1", "2", "3", "4", "delayed"])


@pytest.mark.parametrize("size", [1_000, 300_000])
@pytest.mark.parametrize("what", ["function", "argument"])
def test_fire_and_forget_outlives_a_client_that_closes_at_once(
    client, gate, eventually, what, size
):
    """Although what it needs is large, and under way when the client closes."""
    data = np.random.default_rng(0).bytes(size)

    def arrive(gate, name, _data=None):
        gate.arrive(name)
        return len(data) if what == "function" else 0

    arguments = () if what == "function" else (np.frombuffer(data, np.uint8),)
    with connect(client, set_as_default=False) as other:
        fire_and_forget(other.submit(arrive, gate, what, *arguments, pure=False))
    eventually(gate.arrived)


def test_fire_and_forget_forgets_errors(client, gate, eventually):
    def f(gate):
        pass_gate(gate)
        raise ValueError("nobody hears this")

    future = client.submit(f, gate)
    fire_and_forget(future)
    del future
    heard(client, eventually)
    gate.open()
    eventually(gate.arrived)
    eventually(lambda: not client.who_has())


def test_fire_and_forget_outlives_its_client(client, second_client, gate, eventually):
    future = second_client.submit(pass_gate, gate, name="outlives")
    fire_and_forget(future)
    eventually(gate.arrived)
    after = second_client.submit(note, gate, "after", future)
    fire_and_forget(after)
    heard(second_client, eventually)
    second_client.close()
    gate.open()
    eventually(lambda: gate.arrivals() == ["outlives", "after"])


def test_a_future_can_be_awaited_in_a_coroutine_task(client):
    async def f(x):
        future = get_client().submit(inc, x)
        return await future

    assert client.submit(f, 1).result(timeout=SOON) == 2


def test_concurrent_use_from_many_threads(client):
    found = {}

    def work(i):
        x = client.submit(inc, i, pure=False)
        found[i] = client.submit(add, x, 1).result(timeout=SOON)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SOON)
    assert found == {i: i + 2 for i in range(10)}
