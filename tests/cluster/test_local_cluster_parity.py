"""What a local cluster shows and does as distributed's: these tests pass on either."""

from __future__ import annotations

import asyncio
from typing import Any

import distributed
import pytest

import treadle
from client_support import IS_DASK, SOON, client_class, distributed_fails, inc

LocalCluster: Any = distributed.LocalCluster if IS_DASK else treadle.LocalCluster
Client: Any = client_class()


def cluster(n_workers: int, **options: Any) -> Any:
    """Two threads a worker."""
    options = {"processes": False, "threads_per_worker": 2, "dashboard_address": ":0", **options}
    return LocalCluster(n_workers=n_workers, **options)


@pytest.mark.parametrize("processes", [False, True])
def test_whoever_awaits_it_waits_for_what_scale_was_asked_for(processes: bool) -> None:
    async def run() -> None:
        async with cluster(0, processes=processes, asynchronous=True) as own:
            own.scale(2)
            assert own.plan == {0, 1}
            assert set(own.worker_spec) == {0, 1}
            assert not own.workers
            await own
            assert len(own.workers) == len(own.scheduler.workers) == 2
            own.scale(1)
            assert len(own.plan) == 1
            await own
            assert len(own.workers) == len(own.scheduler.workers) == 1

    asyncio.run(run())


def test_of_calls_of_scale_in_a_loop_the_last_one_counts() -> None:
    async def run() -> None:
        async with cluster(1, asynchronous=True) as own:
            for wanted in (3, 5, 1, 4, 2):
                own.scale(wanted)
                assert len(own.plan) == wanted
            await own
            assert len(own.workers) == len(own.scheduler.workers) == 2
            own.scale(cores=6)
            assert len(own.plan) == 3
            await own.scale(0)
            await own
            assert not own.workers
            assert not own.scheduler.workers

    asyncio.run(run())


@pytest.mark.parametrize("memory", ["2 GiB", None])
def test_its_representation_says_what_it_has(memory: str | None) -> None:
    own = cluster(2, memory_limit=memory)
    with own:
        text = repr(own)
        assert text.startswith(f"LocalCluster({own.name}, ")
        assert own.scheduler_address in text
        assert "workers=2, threads=4" in text
        assert ("memory=4.00 GiB" in text) == (memory is not None)
        assert ("memory" in text) == (memory is not None)
    assert not own.workers
    assert "workers=0, threads=0" in repr(own)


def test_its_clients_share_its_loop() -> None:
    with cluster(1) as own, Client(own) as first, Client(own, set_as_default=False) as second:
        assert first.loop is second.loop is own.loop
        assert not own.asynchronous

        async def inside() -> bool:
            return bool(own.asynchronous)

        assert own.sync(inside)
        first.close()
        # The others go on.
        assert second.submit(inc, 1).result(timeout=SOON) == 2


def test_a_loop_can_be_given() -> None:
    with cluster(0) as other:
        with cluster(1, loop=other.loop) as own, Client(own) as client:
            assert own.loop is client.loop is other.loop
            assert client.submit(inc, 1).result(timeout=SOON) == 2
        assert other.loop.asyncio_loop.is_running()


def test_a_loop_that_does_not_run_is_refused() -> None:
    with cluster(0) as other:
        loop = other.loop
    with pytest.raises(RuntimeError, match="without a running loop"):
        cluster(0, loop=loop)


def test_the_cluster_of_a_client_has_its_loop() -> None:
    with Client(n_workers=1, processes=False, dashboard_address=":0") as client:
        assert client.cluster.loop is client.loop
        assert not client.cluster.asynchronous

    async def run() -> None:
        async with Client(
            n_workers=1, processes=False, dashboard_address=":0", asynchronous=True
        ) as client:
            assert client.cluster.asynchronous
            client.cluster.scale(2)
            await client.cluster
            assert len(client.cluster.scheduler.workers) == 2

    asyncio.run(run())


@distributed_fails("the client waits in the cluster's loop")
def test_a_client_of_an_event_loop_uses_that() -> None:
    async def run() -> None:
        with cluster(1) as own, Client(own):
            async with Client(own, asynchronous=True, set_as_default=False) as client:
                assert client.asynchronous
                assert client.loop is not own.loop
                assert await client.submit(inc, 1) == 2

    asyncio.run(run())


def test_get_client_returns_the_present_one() -> None:
    with cluster(0) as own, cluster(0) as other, own.get_client() as first:
        assert first.cluster is own
        assert own.get_client() is first
        with Client(own) as second:
            assert own.get_client() is second
            with other.get_client() as third:
                assert third.cluster is other


@pytest.mark.parametrize("processes", [False, True])
def test_its_workers_are_what_tools_ask_for(processes: bool) -> None:
    kind = distributed.Nanny if processes else distributed.Worker
    with cluster(2, processes=processes, threads_per_worker=3) as own:
        assert all(isinstance(worker, kind) for worker in own.workers.values())
        if processes:
            assert [worker.nthreads for worker in own.workers.values()] == [3, 3]
            there = {worker.worker_address for worker in own.workers.values()}
        else:
            assert [worker.state.nthreads for worker in own.workers.values()] == [3, 3]
            there = {worker.address for worker in own.workers.values()}
        assert there == set(own.scheduler.workers)


@distributed_fails("it asks the cluster, and hears of the workers two seconds later")
def test_a_client_that_has_waited_for_workers_knows_of_them() -> None:
    async def run() -> None:
        async with (
            cluster(0, asynchronous=True) as own,
            Client(own, asynchronous=True) as client,
        ):
            assert "threads=0" in repr(client)
            own.scale(2)
            await client.wait_for_workers(2)
            assert "processes=2 threads=4" in repr(client)

    asyncio.run(run())
    with cluster(0) as own, Client(own) as client:
        own.scale(2)
        client.wait_for_workers(2, timeout=SOON)
        assert "processes=2 threads=4" in repr(client)
        with pytest.raises(ValueError, match="positive integer"):
            client.wait_for_workers(0)


def test_it_can_be_displayed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("IPython")
    with cluster(1) as own:
        own._ipython_display_()
        # As IPython prints it where nothing can show it.
        shown = capsys.readouterr().out
        assert "'text/plain'" in shown
        assert repr(own) in shown
        assert "'text/html'" in shown
