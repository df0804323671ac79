"""`Client.cancel`, `Future.cancel` and `Client.retry`."""

from __future__ import annotations

import distributed
import pytest
from distributed import as_completed, wait
from distributed.client import FutureCancelledError, FuturesCancelledError

from client_support import (
    SOON,
    add,
    attempts,
    distributed_fails,
    fail,
    fail_times,
    inc,
    note,
    pass_gate,
)


def told(client, workers):
    """The worker knows what the scheduler has forgotten: commands and calls come to it in order."""
    assert client.get_worker_logs(workers=workers[:1])


def test_a_waiting_task_never_runs(client, workers, gate, eventually):
    blocker = client.submit(pass_gate, gate, name="blocker", workers=workers[:1])
    waiting = client.submit(note, gate, "waiting", blocker, workers=workers[:1])
    eventually(lambda: gate.arrived() and waiting.key in client.who_has())
    client.cancel(waiting)
    assert waiting.cancelled()
    assert waiting.status == "cancelled"
    eventually(lambda: waiting.key not in client.who_has())
    told(client, workers)
    gate.open()
    wait(blocker, timeout=SOON)
    last = client.submit(note, gate, "last", workers=workers[:1])
    wait(last, timeout=SOON)
    assert gate.arrivals() == ["blocker", "last"]


def test_the_future_of_a_running_task_is_cancelled_at_once(client, gate, eventually):
    running = client.submit(pass_gate, gate)
    eventually(gate.arrived)
    running.cancel()
    assert running.cancelled()
    assert running.done()
    with pytest.raises(distributed.CancelledError):
        running.result(timeout=SOON)
    gate.open()


def test_the_thread_of_a_cancelled_task_is_used_again_when_it_ends(
    client, workers, gate, eventually
):
    running = client.submit(pass_gate, gate, workers=workers[:1])
    eventually(gate.arrived)
    running.cancel()
    later = client.submit(inc, 1, workers=workers[:1])
    gate.open()
    assert later.result(timeout=SOON) == 2


def test_the_result_of_a_finished_task_is_let_go(client, eventually):
    future = client.submit(inc, 1)
    wait(future, timeout=SOON)
    key = future.key
    client.cancel([future])
    eventually(lambda: key not in client.who_has())
    assert future.status == "cancelled"
    with pytest.raises(FutureCancelledError):
        future.result(timeout=SOON)


def test_the_error_says_which_key_and_why(client):
    future = client.submit(inc, 1, key="named")
    wait(future, timeout=SOON)
    client.cancel(future, reason="on purpose", msg="I do not need it")
    with pytest.raises(FutureCancelledError) as caught:
        future.result(timeout=SOON)
    error = caught.value
    assert (error.key, error.reason, error.msg) == ("named", "on purpose", "I do not need it")
    assert str(error) == "named cancelled for reason: on purpose.\nI do not need it"
    assert isinstance(error, distributed.CancelledError)


def test_without_a_reason_it_is_unknown(client):
    future = client.submit(inc, 1, key="named")
    wait(future, timeout=SOON)
    future.cancel()
    with pytest.raises(FutureCancelledError, match=r"^named cancelled for reason: unknown\.$"):
        future.result(timeout=SOON)


def test_a_future_takes_reason_and_message_too(client):
    future = client.submit(inc, 1)
    wait(future, timeout=SOON)
    future.cancel(reason="r", msg="m")
    with pytest.raises(FutureCancelledError, match=r"for reason: r\.\nm"):
        future.result(timeout=SOON)


def test_exception_and_traceback_of_a_cancelled_future_are_none(client):
    future = client.submit(inc, 1)
    wait(future, timeout=SOON)
    future.cancel()
    assert future.exception(timeout=SOON) is None
    assert future.traceback(timeout=SOON) is None


def test_cancelling_twice(client):
    future = client.submit(inc, 1)
    wait(future, timeout=SOON)
    client.cancel(future)
    client.cancel(future)
    assert future.cancelled()


def test_nested_collections_of_futures(client, gate):
    futures = {"a": [client.submit(pass_gate, gate, i) for i in range(2)]}
    client.cancel(futures)
    assert all(f.cancelled() for f in futures["a"])
    gate.open()


def test_dependents_are_cancelled_too(client, gate, eventually):
    x = client.submit(pass_gate, gate, 1)
    y = client.submit(inc, x)
    z = client.submit(inc, y)
    eventually(lambda: len(client.who_has()) == 3)
    client.cancel(x)
    eventually(lambda: y.cancelled() and z.cancelled())
    with pytest.raises(distributed.CancelledError):
        z.result(timeout=SOON)
    gate.open()


def test_dependencies_that_nobody_wants_any_more_do_not_run(client, workers, gate, eventually):
    blocker = client.submit(pass_gate, gate, name="blocker", workers=workers[:1])
    first = client.submit(note, gate, "first", blocker, workers=workers[:1])
    second = client.submit(note, gate, "second", first, workers=workers[:1])
    first.release()
    del first
    eventually(lambda: gate.arrived() and second.key in client.who_has())
    client.cancel(second)
    eventually(lambda: set(client.who_has()) == {blocker.key})
    told(client, workers)
    gate.open()
    wait(client.submit(note, gate, "last", workers=workers[:1]), timeout=SOON)
    assert gate.arrivals() == ["blocker", "last"]


def test_another_client_keeps_what_it_wants(client, second_client, gate, eventually):
    mine = client.submit(pass_gate, gate, 5, key="wanted-by-two")
    theirs = second_client.submit(pass_gate, gate, 5, key="wanted-by-two")
    eventually(lambda: gate.arrived(1))
    # The scheduler must know of the wish of the second client before the first gives up.
    second_client.submit(inc, 1).result(timeout=SOON)
    client.cancel(mine)
    assert mine.cancelled()
    gate.open()
    assert theirs.result(timeout=SOON) == 5


