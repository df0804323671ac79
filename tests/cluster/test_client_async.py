"""`Client(asynchronous=True)`: the same calls in coroutines."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import dask
import dask.array as da
import distributed
import pytest
from dask import delayed
from distributed import Client, as_completed, wait
from distributed.client import ClosedClientError

import treadle
from client_support import (
    IS_DASK,
    SOON,
    Unpickled,
    add,
    client_class,
    connect,
    distributed_fails,
    fail,
    inc,
    make_client,
    pass_gate,
)


async def test_submit_and_await(async_client):
    future = async_client.submit(inc, 1)
    assert await future == 2
    assert await future.result() == 2
    assert future.done()


async def test_errors_are_raised_by_await(async_client):
    future = async_client.submit(fail, "awaited")
    with pytest.raises(ValueError, match="awaited"):
        await future
    assert isinstance(await future.exception(), ValueError)
    assert await future.traceback() is not None


async def test_map_and_gather(async_client):
    futures = async_client.map(inc, range(10))
    assert await async_client.gather(futures) == list(range(1, 11))
    assert await async_client.gather({"a": futures[0]}) == {"a": 1}


@pytest.mark.skipif(IS_DASK, reason="distributed unpickles it")
async def test_what_a_cancelled_gather_asked_for_is_not_waited_for(async_client):
    """Answers come in order: what was asked for before would be unpickled before the last one."""
    futures = async_client.map(Unpickled, range(200))
    await wait(futures)
    for _ in range(50):
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(async_client.gather(futures), 0.002)
    before = Unpickled.count
    assert (await async_client.gather(futures[-2:]))[0].number == 198
    assert Unpickled.count == before + 2


async def test_scatter(async_client):
    future = await async_client.scatter(5)
    assert await async_client.submit(inc, future) == 6
    futures = await async_client.scatter([1, 2])
    assert await async_client.gather(futures) == [1, 2]
    again = await async_client.scatter({"k": 7}, broadcast=True)
    assert len((await async_client.who_has([again["k"]]))["k"]) == 2


async def test_compute_persist_and_get(async_client):
    x = delayed(inc)(1)
    assert await async_client.compute(x) == 2
    assert await async_client.compute([x, x], sync=True) == [2, 2]
    persisted = async_client.persist(x)
    assert await async_client.compute(persisted) == 2
    futures = async_client.get({"x": (inc, 1), "y": (add, "x", 1)}, ["x", "y"], sync=False)
    assert await async_client.gather(futures) == [2, 3]


async def test_awaiting_a_future_of_a_collection(async_client):
    total = async_client.compute(da.ones((20, 20), chunks=5).sum())
    assert await total == 400


async def test_collections_do_not_block_a_coroutine(async_client):
    for call in (delayed(inc)(1).compute, delayed(inc)(1).persist):
        with pytest.raises(RuntimeError, match="asynchronous Client in a synchronous context"):
            call()


async def test_wait(async_client):
    futures = async_client.map(inc, range(3))
    done, not_done = await wait(futures)
    assert done == set(futures)
    assert not not_done


async def test_wait_times_out(async_client, gate):
    future = async_client.submit(pass_gate, gate)
    with pytest.raises(distributed.TimeoutError):
        await wait(future, timeout=0.1)
    gate.open()
    await wait(future)


async def test_a_result_times_out(async_client, gate):
    future = async_client.submit(pass_gate, gate, 5)
    with pytest.raises(distributed.TimeoutError):
        await future.result(timeout=0.1)
    gate.open()
    assert await future == 5


async def test_as_completed_in_a_coroutine(async_client):
    futures = async_client.map(inc, range(5))
    assert {await f async for f in as_completed(futures)} == {1, 2, 3, 4, 5}


async def test_results_of_as_completed_in_a_coroutine(async_client):
    futures = async_client.map(inc, range(5))
    pairs = [pair async for pair in as_completed(futures, with_results=True)]
    assert {result for _, result in pairs} == {1, 2, 3, 4, 5}


async def test_futures_may_be_added_while_iterating(async_client):
    found = as_completed(async_client.map(inc, range(3)))
    seen = []
    async for future in found:
        value = await future
        seen.append(value)
        if value < 3:
            found.add(async_client.submit(add, future, 10))
    assert sorted(seen) == [1, 2, 3, 11, 12]


async def test_as_completed_times_out_in_a_coroutine(async_client, gate):
    future = async_client.submit(pass_gate, gate)
    with pytest.raises(distributed.TimeoutError):
        async for _ in as_completed([future], timeout=0.1):
            pass
    gate.open()
    await wait(future)


@pytest.mark.skipif(IS_DASK, reason="how Treadle's waits")
async def test_waits_for_the_next_one_that_were_cancelled_leave_nothing_behind(async_client, gate):
    found = as_completed([async_client.submit(pass_gate, gate, 5)])
    for _ in range(3):
        waiting = asyncio.ensure_future(found.__anext__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert found._waiters == []
    gate.open()
    assert await (await found.__anext__()) == 5
    assert found._waiters == []


async def test_the_loop_runs_while_a_task_does(async_client, gate):
    future = async_client.submit(pass_gate, gate, 5)

    async def open_it():
        while not gate.arrivals():
            await asyncio.sleep(0.002)
        gate.open()

    value, _ = await asyncio.gather(future, open_it())
    assert value == 5


async def test_many_coroutines_share_a_client(async_client):
    async def chain(i):
        x = async_client.submit(inc, i, pure=False)
        return await async_client.submit(inc, x, pure=False)

    assert await asyncio.gather(*map(chain, range(20))) == [i + 2 for i in range(20)]


async def test_who_has_nthreads_and_the_like(async_client):
    future = async_client.submit(inc, 1)
    await wait(future)
    where = await async_client.who_has([future])
    threads = await async_client.nthreads()
    assert set(where[future.key]) <= set(threads)
    assert list(threads.values()) == [1, 1]
    assert future.key in str(await async_client.has_what())
    assert sum((await async_client.nbytes()).values()) > 0


async def test_run(async_client):
    assert len(await async_client.run(inc, 1)) == 2
    assert await async_client.run_on_scheduler(inc, 1) == 2


async def test_cancel_and_retry(async_client):
    future = async_client.submit(inc, 1)
    await wait(future)
    await async_client.cancel(future)
    assert future.cancelled()
    bad = async_client.submit(fail)
    await wait(bad)
    await bad.retry()
    assert isinstance(await bad.exception(), ValueError)


async def test_waiting_for_workers(async_client):
    await async_client.wait_for_workers(2)
    with pytest.raises(distributed.TimeoutError):
        await async_client.wait_for_workers(5, timeout=0.1)


async def test_gathering_may_begin_before_it_is_connected():
    async with treadle.LocalCluster(1, 1, asynchronous=True, processes=False) as cluster:
        client = cluster.get_client()
        futures = client.map(lambda x: x + 1, range(3))
        assert await client.gather(futures) == [1, 2, 3]
        await client.close()


async def test_metadata_events_and_versions(async_client):
    await async_client.set_metadata("async", 1)
    assert await async_client.get_metadata("async") == 1
    await async_client.log_event("async-topic", 2)
    assert [m for _, m in await async_client.get_events("async-topic")] == [2]
    assert set(await async_client.get_versions()) == {"scheduler", "workers", "client"}


async def test_callbacks_of_futures(async_client):
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    future = async_client.submit(inc, 1)
    future.add_done_callback(lambda _: loop.call_soon_threadsafe(event.set))
    await asyncio.wait_for(event.wait(), SOON)
    assert future.done()


async def test_a_closed_client_refuses_calls(client):
    async_client = await connect(client, asynchronous=True)
    assert async_client.asynchronous
    assert async_client.status == "running"
    await async_client.close()
    assert async_client.status == "closed"
    with pytest.raises(ClosedClientError):
        async_client.submit(inc, 1)
    await async_client.close()


async def test_a_client_is_a_block(client):
    address = client.scheduler_info()["address"]
    async with client_class()(address, asynchronous=True) as async_client:
        assert await async_client.submit(inc, 1) == 2
        assert Client.current() is async_client
    assert async_client.status == "closed"


async def test_a_client_with_its_own_cluster(tmp_path):
    async with make_client(workers=1, asynchronous=True) as async_client:
        assert await async_client.submit(inc, 1) == 2
        x = await async_client.compute(delayed(inc)(5))
        assert x == 6
    assert async_client.status == "closed"


async def test_calls_before_the_start_are_sent_after_it(client):
    async_client = client_class()(client.scheduler_info()["address"], asynchronous=True)
    future = async_client.submit(inc, 1)
    assert await future == 2
    await async_client.close()


async def test_a_coroutine_that_began_before_the_start_goes_on_after_it(client):
    """What it asks after its first answer is answered, too."""
    async_client = client_class()(client.scheduler_info()["address"], asynchronous=True)
    scattered = asyncio.ensure_future(async_client.scatter([1, 2, 3]))
    await asyncio.sleep(0)
    await async_client
    futures = await asyncio.wait_for(scattered, SOON)
    assert await async_client.gather(futures) == [1, 2, 3]
    await async_client.close()


@distributed_fails("it keeps what a task has scattered")
async def test_a_coroutine_of_a_task_scatters_and_runs_with_its_client(async_client):
    async def scatter_and_run():
        client = distributed.get_client()
        futures = await client.scatter([1, 2, 3])
        return await client.gather(futures), len(await client.run(inc, 1))

    future = async_client.submit(scatter_and_run, pure=False)
    assert await asyncio.wait_for(future.result(), SOON) == ([1, 2, 3], 2)


async def test_restart():
    async with make_client(workers=1, asynchronous=True) as async_client:
        future = async_client.submit(inc, 1)
        await wait(future)
        await async_client.restart()
        assert future.cancelled()
        assert await async_client.submit(inc, 2) == 3


async def test_locks_and_the_like(async_client):
    lock = distributed.Lock("async-lock")
    async with lock:
        assert await lock.locked()
    assert not await lock.locked()
    event = distributed.Event("async-event")
    assert not await event.wait(timeout=0.05)
    await event.set()
    assert await event.wait(timeout=SOON)
    await event.clear()
    variable = distributed.Variable("async-variable")
    await variable.set(5)
    assert await variable.get(timeout=SOON) == 5
    variable.delete()
    queue = await distributed.Queue("async-queue")
    await queue.put(1)
    assert await queue.qsize() == 1
    assert await queue.get(timeout=SOON) == 1
    queue.close()
    semaphore = await distributed.Semaphore(max_leases=1, name="async-semaphore")
    async with semaphore:
        assert await semaphore.get_value() == 1
    await semaphore.close()
    async with distributed.MultiLock(["a", "b"]) as locks:
        assert locks.locked()


async def test_actors(async_client):
    from test_futures_actors import Counter

    counter = await async_client.submit(Counter, actor=True)
    assert await counter.increment() == 1
    assert await counter.n == 1


async def test_dask_annotations(async_client, workers):
    def here():
        return distributed.get_worker().address

    with dask.annotate(workers=workers[0]):
        future = async_client.submit(here, pure=False)
    assert await future == workers[0]
