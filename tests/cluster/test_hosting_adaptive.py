"""Dask's adaptive scaling while Treadle is attached, and how many workers Treadle asks for."""

from __future__ import annotations

import asyncio
import os
import time

import distributed
import numpy as np
import pytest

import treadle
from client_support import AGAINST, SOON
from process_support import until
from treadle.scheduler._adaptive import target_of, workers_to_close

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is about both"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]


def worker(executing=0, ready=0, managed=0, limit=100, threads=1):
    metrics = {"executing": executing, "ready": ready, "managed_bytes": managed, "in_memory": 0}
    return {"metrics": metrics, "memory_limit": limit, "nthreads": threads}


def load(ready=0, assigned=0, seconds=0.0, unknown=0):
    return {"ready": ready, "assigned": assigned, "seconds": seconds, "unknown": unknown}


@pytest.mark.parametrize(
    ("what", "threads", "target"),
    [
        (load(), 1, 1),  # one of the two stays for its values
        (load(ready=100, seconds=100), 1, 20),
        (load(ready=100, seconds=100), 4, 5),
        (load(ready=3, seconds=1000), 1, 3),  # as many as there are tasks
        (load(ready=100, unknown=100), 1, 10),  # half a second each, until it is known
    ],
)
def test_the_target_is_what_is_done_in_time(what, threads, target):
    workers = {"a": worker(managed=1, threads=threads), "b": worker(threads=threads)}
    assert target_of(what, workers, "5s") == target


def test_workers_are_asked_for_where_there_are_none():
    assert target_of(load(), {}, 5) == 0
    assert target_of(load(ready=1, unknown=1), {}, 5) == 1


def test_full_memory_asks_for_twice_as_many():
    assert target_of(load(), {"a": worker(managed=70), "b": worker(managed=60)}, 5) == 4


def test_who_is_idle_and_holds_little_goes_first():
    workers = {
        "busy": worker(executing=1),
        "full": worker(managed=30),
        "empty": worker(),
        "some": worker(managed=10),
    }
    assert workers_to_close(workers) == ["empty", "some", "full"]
    assert workers_to_close(workers, n=1) == ["empty"]
    assert workers_to_close(workers, target=2) == ["empty", "some"]
    assert workers_to_close(workers, minimum=3) == ["empty"]


def test_values_that_fit_nowhere_else_keep_their_worker():
    workers = {"a": worker(managed=60), "b": worker(managed=50)}
    assert workers_to_close(workers, n=1) == []
    assert workers_to_close({"a": worker(managed=1)}, n=1) == []
    assert workers_to_close({"a": worker()}, n=1) == ["a"]


def held_for(event):
    distributed.Event(event).wait(SOON)
    return os.getpid()


def test_dask_scales_by_the_load_of_treadle(dask_client):
    there = dask_client(n_workers=1)
    with treadle.attach(there) as here:
        values = here.map(np.full, [1000] * 4, range(4))
        distributed.wait(values)
        there.cluster.adapt(
            minimum=1, maximum=3, interval="100ms", target_duration="100ms", wait_count=2
        )
        waiting = here.map(held_for, ["go"] * 6, pure=False)
        until(lambda: len(here.ncores()) == 3, "it grows by tasks of Treadle")
        distributed.Event("go", client=here).set()
        assert len(set(here.gather(waiting))) == 3
        del waiting
        until(lambda: len(here.ncores()) == 1, "it shrinks when they are done")
        assert sum(map(len, here.has_what().values())) >= 4, "and the values have moved"
        assert [int(array[0]) for array in here.gather(values)] == list(range(4))
        assert there.run_on_scheduler(asks_treadle)
    assert not there.run_on_scheduler(asks_treadle)


def asks_treadle(dask_scheduler):
    return "HostedScheduler" in repr(dask_scheduler.handlers["adaptive_target"])


def test_a_busy_worker_of_treadle_does_not_go(dask_client):
    there = dask_client()
    with treadle.attach(there) as here:
        busy = here.submit(held_for, "go")
        until(lambda: any(here.processing().values()), "it runs")
        (address,) = [one for one, keys in here.processing().items() if keys]
        name = here.scheduler_info()["workers"][address]["name"]
        asked = there.sync(there.scheduler.workers_to_close, n=2, attribute="name")
        assert len(asked) == 1
        assert name not in asked
        distributed.Event("go", client=here).set()
        busy.result()


async def test_asynchronous_clients():
    async with (
        distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address=None,
            asynchronous=True,
        ) as cluster,
        distributed.Client(cluster, asynchronous=True, set_as_default=False) as there,
    ):
        here = await treadle.attach(there)
        assert await here.submit(sum, [1, 2]) == 3
        theirs = there.submit(np.ones, 1000)
        await theirs
        ours = await here.scatter(theirs)
        assert (await ours).sum() == 1000
        kept = await here.detach(keep=True)
        assert (await kept[ours.key]).sum() == 1000
        here = await treadle.attach(there)
        await asyncio.wait_for(here.detach(), SOON)


@pytest.mark.parametrize("processes", [False, True])
def test_a_worker_that_dask_declines_to_retire_keeps_ours(dask_client, processes):
    there = dask_client(n_workers=1)
    held = there.submit(sum, [1, 2])
    assert held.result() == 3
    with treadle.attach(there, processes=processes) as here:
        (before,) = here.ncores()
        # There is no other worker for its value.
        assert there.retire_workers(list(there.scheduler_info()["workers"])) == {}
        assert held.result() == 3
        until(lambda: [one for one in here.ncores() if one != before], "it has one of ours again")
        assert here.submit(sum, [2, 3]).result() == 5


def test_dask_is_not_idle_while_treadle_computes(dask_client):
    """`idle-timeout` ends a cluster of Dask some time after its `idle_since`."""
    long_ago = 1.0
    there = dask_client(n_workers=1)
    scheduler = there.cluster.scheduler

    def is_idle():
        return scheduler.idle_since == long_ago

    with treadle.attach(there) as here:
        busy = here.submit(held_for, "go")
        for _ in range(3):
            scheduler.idle_since = long_ago
            until(lambda: not is_idle(), "a task of Treadle runs")
        distributed.Event("go", client=here).set()
        assert busy.result(timeout=SOON)
        scheduler.idle_since = long_ago
        assert here.submit(abs, -1, pure=False).result(timeout=SOON) == 1
        until(lambda: not is_idle(), "a task of Treadle ran a moment ago")
        # What it has to tell its worker afterwards is done soon.
        time.sleep(3)
        scheduler.idle_since = long_ago
        time.sleep(3)
        assert is_idle(), "Treadle has nothing to do"
    assert here.status == "closed"
    scheduler.idle_since = long_ago
    time.sleep(2)
    assert is_idle(), "nobody looks any more"
