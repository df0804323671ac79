"""`LocalCluster` is a `SpecCluster`: it is scaled by load, and used as Dask's tools use one."""

from __future__ import annotations

import asyncio
from typing import Any

import distributed
import pytest

from client_support import AGAINST, SOON, Gate, inc, pass_gate
from process_support import until
from treadle import Client, LocalCluster

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the cluster is Treadle's")

# Two looks, of which each takes a moment.
FAST = {"interval": "50ms", "wait_count": 2, "target_duration": "100ms"}


@pytest.fixture
def threads() -> Any:
    """A cluster of one worker of one thread, in this process."""
    with LocalCluster(1, threads_per_worker=1, processes=False) as cluster:
        yield cluster


def large(number: int) -> bytes:
    """What lives at a worker: small values live at the scheduler."""
    return bytes([number]) * 100_000


def test_it_is_what_tools_expect(threads: LocalCluster) -> None:
    assert isinstance(threads, distributed.SpecCluster)
    assert threads.plan == threads.requested == threads.observed == {0}
    assert set(threads.worker_spec) == {0}
    assert threads.worker_spec[0]["options"]["nthreads"] == 1
    threads.scale(cores=3)
    assert threads.plan == {0, 1, 2}
    threads.wait_for_workers(3, timeout=SOON)
    assert threads.observed == {0, 1, 2}
    assert {"Cluster", "Scheduler"} < set(threads.get_logs())
    asyncio.run(threads.scale_down([1]))
    assert threads.plan == threads.observed == {0, 2}
    # No thread for what nobody has asked for.
    assert not hasattr(threads, "loop")


def test_it_grows_under_load_and_shrinks_when_idle(threads: LocalCluster, gate: Gate) -> None:
    with Client(threads) as client:
        threads.adapt(minimum=1, maximum=3, **FAST)
        waiting = client.map(pass_gate, [gate] * 12, range(12), pure=False)
        until(lambda: threads.observed == {0, 1, 2}, "there are as many as there may be")
        gate.open()
        assert client.gather(waiting) == list(range(12))
        # Their keys stay; they are no work.
        until(lambda: len(threads.observed) == 1, "there are as few as there may be")
        until(lambda: len(threads.plan) == 1, "the others are not wanted any more")
        assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_values_of_workers_that_go_are_moved(threads: LocalCluster) -> None:
    threads.scale(3)
    with Client(threads) as client:
        client.wait_for_workers(3, timeout=SOON)
        values = [client.submit(large, n, workers=[n % 3], pure=False) for n in range(9)]
        distributed.wait(values, timeout=SOON)
        assert all(client.has_what().values())
        threads.adapt(minimum=0, maximum=3, **FAST)
        until(lambda: len(threads.observed) == 1, "the last one that holds values stays")
        held = client.who_has(values)
        assert all(len(holders) == 1 for holders in held.values())
        assert client.gather(values) == [large(n) for n in range(9)]
        for value in values:
            runs = [step for step in client.story(value.key) if step[3] == "processing"]
            assert len(runs) == 1, "it was computed again"
        del values, value
        until(lambda: threads.observed == set(), "nothing is left to keep")
        assert client.submit(inc, 1).result(timeout=2 * SOON) == 2


def test_one_worker_stays_while_there_are_values(threads: LocalCluster) -> None:
    threads.scale(2)
    with Client(threads) as client:
        client.wait_for_workers(2, timeout=SOON)
        value = client.submit(large, 1, workers=[1])
        distributed.wait(value, timeout=SOON)
        asyncio.run(threads.scale_down([0, 1]))
        assert threads.plan == threads.observed == {1}
        assert value.result(timeout=SOON) == large(1)


def test_processes_come_and_go(gate: Gate) -> None:
    with (
        LocalCluster(1, threads_per_worker=1) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        adaptive = cluster.adapt(minimum=1, maximum=2, **FAST)
        waiting = client.map(pass_gate, [gate] * 4, range(4), pure=False)
        until(lambda: len(cluster.observed) == 2, "another one has come", 2 * SOON)
        gate.open()
        assert client.gather(waiting) == [0, 1, 2, 3]
        until(lambda: len(cluster.observed) == 1, "one has gone")
        adaptive.stop()
        cluster.scale(2)
        client.wait_for_workers(2, timeout=2 * SOON)


def test_it_is_used_in_an_event_loop() -> None:
    async def use() -> None:
        async with (
            LocalCluster(1, processes=False, asynchronous=True) as cluster,
            Client(cluster, asynchronous=True, set_as_default=False) as client,
        ):
            assert await client.submit(inc, 1) == 2
            await cluster.scale(2)
            await cluster.wait_for_workers(2, timeout=SOON)
            assert "Scheduler" in await cluster.get_logs()
        assert cluster.status is distributed.Status.closed

    asyncio.run(use())


def test_a_deployer_may_derive_from_it() -> None:
    class Deployer(LocalCluster):
        def scale(self, n: int = 0, memory: Any = None, cores: int | None = None) -> Any:
            asked.append(n)
            return super().scale(n, memory=memory, cores=cores)

    asked: list[int] = []
    with Deployer(1, processes=False) as cluster, Client(cluster, set_as_default=False) as client:
        cluster.adapt(minimum=2, maximum=2, **FAST)
        client.wait_for_workers(2, timeout=SOON)
        assert asked == [2]
