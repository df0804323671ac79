"""What a task can do: its worker, its client, nested work, leaving its thread."""

from __future__ import annotations

import os
import threading
import traceback

import dask
import dask.array as da
import distributed
import pytest
from dask import delayed
from distributed import (
    as_completed,
    get_client,
    get_worker,
    rejoin,
    secede,
    wait,
    worker_client,
)

from client_support import SOON, add, addresses, double, fail, inc, note, pass_gate


def test_a_task_knows_its_worker(client, workers):
    def f():
        worker = get_worker()
        return (worker.address, worker.name, worker.state.nthreads, os.getpid())

    names = {a: info["name"] for a, info in client.scheduler_info()["workers"].items()}
    processes = client.run(os.getpid)
    for address in workers:
        found = client.submit(f, workers=[address], pure=False).result(timeout=SOON)
        assert found == (address, names[address], 1, processes[address])


def test_outside_of_a_task_there_is_no_worker(client):
    with pytest.raises(ValueError, match="No worker found"):
        get_worker()


def test_a_worker_keeps_what_tasks_put_on_it(client, workers):
    def put(x):
        get_worker().my_state = x

    def get():
        return get_worker().my_state

    wait(client.submit(put, 5, workers=workers[:1]), timeout=SOON)
    assert client.submit(get, workers=workers[:1], pure=False).result(timeout=SOON) == 5


def test_a_task_knows_its_key(client):
    def f():
        return get_worker().get_current_task()

    assert client.submit(f, key="who-am-i").result(timeout=SOON) == "who-am-i"


def test_a_client_in_a_task(client):
    def f(x):
        c = get_client()
        return c.gather(c.map(inc, range(x)))

    assert client.submit(f, 4).result(timeout=SOON) == [1, 2, 3, 4]


def test_a_task_has_one_client_for_itself_and_its_neighbours(client, workers):
    def f(i):
        return get_client().id

    ids = client.gather(client.map(f, range(4), workers=workers[:1], pure=False))
    assert len(set(ids)) == 1
    assert ids[0] != client.id


def test_outside_of_a_task_get_client_is_the_default_one(client):
    assert get_client() is client
    assert get_client(client.scheduler_info()["address"]) is client


def test_blocking_on_a_future_with_all_threads_taken(client):
    # Both threads are taken by tasks that wait for tasks of their own: secede() makes room.
    def f(x):
        with worker_client() as c:
            return c.submit(inc, x).result(timeout=SOON)

    assert client.gather(client.map(f, range(4))) == [1, 2, 3, 4]


def test_more_levels_than_threads(client):
    def f(depth):
        if depth == 0:
            return 0
        with worker_client() as c:
            return c.submit(f, depth - 1, pure=False).result(timeout=2 * SOON) + 1

    assert client.submit(f, 6).result(timeout=2 * SOON) == 6


def test_recursion_with_secede(client):
    def fibonacci(n):
        if n < 2:
            return n
        c = get_client()
        futures = c.map(fibonacci, [n - 1, n - 2])
        secede()
        results = c.gather(futures)
        rejoin()
        return sum(results)

    assert client.submit(fibonacci, 7).result(timeout=2 * SOON) == 13


def test_a_task_that_seceded_frees_its_thread(client, workers, gate, eventually):
    def f(gate):
        secede()
        gate.arrive("seceded")
        gate.wait()
        return "done"

    long = client.submit(f, gate, workers=workers[:1])
    eventually(gate.arrived)
    short = client.submit(inc, 1, workers=workers[:1])
    assert short.result(timeout=SOON) == 2
    assert not long.done()
    gate.open()
    assert long.result(timeout=SOON) == "done"


def test_a_task_that_rejoined_takes_a_thread_again(client, workers, gate):
    def f(gate):
        secede()
        rejoin()
        return threading.get_ident()

    assert client.submit(f, gate, workers=workers[:1]).result(timeout=SOON)
    assert client.gather(client.map(inc, range(4), workers=workers[:1])) == [1, 2, 3, 4]


def test_secede_outside_of_a_task(client):
    with pytest.raises(ValueError, match="No worker found"):
        secede()


