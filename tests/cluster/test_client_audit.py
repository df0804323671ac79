"""Corner cases of the public surface in which Treadle was once another thing than distributed."""

from __future__ import annotations

import threading
import time

import pytest
from dask.sizeof import sizeof
from distributed import Event, Lock, Queue, Variable, wait

from client_support import AGAINST, SOON, connect, distributed_fails, identity, inc, note


@pytest.fixture
def current(client):
    """The client of the module, whichever else of these tests is the default one."""
    with client.as_current():
        yield client


def test_callbacks_are_called_in_their_order(client):
    event = Event(client=client)
    future = client.submit(event.wait)
    called = []
    done = threading.Event()
    for number in range(5):
        future.add_done_callback(lambda _, number=number: called.append(number))
    future.add_done_callback(lambda _: done.set())
    event.set()
    assert done.wait(SOON)
    assert called == [0, 1, 2, 3, 4]


def test_none_has_a_type(client):
    future = client.submit(identity, None, key="nothing")
    wait(future, timeout=SOON)
    assert future.type is type(None)
    assert repr(future) == "<Future: finished, type: NoneType, key: nothing>"


def test_the_type_of_an_object_whose_class_is_a_function_s_own(client):
    class Local:
        def __init__(self) -> None:
            self.payload = b"x" * 5000

    future = client.submit(Local)
    wait(future, timeout=SOON)
    assert future.type.__name__ == "Local"
    assert "Local" in repr(future)


def test_a_worker_is_named_by_its_host_and_by_its_address_without_scheme(client, workers):
    place = workers[1].split("://")[1]
    host = place.rsplit(":")[0]
    for number, name in enumerate([place, host, [place], {place}]):
        future = client.submit(inc, number, workers=name)
        assert future.result(timeout=SOON) == number + 1
    assert client.who_has([client.submit(inc, 0, workers=place)]).values()
    pinned = client.submit(inc, 100, workers=[place], key="pinned")
    wait(pinned, timeout=SOON)
    assert client.who_has(pinned) == {"pinned": (workers[1],)}


def test_a_restart_is_one_generation(fresh_client):
    before = fresh_client.generation
    future = fresh_client.submit(inc, 1)
    wait(future, timeout=SOON)
    fresh_client.restart(timeout=SOON)
    assert fresh_client.generation == before + 1
    assert future.cancelled()


def test_workers_that_are_threads_cannot_be_started_anew(in_process_client):
    (address,) = in_process_client.nthreads()
    with pytest.raises(ValueError, match="Restarting workers requires a nanny to be used"):
        in_process_client.restart_workers([address])


def test_an_unknown_worker_cannot_be_started_anew(client):
    with pytest.raises(KeyError):
        client.restart_workers(["tcp://127.0.0.1:1"])


def test_a_retired_worker_s_name_is_what_it_was(new_client):
    client = new_client()
    (address, about) = next(iter(client.scheduler_info()["workers"].items()))
    gone = client.retire_workers([address])
    assert gone[address]["name"] == about["name"]


def test_sizes_are_those_in_memory(client):
    future = client.submit(inc, 1, key="one")
    other = client.submit(identity, "a string", key="two")
    wait([future, other], timeout=SOON)
    found = client.nbytes([future.key, other.key], summary=False)
    assert found == {"one": sizeof(2), "two": sizeof("a string")}
    assert client.nbytes(["one"]) == {"one": sizeof(2)}
    with pytest.raises(KeyError):
        client.nbytes(["nobody"], summary=False)


@distributed_fails("now and then a message of its has lists")
def test_lists_come_back_as_tuples(client):
    queue = Queue("as-carried", client=client)
    queue.put([1, {"a": [2]}])
    assert queue.get(timeout=SOON) == (1, {"a": (2,)})
    variable = Variable("as-carried", client=client)
    variable.set([1, [2]])
    assert variable.get(timeout=SOON) == (1, (2,))
    variable.delete()
    client.set_metadata("as-carried", [1, [2]])
    assert client.get_metadata("as-carried") == (1, (2,))
    client.log_event("as-carried", [1, [2]])
    assert client.get_events("as-carried")[0][1] == (1, (2,))


@pytest.mark.parametrize("kind", [Event, Lock, Queue, Variable])
def test_a_task_that_waits_for_others_to_coordinate_keeps_its_thread(current, workers, gate, kind):
    client = current
    thing = kind("keeps-its-thread")
    if kind is Lock:
        thing.acquire()

    def hold() -> None:
        gate.arrive("holder")
        if kind is Event:
            thing.wait(timeout=SOON)
        elif kind is Lock:
            thing.acquire(timeout=SOON)
        else:
            thing.get(timeout=SOON)
        gate.arrive("through")

    holder = client.submit(hold, workers=workers[:1])
    while not gate.arrived():
        time.sleep(0.002)
    other = client.submit(note, gate, "other", workers=workers[:1])
    # So that it would have time to run.
    for number in range(20):
        assert client.submit(inc, number, workers=workers[1:], pure=False).result() == number + 1
    if kind is Lock:
        thing.release()
    elif kind is Queue:
        thing.put(1)
    else:
        thing.set(*([] if kind is Event else [1]))
    wait([holder, other], timeout=SOON)
    assert gate.arrivals() == ["holder", "through", "other"]


def test_a_coroutine_uses_an_event_before_anything_else(client):
    async def use() -> bool:
        event = Event("first-of-all")
        await event.set()
        return await event.is_set()

    assert client.submit(use, pure=False).result(timeout=SOON) is True


async def test_getting_a_graph_in_a_coroutine(async_client):
    if AGAINST == "distributed":
        pytest.skip("distributed fails: it lets go of the futures first")
    assert await async_client.get({"x": (inc, 1)}, "x") == 2
    assert await async_client.get({"x": 1, "y": (inc, "x")}, ["y", ["x"]]) == [2, [1]]


def test_two_clients_name_workers_alike(client, workers):
    with connect(client, set_as_default=False) as other:
        assert set(other.nthreads([workers[0]])) == {workers[0]}