def test_force_cancels_for_everybody(client, second_client, gate, eventually):
    mine = client.submit(pass_gate, gate, 5, key="wanted-by-two")
    theirs = second_client.submit(pass_gate, gate, 5, key="wanted-by-two")
    eventually(lambda: gate.arrived(1))
    second_client.submit(inc, 1).result(timeout=SOON)
    client.cancel(mine, force=True)
    eventually(theirs.cancelled)
    gate.open()


@distributed_fails("the news of the cancellation comes late and cancels the new future too")
def test_a_cancelled_call_can_be_submitted_again(client):
    future = client.submit(inc, 1, key="again")
    assert future.result(timeout=SOON) == 2
    client.cancel(future)
    again = client.submit(inc, 10, key="again")
    assert again.result(timeout=SOON) == 11
    assert future.cancelled()


@distributed_fails("the news of the cancellation comes late and cancels the new future too")
def test_a_running_call_can_be_submitted_again_after_its_cancellation(
    client, workers, gate, eventually
):
    future = client.submit(pass_gate, gate, "old", key="again", workers=workers[:1])
    eventually(gate.arrived)
    client.cancel(future)
    again = client.submit(pass_gate, gate, "new", key="again", workers=workers[1:])
    gate.open()
    assert again.result(timeout=SOON) == "new"


def test_futures_of_yields_no_cancelled_ones(client):
    future = client.submit(inc, 1)
    wait(future, timeout=SOON)
    client.cancel(future)
    with pytest.raises(FuturesCancelledError, match="1 Future cancelled"):
        client.futures_of([future])
    with pytest.raises(distributed.CancelledError):
        client.who_has([future])


def test_wait_raises_one_error_for_all_cancelled_futures(client):
    futures = client.map(inc, range(3))
    wait(futures, timeout=SOON)
    client.cancel(futures[:2], reason="enough", msg="stop")
    with pytest.raises(FuturesCancelledError) as caught:
        wait(futures, timeout=SOON)
    [group] = caught.value.error_groups
    assert group.reason == "enough"
    assert {e.key for e in group.errors} == {f.key for f in futures[:2]}
    assert "2 Futures cancelled" in str(caught.value)


def test_as_completed_yields_cancelled_futures(client, gate):
    futures = [client.submit(pass_gate, gate, i) for i in range(3)]
    client.cancel(futures)
    assert set(as_completed(futures)) == set(futures)
    gate.open()


def test_results_of_as_completed_are_the_cancellation(client, gate):
    future = client.submit(pass_gate, gate)
    client.cancel(future)
    [(same, result)] = list(as_completed([future], with_results=True))
    assert same is future
    assert isinstance(result, FutureCancelledError)
    gate.open()


def test_a_call_on_a_cancelled_future_is_cancelled(client):
    x = client.submit(inc, 1)
    wait(x, timeout=SOON)
    client.cancel(x)
    y = client.submit(inc, x)
    with pytest.raises(FutureCancelledError, match="lost dependencies"):
        y.result(timeout=SOON)


def test_cancelling_many(client, workers, gate, eventually):
    blocker = client.submit(pass_gate, gate, name="blocker", workers=workers[:1])
    futures = client.map(note, [gate] * 200, range(200), value=blocker, workers=workers[:1])
    eventually(lambda: len(client.who_has()) == 201)
    client.cancel(futures)
    assert all(f.cancelled() for f in futures)
    eventually(lambda: set(client.who_has()) == {blocker.key})
    told(client, workers)
    gate.open()
    wait(blocker, timeout=SOON)
    assert client.submit(inc, 1, workers=workers[:1]).result(timeout=SOON) == 2
    assert gate.arrivals() == ["blocker"]


def test_retry_runs_a_failed_task_again(client, tmp_path):
    future = client.submit(fail_times, 1, str(tmp_path), "done")
    wait(future, timeout=SOON)
    assert future.status == "error"
    client.retry([future])
    assert future.result(timeout=SOON) == "done"
    assert attempts(tmp_path) == 2


def test_a_future_can_be_retried_by_itself(client, tmp_path):
    future = client.submit(fail_times, 1, str(tmp_path), "done")
    assert isinstance(future.exception(timeout=SOON), RuntimeError)
    future.retry()
    assert future.result(timeout=SOON) == "done"
    assert future.status == "finished"


def test_retry_reaches_the_dependency_that_failed(client, tmp_path):
    x = client.submit(fail_times, 1, str(tmp_path), 10)
    y = client.submit(inc, x)
    z = client.submit(add, y, 1)
    assert isinstance(z.exception(timeout=SOON), RuntimeError)
    client.retry(z)
    assert z.result(timeout=SOON) == 12
    assert x.result(timeout=SOON) == 10


def test_a_task_may_fail_again_after_a_retry(client):
    future = client.submit(fail, "always")
    for _ in range(2):
        assert str(future.exception(timeout=SOON)) == "always"
        future.retry()
    with pytest.raises(ValueError, match="always"):
        future.result(timeout=SOON)


def test_cancelling_a_collection(client, gate):
    import dask

    x = dask.delayed(pass_gate, pure=True)(gate, 1).persist()
    client.cancel(x)
    with pytest.raises(distributed.CancelledError):
        client.compute(x).result(timeout=SOON)
    gate.open()


async def test_a_cancelled_future_raises_in_a_coroutine(async_client, gate):
    future = async_client.submit(pass_gate, gate)
    await async_client.cancel(future)
    with pytest.raises(distributed.CancelledError):
        await future
    assert future.cancelled()
    gate.open()