def test_worker_client_outside_of_a_task(client):
    with pytest.raises(ValueError, match="No worker found"), worker_client():
        pass


def test_worker_client_submits_maps_gathers_and_scatters(client):
    def f():
        with worker_client() as c:
            x = c.submit(inc, 1)
            y = c.submit(add, x, 1)
            [z] = c.scatter([10])
            return c.gather([x, y, c.submit(add, y, z)])

    assert client.submit(f, pure=False).result(timeout=SOON) == [2, 3, 13]


def test_worker_client_on_its_own_thread(client):
    def f():
        with worker_client(separate_thread=False) as c:
            return c.submit(inc, 1).key

    assert client.submit(f, pure=False).result(timeout=SOON).startswith("inc-")


def test_worker_clients_in_one_another(client):
    def f():
        with worker_client() as a, worker_client() as b:
            return a is b, b.submit(inc, 1).result(timeout=SOON)

    assert client.submit(f, pure=False).result(timeout=SOON) == (True, 2)


def test_a_task_runs_on_after_worker_client(client):
    def f():
        with worker_client() as c:
            x = c.submit(inc, 1).result(timeout=SOON)
        return get_worker().address, x

    address, x = client.submit(f, pure=False).result(timeout=SOON)
    assert address in addresses(client)
    assert x == 2


def test_errors_of_nested_tasks(fresh_client):
    # The error keeps the future alive in the client of the worker, so none of the others' here.
    client = fresh_client

    def f():
        with worker_client() as c:
            return c.submit(fail, "nested").result(timeout=SOON)

    with pytest.raises(ValueError, match="nested"):
        client.submit(f, pure=False).result(timeout=SOON)


def test_a_nested_error_can_be_caught(client):
    def f():
        with worker_client() as c:
            try:
                c.submit(fail, "caught").result(timeout=SOON)
            except ValueError as error:
                traceback.clear_frames(error.__traceback__)  # they hold the future
                return str(error)

    assert client.submit(f, pure=False).result(timeout=SOON) == "caught"


def test_as_completed_in_a_task(client):
    def f(n):
        with worker_client() as c:
            return sorted(x.result() for x in as_completed(c.map(inc, range(n))))

    assert client.submit(f, 5).result(timeout=SOON) == [1, 2, 3, 4, 5]


def test_wait_in_a_task(client):
    def f(n):
        with worker_client() as c:
            done, not_done = wait(c.map(inc, range(n)))
            return len(done), len(not_done)

    assert client.submit(f, 5).result(timeout=SOON) == (5, 0)


def test_compute_in_a_task(client):
    def f():
        return da.ones((10, 10), chunks=5).sum().compute()

    assert client.submit(f, pure=False).result(timeout=SOON) == 100


def test_compute_in_a_task_uses_the_cluster(client, gate):
    def here(gate):
        gate.arrive(get_worker().address)
        return get_worker().address

    def f(gate):
        found = dask.compute(*[delayed(here, pure=False)(gate) for _ in range(4)])
        return list(found)

    found = client.submit(f, gate, pure=False).result(timeout=SOON)
    assert set(found) <= set(addresses(client))
    assert sorted(found) == sorted(gate.arrivals())


def test_delayed_in_delayed(client):
    @delayed
    def inner(x):
        return x + 1

    @delayed
    def outer(x):
        return inner(inner(x)).compute()

    assert outer(1).compute() == 3


def test_deep_nested_computations(client):
    @delayed(pure=False)
    def f(depth):
        if depth == 0:
            return 0
        return f(depth - 1).compute() + 1

    assert f(5).compute() == 5


def test_persist_in_a_task(client):
    def f():
        with worker_client():
            x = delayed(inc)(1).persist()
            wait(x)
            return x.compute()

    assert client.submit(f, pure=False).result(timeout=SOON) == 2


def test_futures_of_the_client_are_arguments_of_nested_tasks(client):
    def f(x):
        with worker_client() as c:
            return c.submit(double, x).result(timeout=SOON)

    x = client.submit(inc, 1)
    assert client.submit(f, x).result(timeout=SOON) == 4


