"""`Client.scatter(broadcast=True)` and `Client.run` on many workers: one payload, over a tree of workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest
from distributed import wait

from client_support import AGAINST, SOON, Gate, addresses, distributed_fails
from process_support import Process, send
from waiting import until

treadle_only = pytest.mark.skipif(AGAINST != "treadle", reason="it is about how Treadle does it")

#: Bytes; in shared memory where there is some, and in the message itself.
LARGE, SMALL = 8_000_000, 8_000


def block(size: int = LARGE, value: float = 1.0) -> np.ndarray:
    return np.full(size // 8, value)


def total(block: np.ndarray) -> float:
    return float(block.sum())


def pids(client: distributed.Client) -> dict[str, int]:
    """Of the workers, by address."""
    return client.run(os.getpid)


def holders(client: distributed.Client, future: distributed.Future) -> set[str]:
    return set(client.who_has([future])[future.key])


@pytest.fixture(params=[SMALL, LARGE])
def size(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def halted() -> Iterator[Callable[[int], None]]:
    """Stops processes; they go on after the test at the latest."""
    stopped: list[int] = []

    def stop(pid: int) -> None:
        stopped.append(pid)
        send(pid, signal.SIGSTOP)

    yield stop
    for pid in stopped:
        send(pid, signal.SIGCONT)


# Where the values are


def test_each_worker_has_it_at_once(client, workers, size):
    future = client.scatter(block(size), broadcast=True)
    assert future.status == "finished"
    assert holders(client, future) == set(workers)
    assert client.has_what() == dict.fromkeys(workers, (future.key,))
    assert total(future.result(timeout=SOON)) == size / 8


def test_the_workers_that_are_named_have_it(client, workers, size):
    future = client.scatter(block(size), broadcast=True, workers=workers[1:])
    assert holders(client, future) == {workers[1]}
    # It is there now; others may come to it.
    again = client.scatter(block(size), broadcast=True)
    assert again.key == future.key
    assert holders(client, again) == set(workers)


def test_a_number_of_workers(new_client):
    client = new_client(workers=3)
    future = client.scatter(block(), broadcast=2)
    assert len(holders(client, future)) == 2


@distributed_fails("now and then one of several values is at one worker")
def test_lists_and_dicts(client, workers, size):
    futures = client.scatter([block(size, n) for n in range(5)], broadcast=True)
    named = client.scatter({"a": block(size, 7), ("b", 2): 3}, broadcast=True)
    assert set(named) == {"a", ("b", 2)}
    held = client.who_has([*futures, *named.values()])
    assert [set(held[f.key]) for f in [*futures, *named.values()]] == [set(workers)] * 7
    values = client.gather([*futures, named["a"]])
    assert [total(value) * 8 / size for value in values] == [0, 1, 2, 3, 4, 7]


def test_the_same_content_has_the_same_key_if_it_is_hashed(client, workers, size):
    first, second = (client.scatter(block(size), broadcast=True) for _ in range(2))
    assert first.key == second.key
    others = [client.scatter(block(size), broadcast=True, hash=False) for _ in range(2)]
    assert len({first.key, *(other.key for other in others)}) == 3
    for other in others:
        assert holders(client, other) == set(workers)


@pytest.mark.parametrize("direct", [True, False, None])
def test_direct_or_not(client, workers, direct):
    future = client.scatter(block(), broadcast=True, direct=direct)
    assert holders(client, future) == set(workers)


async def test_in_an_event_loop(async_client, size):
    futures = await async_client.scatter([block(size), block(size, 2)], broadcast=True)
    known = await async_client.who_has(futures)
    assert {len(held) for held in known.values()} == {2}
    found = await async_client.run(total, block(size))
    assert set(found.values()) == {size / 8}


def test_on_threads_of_this_process(in_process_client, size):
    client = in_process_client
    future = client.scatter(block(size), broadcast=True)
    assert holders(client, future) == set(addresses(client))
    assert client.submit(total, future).result(timeout=SOON) == size / 8
    assert set(client.run(total, block(size)).values()) == {size / 8}


def test_from_a_task(client, workers):
    def spread() -> int:
        with distributed.worker_client() as own:
            return len(own.who_has(future := own.scatter(block(), broadcast=True))[future.key])

    assert client.submit(spread, pure=False).result(timeout=SOON) == len(workers)


# What becomes of them


def test_released_everywhere(client, size, eventually):
    future = client.scatter(block(size), broadcast=True)
    del future
    eventually(lambda: not any(client.has_what().values()))
    eventually(lambda: not any(client.run(lambda dask_worker: len(dask_worker.data)).values()))


def test_a_task_reads_what_its_own_worker_has(client, workers, halted, size):
    of = pids(client)
    future = client.scatter(block(size), broadcast=True)
    for here, there in (workers, workers[::-1]):
        halted(of[there])
        task = client.submit(total, future, workers=[here], pure=False)
        assert task.result(timeout=SOON) == size / 8
        send(of[there], signal.SIGCONT)


def test_what_a_task_writes_stays_with_its_worker(client, workers):
    def overwrite(array: np.ndarray) -> None:
        if array.flags.writeable:
            array[:] = 9

    future = client.scatter(block(), broadcast=True)
    wait(client.submit(overwrite, future, workers=workers[:1], pure=False), timeout=SOON)
    task = client.submit(total, future, workers=workers[1:], pure=False)
    assert task.result(timeout=SOON) == LARGE / 8


def test_fewer_replicas_if_the_user_says_so_and_all_again(client, workers):
    future = client.scatter(block(), broadcast=True)
    client.replicate([future], n=1)
    assert len(holders(client, future)) == 1
    client.replicate([future])
    assert holders(client, future) == set(workers)


@pytest.mark.usefixtures("quiet")
def test_the_others_have_it_when_a_worker_dies(fresh_client, eventually):
    client = fresh_client
    of = pids(client)
    future = client.scatter(block(), broadcast=True)
    victim, other = addresses(client)
    send(of[victim], signal.SIGKILL)
    eventually(lambda: holders(client, future) == {other})
    assert total(future.result(timeout=SOON)) == LARGE / 8
    assert future.status == "finished"


@treadle_only
def test_replicas_stay_when_memory_is_short(new_client):
    client = new_client(workers=2, memory_limit="400MB")
    size = 40_000_000
    pinned = client.scatter(block(size), broadcast=True)
    # More than both can hold: most of it goes to disk.
    others = client.map(block, [size] * 24, range(24), pure=False)
    done = client.map(total, others)
    assert client.gather(done) == [n * size / 8 for n in range(24)]
    client.rebalance()
    readers = [
        client.submit(total, pinned, workers=[worker], pure=False)
        for worker in addresses(client)
        for _ in range(3)
    ]
    assert client.gather(readers) == [size / 8] * 6
    assert holders(client, pinned) == set(addresses(client))


@treadle_only
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("place", [0, 2, -1])
def test_a_worker_is_killed_while_values_are_on_their_way(new_client, halted, place):
    client = new_client(workers=6)
    of = pids(client)
    victim = addresses(client)[place]
    size = 64_000_000
    # It has not got it when it is killed, and may be the one that is to hand it on.
    halted(of[victim])
    with ThreadPoolExecutor() as pool:
        scattering = pool.submit(client.scatter, block(size), broadcast=True)
        until(lambda: client._connection.cast_traffic()[2] >= size, "it has left the client")
        assert not scattering.done()
        send(of[victim], signal.SIGKILL)
        future = scattering.result(timeout=2 * SOON)
    others = set(of) - {victim}
    assert others <= holders(client, future)
    tasks = [client.submit(total, future, workers=[one], pure=False) for one in others]
    assert client.gather(tasks) == [size / 8] * 5


@treadle_only
def test_a_worker_with_too_little_memory_goes_without(start, join):
    scheduler = start("scheduler", "--port", "0")

    def worker(name: str, limit: str) -> Process:
        return start("worker", scheduler.address, "--name", name, "--memory-limit", limit)

    worker("small", "500MB")
    worker("other", "0")
    client = join(scheduler)
    client.wait_for_workers(2, timeout=SOON)
    future = client.scatter(block(600_000_000), broadcast=True)
    names = {a: info["name"] for a, info in client.scheduler_info()["workers"].items()}
    assert [names[holder] for holder in holders(client, future)] == ["other"]


# What the client sends


def traffic(client: distributed.Client, act: Callable[[], Any]) -> tuple[int, int, int]:
    """Messages, bytes, and bytes of shared memory that something took of the client."""
    before = client._connection.cast_traffic()
    act()
    messages, sent, shared, *_ = client._connection.cast_traffic()
    return messages - before[0], sent - before[1], shared - before[2]


@treadle_only
@pytest.mark.parametrize("workers", [2, 8])
def test_what_the_client_sends_does_not_depend_on_the_workers(new_client, workers):
    client = new_client(workers=workers)
    # The first time makes the connection.
    assert len(client.run(os.getpid)) == workers
    array = block()

    def is_little(act: Callable[[], Any], nbytes: int) -> bool:
        found[:] = traffic(client, act)
        messages, sent, shared = found
        # The offer, the payload's first kilobyte, and what is settled of casts before it.
        return messages < 6 and sent < 2000 and nbytes <= shared <= nbytes * 1.01

    found: list[int] = []
    for act, nbytes in (
        (lambda: client.scatter(array, broadcast=True, hash=False), LARGE),
        (lambda: client.run(total, array), LARGE),
        (lambda: client.run(os.getpid), 0),
        (lambda: client.run(os.getpid, on_error="return"), 0),
    ):
        # Timers add messages, and have bytes sent where the way for shared memory comes late.
        until(partial(is_little, act, nbytes), lambda: str(found))


# Calls


def test_calls_do_not_wait_for_each_other(client, gate, eventually):
    async def wait_for(gate: Gate) -> bool:
        gate.arrive()
        while not (gate.directory / "open").exists():
            await asyncio.sleep(0.01)
        return True

    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.run, wait_for, gate)
        eventually(lambda: gate.arrived(2))
        assert len(client.run(os.getpid)) == 2
        assert not first.done()
        gate.open()
        assert list(first.result(timeout=SOON).values()) == [True, True]


@treadle_only
def test_calls_and_values_do_not_wait_for_the_engine(client, gate, eventually):
    view = client.direct_view()
    # By value: an engine knows no modules of tests.
    result = view.apply_async(lambda gate: (gate.arrive(), gate.wait()), gate)
    eventually(lambda: gate.arrived(2))
    assert len(client.run(os.getpid)) == 2
    future = client.scatter(block(), broadcast=True)
    assert holders(client, future) == set(addresses(client))
    assert not result.ready()
    gate.open()
    assert len(result.get(timeout=SOON)) == 2


def test_large_arguments_and_results(client, workers):
    found = client.run(lambda array: array * 2, block(LARGE))
    assert {worker: total(array) for worker, array in found.items()} == dict.fromkeys(
        workers, 2 * LARGE / 8
    )


@pytest.mark.usefixtures("quiet")
def test_a_worker_that_dies_is_an_error_of_its_own(fresh_client, tmp_path):
    client = fresh_client
    victim, other = addresses(client)

    def end(directory: Path, dask_worker: Any) -> str:
        if dask_worker.address == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        return "fine"

    found = client.run(end, tmp_path, on_error="return")
    assert found[other] == "fine"
    assert isinstance(found[victim], OSError)


@distributed_fails("it waits for half a minute")
@pytest.mark.usefixtures("quiet")
def test_a_worker_that_nobody_knows(client, workers):
    strange = "tcp://127.0.0.1:1"
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1"):
        client.run(os.getpid, workers=[*workers, strange])
    found = client.run(os.getpid, workers=[*workers, strange], on_error="ignore")
    assert set(found) == set(workers)


@distributed_fails("it never answers")
def test_what_cannot_be_pickled_is_an_error(client, workers):
    found = client.run(lambda: (n for n in ()), on_error="return")
    assert set(found) == set(workers)
    assert all(isinstance(error, Exception) for error in found.values())
