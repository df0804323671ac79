"""What a value holds lives as long as the value's key: futures, locks, files, what a finaliser does.

Nothing of that depends on the size of the value: each test runs below and above each limit of the code.
"""

from __future__ import annotations

import contextvars
import gc
import itertools
import os
import shutil
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import dask.bag as db
import distributed
import pytest
from dask import delayed
from distributed import get_client

from client_support import SOON, Gate, addresses, inc, make_client, pass_gate, reach
from waiting import until

# Bytes that a value takes beside what it holds: little; below and above 1 KiB, which travels inside
# messages; 4 KiB, up to which values are looked at; 64 KiB, from which arrays are prepared for
# sending; 1 MiB, from which arrays are in shared memory.
SIZES = [100, 900, 1_000, 1_050, 4_000, 4_150, 65_000, 65_600, 1_048_000, 1_048_700]


class Box:
    """Holds something, and takes so many bytes."""

    def __init__(self, thing: Any, size: int) -> None:
        self.thing = thing
        self.padding = bytes(size)


class Finalised:
    """Removes a directory when it is destroyed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __del__(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class Referred:
    pass


def a_weak_reference() -> Any:
    strong = Referred()
    return strong, weakref.ref(strong)


def a_thread() -> threading.Thread:
    thread = threading.Thread(target=int)
    thread.start()
    return thread


THINGS: dict[str, Callable[[], Any]] = {
    "client": get_client,
    "future": lambda: get_client().submit(inc, 1, pure=False),
    "lock of distributed": lambda: distributed.Lock("held"),
    "lock": threading.Lock,
    "file": lambda: open(os.devnull),  # noqa: SIM115
    "weak reference": a_weak_reference,
    "generator": lambda: (number for number in itertools.count()),
    "thread": a_thread,
    "context variable": lambda: contextvars.ContextVar("held"),
    "class": lambda: type("Local", (), {}),
    "function": lambda: lambda: None,
    "object": Referred,
}


def boxed(make: Callable[[], Any], size: int) -> Box:
    return Box(make(), size)


def listed(make: Callable[[], Any], size: int) -> list[Any]:
    return [make(), bytes(size)]


def identity(value: Any) -> tuple[int, int]:
    thing = value.thing if isinstance(value, Box) else value[0]
    return id(value), id(thing)


def collect(client: distributed.Client) -> None:
    """Return when the workers have let go of what nobody holds."""
    reach(client)
    client.run(gc.collect)
    reach(client)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("hold", [boxed, listed])
def test_all_readers_on_a_worker_have_the_object_itself(client, hold, size):
    values = {
        name: client.submit(hold, make, size, pure=False, key=f"{name}-{hold.__name__}-{size}")
        for name, make in THINGS.items()
    }
    distributed.wait(list(values.values()), timeout=SOON)
    for name, value in values.items():
        [holder] = client.who_has([value])[value.key]
        seen = {
            client.submit(identity, value, workers=[holder], pure=False).result(timeout=SOON)
            for _ in range(2)
        }
        assert len(seen) == 1, f"each reader of a {name} had another object"


def advance(value: Any) -> int:
    return next(value[0])


@pytest.mark.parametrize("size", SIZES)
def test_readers_go_on_with_what_others_began(client, size):
    value = client.submit(listed, THINGS["generator"], size, pure=False)
    numbers = [client.submit(advance, value, pure=False).result(timeout=SOON) for _ in range(3)]
    assert numbers == [0, 1, 2]


def spawn(gate: Gate, count: int, size: int) -> list[Any]:
    numbers = range(count)
    futures = get_client().map(pass_gate, [gate] * count, numbers, numbers, pure=False)
    return [*futures, bytes(size)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [3, 40])
def test_the_tasks_that_a_value_holds_run(client, gate, count, size):
    value = client.submit(spawn, gate, count, size, pure=False)
    distributed.wait(value, timeout=SOON)
    collect(client)
    gate.open()
    until(lambda: gate.arrived(count), lambda: f"of {count} tasks {len(gate.arrivals())} run")


def results(value: list[Any]) -> list[int]:
    return [future.result() for future in value[:-1]]


@pytest.mark.parametrize("size", SIZES)
def test_futures_reach_the_next_task_of_the_worker_bound(client, gate, size):
    gate.open()
    value = client.submit(spawn, gate, 3, size, pure=False)
    distributed.wait(value, timeout=SOON)
    [holder] = client.who_has([value])[value.key]
    read = client.submit(results, value, workers=[holder])
    assert read.result(timeout=SOON) == [0, 1, 2]


COLLECTIONS: dict[str, Callable[[], Any]] = {
    "array": lambda: da.ones(10, chunks=5).persist(),
    "bag": lambda: db.from_sequence(range(4), npartitions=2).persist(),
    "delayed": lambda: delayed(inc)(1).persist(),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", COLLECTIONS)
def test_a_persisted_collection_can_be_used_as_long_as_its_value_is_held(client, kind, size):
    make = COLLECTIONS[kind]
    value = client.submit(listed, make, size, pure=False)
    collection = value.result(timeout=SOON)[0]
    expected = str(make().compute())
    collect(client)
    assert str(collection.compute()) == expected


@pytest.mark.parametrize("size", SIZES)
def test_a_finaliser_runs_when_the_key_is_released(client, tmp_path, size):
    directory = tmp_path / "held"
    directory.mkdir()
    value = client.submit(boxed, lambda: Finalised(directory), size, pure=False)
    distributed.wait(value, timeout=SOON)
    collect(client)
    assert directory.exists()
    del value
    until(lambda: not directory.exists(), "the object is destroyed")


@pytest.mark.parametrize("size", SIZES)
def test_what_cannot_be_pickled_is_named_to_who_asks_for_it(client, size):
    value = client.submit(listed, threading.Lock, size, pure=False)
    distributed.wait(value, timeout=SOON)
    assert value.status == "finished"
    with pytest.raises(TypeError, match="Could not serialize"):
        value.result(timeout=SOON)


@pytest.mark.parametrize("size", SIZES)
def test_a_task_gathers_what_cannot_be_pickled_from_its_own_worker(client, size):
    def lock_and_gather(size: int) -> bool:
        inner = get_client()
        here = distributed.get_worker().address
        future = inner.submit(listed, threading.Lock, size, pure=False, workers=[here])
        lock = inner.gather(future)[0]
        return lock.acquire(blocking=False)

    assert client.submit(lock_and_gather, size, pure=False).result(timeout=SOON)


@pytest.mark.parametrize("size", SIZES)
def test_a_task_scatters_what_cannot_be_pickled_to_its_own_worker(client, size):
    def scatter(size: int) -> bool:
        inner = get_client()
        lock = threading.Lock()
        [future] = inner.scatter([[lock, bytes(size)]], direct=True)
        lock.acquire()
        return inner.submit(lambda value: value[0].locked(), future, pure=False)

    value = client.submit(scatter, size, pure=False)
    distributed.wait(value, timeout=SOON)
    [holder] = client.who_has([value])[value.key]
    read = client.submit(lambda future: future.result(), value, workers=[holder], pure=False)
    assert read.result(timeout=SOON) is True


@pytest.fixture(scope="module")
def one_process() -> Iterator[distributed.Client]:
    """A client of two workers in this process."""
    client = make_client(workers=2, processes=False)
    yield client
    client.close()


@pytest.mark.parametrize("size", SIZES)
def test_within_a_process_what_cannot_be_pickled_passes_as_it_is(one_process, size):
    client = one_process
    here, there = addresses(client)
    value = client.submit(listed, threading.Lock, size, pure=False, workers=[here])
    lock = value.result(timeout=SOON)[0]
    assert not lock.locked()
    with lock:
        read = client.submit(lambda value: value[0].locked(), value, workers=[there], pure=False)
        assert read.result(timeout=SOON) is True
        [again] = client.gather([value])
        assert again[0] is lock
    brought = client.scatter({"brought": [lock, bytes(size)]}, workers=[there])["brought"]
    assert client.gather(brought)[0] is lock


@pytest.mark.parametrize("size", [100, 4_000])
def test_a_value_that_is_lost_with_its_worker_is_computed_again(fresh_client, gate, size):
    client = fresh_client
    gate.open()
    first, _ = addresses(client)
    value = client.submit(
        spawn, gate, 3, size, workers=[first], allow_other_workers=True, pure=False
    )
    distributed.wait(value, timeout=SOON)
    until(lambda: gate.arrived(3), "its tasks run")
    os.kill(client.run(os.getpid)[first], signal.SIGKILL)
    until(lambda: first not in addresses(client), "the worker is gone")
    assert client.submit(len, value, pure=False).result(timeout=SOON) == 4
    until(lambda: gate.arrived(6), "its tasks run again")