def test_fire_and_forget_in_a_task(client, gate, eventually):
    def f(gate):
        distributed.fire_and_forget(get_client().submit(pass_gate, gate, name="fired"))
        return "gone on"

    future = client.submit(f, gate)
    assert future.result(timeout=SOON) == "gone on"
    eventually(gate.arrived)
    marker = client.submit(inc, 1)
    assert marker.result(timeout=SOON) == 2
    gate.open()


def test_a_nested_task_shares_a_key_with_the_client(client, gate):
    def f(gate):
        with worker_client() as c:
            return c.submit(note, gate, "once", 5, key="shared-key").result(timeout=SOON)

    mine = client.submit(note, gate, "once", 5, key="shared-key")
    wait(mine, timeout=SOON)
    assert client.submit(f, gate).result(timeout=SOON) == 5
    assert gate.arrivals() == ["once"]


def test_nested_results_are_let_go(client, eventually):
    def f():
        with worker_client() as c:
            return sum(c.gather(c.map(inc, range(10), key="inside")))

    future = client.submit(f, pure=False)
    assert future.result(timeout=SOON) == 55
    eventually(lambda: set(client.who_has()) == {future.key})


def test_cancelling_nested_tasks(client, gate):
    def f(gate):
        # What runs is not stopped: with its thread given away to the inner task, it would wait for it.
        with worker_client(separate_thread=False) as c:
            inner = c.submit(pass_gate, gate)
            inner.cancel()
            return inner.status

    assert client.submit(f, gate).result(timeout=SOON) == "cancelled"
    gate.open()


def test_a_coroutine_task_uses_the_client(client):
    async def f(x):
        return await get_client().submit(inc, x)

    assert client.submit(f, 1).result(timeout=SOON) == 2


def test_a_coroutine_task_gathers_many(client):
    async def f(n):
        c = get_client()
        return await c.gather(c.map(inc, range(n)))

    assert client.submit(f, 4).result(timeout=SOON) == [1, 2, 3, 4]


def test_threads_of_a_task_take_the_client_with_them(client):
    def f():
        c = get_client()
        found = []
        thread = threading.Thread(
            target=lambda: found.append(c.submit(inc, 1).result(timeout=SOON))
        )
        with worker_client():
            thread.start()
            thread.join()
        return found

    assert client.submit(f, pure=False).result(timeout=SOON) == [2]


def test_retries_of_nested_work(client, gate):
    def f(gate):
        gate.arrive("outer")
        with worker_client() as c:
            value = c.submit(inc, 1).result(timeout=SOON)
        if len(gate.arrivals()) < 2:
            raise RuntimeError("once more")
        return value

    assert client.submit(f, gate, retries=1).result(timeout=SOON) == 2


def test_the_state_of_a_killed_parent_is_dropped(client, gate, eventually):
    def f(gate):
        with worker_client() as c:
            inner = c.submit(pass_gate, gate, 5)
            gate.arrive("outer")
            return inner.result()

    future = client.submit(f, gate)
    eventually(lambda: gate.arrived(2))
    future.cancel()
    gate.open()
    assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_what_a_task_prints_is_printed_before_it_is_done(client, capsys):
    def f():
        distributed.print("printed", "remotely", sep="-")

    for _ in range(5):
        client.submit(f, pure=False).result(timeout=SOON)
        assert "printed-remotely" in capsys.readouterr().out


def test_a_warning_of_a_task(client):
    def f():
        distributed.warn("take care", RuntimeWarning)
        return 1

    with pytest.warns(RuntimeWarning, match="take care"):
        assert client.submit(f, pure=False).result(timeout=SOON) == 1


def test_events_of_tasks_name_their_worker(client, workers):
    def f(topic):
        get_worker().log_event(topic, {"number": 1})
        get_worker().log_event(topic, "text")

    wait(client.submit(f, "of-tasks", workers=workers[:1]), timeout=SOON)
    events = [event for _, event in client.get_events("of-tasks")]
    assert events == [{"number": 1, "worker": workers[0]}, "text"]


def test_the_worker_knows_its_address_in_parts(client):
    def f():
        worker = get_worker()
        return worker.ip, worker.port, worker.address

    ip, port, address = client.submit(f, pure=False).result(timeout=SOON)
    assert address.endswith(f"//{ip}:{port}")
