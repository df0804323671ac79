"""`Lock`, `MultiLock`, `Semaphore` and `Event`, from clients and from tasks."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import distributed
import pytest
from distributed import Event, Lock, MultiLock, Semaphore, wait

from client_support import IS_DASK, SOON, connect, inc, pass_gate
from waiting import until


@pytest.fixture
def name():
    return f"name-{uuid.uuid4().hex}"


def alone(directory, thing, i):
    """Hold `thing` and find out whether anybody else does."""
    with thing:
        files = list(directory.iterdir())
        mark = directory / str(i)
        mark.touch()
        time.sleep(0.002)
        mark.unlink()
    return len(files)


# Lock


def test_a_lock_is_acquired_and_released(client, name):
    lock = Lock(name)
    assert lock.name == name
    assert not lock.locked()
    assert lock.acquire() is True
    assert lock.locked()
    lock.release()
    assert not lock.locked()


def test_a_lock_is_a_block(client, name):
    with Lock(name) as lock:
        assert lock.locked()
    assert not lock.locked()
    with pytest.raises(ZeroDivisionError), Lock(name):
        1 / 0  # noqa: B018
    assert not Lock(name).locked()


def test_locks_of_one_name_are_one_lock(client, name):
    a, b = Lock(name), Lock(name)
    a.acquire()
    assert b.locked()
    assert b.acquire(timeout=0.05) is False
    a.release()
    assert b.acquire(timeout=SOON) is True
    b.release()


def test_locks_without_a_name_are_different_locks(client):
    a, b = Lock(), Lock()
    assert a.name != b.name
    with a:
        assert b.acquire(timeout=SOON) is True
        b.release()


def test_a_lock_does_not_have_to_block(client, name):
    a, b = Lock(name), Lock(name)
    assert a.acquire(blocking=False) is True
    assert b.acquire(blocking=False) is False
    with pytest.raises(ValueError, match="can't specify a timeout for a non-blocking call"):
        b.acquire(blocking=False, timeout=1)
    a.release()


def test_timeouts_may_be_strings(client, name):
    with Lock(name):
        assert Lock(name).acquire(timeout="10 ms") is False


def test_a_lock_is_released_once(client, name):
    lock = Lock(name)
    with pytest.raises(RuntimeError, match="Released too often"):
        lock.release()
    lock.acquire()
    lock.release()
    with pytest.raises(RuntimeError, match="Released too often"):
        lock.release()


def test_a_waiter_gets_the_lock_when_it_is_released(client, name, eventually):
    lock = Lock(name)
    lock.acquire()
    got = []

    def work():
        with Lock(name):
            got.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    assert not got
    lock.release()
    thread.join(SOON)
    assert got == [True]


def test_tasks_hold_a_lock_one_after_another(client, name, tmp_path):
    futures = client.map(alone, [tmp_path] * 10, [Lock(name)] * 10, range(10), pure=False)
    assert client.gather(futures) == [0] * 10


def test_tasks_make_their_own_lock(client, name, tmp_path):
    def f(directory, name, i):
        return alone(directory, Lock(name), i)

    futures = client.map(f, [tmp_path] * 10, [name] * 10, range(10), pure=False)
    assert client.gather(futures) == [0] * 10


def test_a_task_waits_for_a_lock_of_the_client(client, name, gate, eventually):
    def f(gate, lock):
        gate.arrive("started")
        with lock:
            return "got it"

    lock = Lock(name)
    lock.acquire()
    future = client.submit(f, gate, lock)
    eventually(gate.arrived)
    assert not future.done()
    lock.release()
    assert future.result(timeout=SOON) == "got it"


def test_a_lock_passes_through_pickle(client, name):
    lock = pickle.loads(pickle.dumps(Lock(name)))
    assert lock.name == name
    with lock:
        assert Lock(name).locked()


# MultiLock


def test_all_locks_are_acquired(client, name):
    a, b = f"{name}-a", f"{name}-b"
    lock = MultiLock([a, b])
    assert lock.acquire() is True
    assert lock.locked()
    assert MultiLock([a]).acquire(timeout=0.05) is False
    assert MultiLock([b]).acquire(blocking=False) is False
    lock.release()
    assert not lock.locked()
    with MultiLock([a]), MultiLock([b]):
        pass


def test_multi_locks_that_share_no_name_do_not_wait(client, name):
    with MultiLock([f"{name}-a", f"{name}-b"]), MultiLock([f"{name}-c"]) as other:
        assert other.locked()


def test_some_of_the_locks(client, name):
    names = [f"{name}-{i}" for i in range(3)]
    with MultiLock(names[:1]):
        lock = MultiLock(names)
        assert lock.acquire(num_locks=2, timeout=SOON) is True
        other = MultiLock(names)
        assert other.acquire(num_locks=1, timeout=0.05) is False
        lock.release()


def test_a_multi_lock_is_released_once(client, name):
    lock = MultiLock([name])
    with pytest.raises(ValueError, match="Lock is not yet acquired"):
        lock.release()
    lock.acquire()
    lock.release()


def test_a_multi_lock_does_not_have_to_block(client, name):
    with MultiLock([name]):
        with pytest.raises(ValueError, match="can't specify a timeout for a non-blocking call"):
            MultiLock([name]).acquire(blocking=False, timeout=1)
        assert MultiLock([name]).acquire(blocking=False) is False


def test_tasks_hold_multi_locks_one_after_another(client, name, tmp_path):
    def f(directory, names, i):
        return alone(directory, MultiLock(names), i)

    pairs = [[f"{name}-{i % 3}", f"{name}-common"] for i in range(10)]
    futures = client.map(f, [tmp_path] * 10, pairs, range(10), pure=False)
    assert client.gather(futures) == [0] * 10


@pytest.mark.skipif(IS_DASK, reason="distributed never frees what a client waited for")
@pytest.mark.parametrize("steps", range(4))
def test_a_multi_lock_is_released_while_a_client_that_waits_for_it_leaves(client, name, steps):
    """Whoever is next in turn gets it, however little later it is released."""
    names = [f"{name}-x", f"{name}-y"]
    with (
        connect(client, set_as_default=False) as leaving,
        connect(client, set_as_default=False) as staying,
    ):
        held = MultiLock(names, client=client)
        held.acquire()
        next_in_turn = [MultiLock(names[:1], client=leaving), MultiLock(names[1:], client=staying)]
        pool = ThreadPoolExecutor()
        waiting = [pool.submit(one.acquire) for one in next_in_turn]
        sidecar = client.cluster._scheduler.sidecar._sidecar
        locks = sidecar.scheduler.multi_locks
        until(lambda: all(one.id in locks.events for one in next_in_turn), "both wait")

        async def leave_and_release():
            left = asyncio.ensure_future(sidecar._client_left({"client": leaving.id}))
            for _ in range(steps):
                await asyncio.sleep(0)
            locks.release(id=held.id)
            await left

        sidecar._loop.run(leave_and_release(), SOON)
        assert waiting[1].result(SOON) is True
        next_in_turn[1].release()
    pool.shutdown()


@pytest.mark.skipif(IS_DASK, reason="distributed keeps what a client held")
def test_locks_are_free_though_a_function_of_their_client_goes_on(client, name, gate):
    async def go_on(gate):
        gate.arrive()
        while not (gate.directory / "open").exists():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    def run():
        with suppress(OSError, distributed.client.CancelledError):
            other.run_on_scheduler(go_on, gate)

    with connect(client, set_as_default=False) as other, ThreadPoolExecutor() as pool:
        MultiLock([name], client=other).acquire()
        pool.submit(run)
        until(gate.arrived, "it runs")
        other.close()
    lock = MultiLock([name], client=client)
    assert lock.acquire(timeout=SOON) is True
    lock.release()


# Semaphore


def test_a_semaphore_counts_its_leases(client, name):
    semaphore = Semaphore(max_leases=2, name=name)
    assert semaphore.acquire() is True
    assert semaphore.acquire() is True
    assert semaphore.get_value() == 2
    assert semaphore.acquire(timeout=0.05) is False
    assert semaphore.release() is True
    assert semaphore.get_value() == 1
    assert semaphore.acquire(timeout=SOON) is True
    semaphore.release()
    semaphore.release()
    semaphore.close()


def test_a_semaphore_is_a_block(client, name):
    semaphore = Semaphore(name=name)
    with semaphore:
        assert semaphore.get_value() == 1
    assert semaphore.get_value() == 0
    semaphore.close()


def test_a_semaphore_is_not_released_too_often(client, name):
    semaphore = Semaphore(name=name)
    with pytest.raises(RuntimeError, match="Released too often"):
        semaphore.release()


def test_semaphores_of_one_name_must_agree(client, name):
    Semaphore(max_leases=2, name=name).register()
    with pytest.raises(ValueError, match="Inconsistent max leases: 3, expected: 2"):
        Semaphore(max_leases=3, name=name).register()
    with pytest.raises(ValueError, match="Inconsistent max leases"):
        Semaphore(max_leases=1, name=name).acquire()


def test_a_closed_semaphore_may_be_made_anew(client, name):
    semaphore = Semaphore(max_leases=2, name=name)
    semaphore.register()
    semaphore.close()
    other = Semaphore(max_leases=5, name=name)
    assert other.acquire(timeout=SOON) is True
    other.release()
    other.close()


def test_a_closed_semaphore_is_not_known(client, name):
    semaphore = Semaphore(name=name)
    semaphore.register()
    semaphore.close()
    with pytest.raises(RuntimeError, match="not known"):
        semaphore.acquire(timeout=0.1)


def test_tasks_share_a_semaphore(client, name, tmp_path):
    semaphore = Semaphore(max_leases=1, name=name)
    futures = client.map(alone, [tmp_path] * 10, [semaphore] * 10, range(10), pure=False)
    assert client.gather(futures) == [0] * 10
    assert semaphore.get_value() == 0
    semaphore.close()


def test_a_semaphore_in_keyword_arguments(client, name):
    def f(x, sem):
        with sem:
            return x + 1

    semaphore = Semaphore(max_leases=2, name=name)
    assert client.gather(client.map(f, range(6), sem=semaphore)) == [1, 2, 3, 4, 5, 6]
    semaphore.close()


def test_a_semaphore_passes_through_pickle(client, name):
    semaphore = Semaphore(max_leases=2, name=name)
    semaphore.acquire()
    other = pickle.loads(pickle.dumps(semaphore))
    assert (other.name, other.max_leases) == (name, 2)
    assert other.get_value() == 1
    with pytest.raises(RuntimeError, match="Released too often"):
        other.release()  # the lease is the other object's
    semaphore.release()
    semaphore.close()


def test_a_waiting_task_gets_the_lease(client, name, gate, eventually):
    def f(gate, semaphore):
        gate.arrive()
        with semaphore:
            return 5

    semaphore = Semaphore(name=name)
    semaphore.acquire()
    future = client.submit(f, gate, semaphore)
    eventually(gate.arrived)
    semaphore.release()
    assert future.result(timeout=SOON) == 5
    semaphore.close()


def test_leases_of_a_lost_worker_are_given_back(new_client, name, gate, eventually):
    import os
    import signal

    import dask

    config = {
        # A worker that lives refreshes its leases within this time, on a busy machine as well.
        "distributed.scheduler.locks.lease-timeout": "5 s",
        "distributed.scheduler.locks.lease-validation-interval": "50 ms",
        "distributed.scheduler.allowed-failures": 0,
    }
    with dask.config.set(config):
        client = new_client(workers=1)

        def f(gate, semaphore):
            semaphore.acquire()
            pass_gate(gate, name=os.getpid())

        semaphore = Semaphore(name=name)
        future = client.submit(f, gate, semaphore)
        eventually(gate.arrived)
        assert semaphore.get_value() == 1
        os.kill(int(gate.arrivals()[0]), signal.SIGKILL)
        assert semaphore.acquire(timeout=SOON) is True
        future.cancel()
        semaphore.release()


# Event


def test_an_event(client, name):
    event = Event(name)
    assert not event.is_set()
    assert event.wait(timeout=0.05) is False
    event.set()
    assert event.is_set()
    assert event.wait(timeout=SOON) is True
    assert event.wait(timeout="10 s") is True
    event.clear()
    assert not event.is_set()
    event.clear()


def test_events_of_one_name_are_one_event(client, name):
    Event(name).set()
    assert Event(name).is_set()
    assert not Event(name + "-other").is_set()
    Event(name).clear()


def test_events_without_a_name_are_different(client):
    a, b = Event(), Event()
    assert a.name != b.name
    a.set()
    assert not b.is_set()
    a.clear()


def test_tasks_wait_for_an_event(client, name, gate, eventually):
    def f(event, gate):
        gate.arrive()
        return event.wait(timeout=SOON)

    event = Event(name)
    futures = client.map(f, [event] * 2, [gate] * 2, pure=False)
    eventually(lambda: gate.arrived(2))
    assert not any(f.done() for f in futures)
    event.set()
    assert client.gather(futures) == [True, True]
    event.clear()


def test_a_task_sets_an_event(client, name):
    event = Event(name)
    future = client.submit(lambda e: e.set(), event)
    assert event.wait(timeout=SOON) is True
    wait(future, timeout=SOON)
    event.clear()


def test_an_event_passes_through_pickle(client, name):
    event = pickle.loads(pickle.dumps(Event(name)))
    assert event.name == name
    event.set()
    assert Event(name).is_set()
    event.clear()


def test_two_clients_share_an_event_and_a_lock(client, second_client, name):
    mine = Event(name, client=client)
    theirs = Event(name, client=second_client)
    mine.set()
    assert theirs.is_set()
    theirs.clear()
    assert not mine.is_set()
    with second_client.as_current():
        lock = Lock(name)
        lock.acquire()
    assert Lock(name).acquire(timeout=0.05) is False
    lock.release()


def test_primitives_without_a_client_say_so():
    import subprocess
    import sys

    script = """
from distributed import Event, Lock, Semaphore
for call in (Event("x").wait, Lock("x").acquire, Semaphore(name="x").acquire):
    try:
        call()
    except RuntimeError as error:
        assert "not properly initialized" in str(error), error
    else:
        raise AssertionError(call)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=50)


def test_primitives_leave_the_cluster_free(client, name):
    with Lock(name):
        assert client.submit(inc, 1).result(timeout=SOON) == 2
    assert isinstance(client, distributed.Client)
