"""`LocalCluster` is a `SpecCluster`: it is scaled by load, and used as Dask's tools use one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import distributed
import pytest

from client_support import AGAINST, SOON, Gate, inc, pass_gate
from process_support import until
from treadle import Client, LocalCluster
from treadle.client._connected import Connected
from treadle.cluster import _worker_process
from treadle.cluster._scaling import Scaling
from treadle.worker import _nanny_calls, _service

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
    assert threads._loop is None


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


@pytest.mark.parametrize("processes", [False, True])
def test_a_worker_that_was_retired_does_not_count(processes: bool) -> None:
    """Although it may not have ended yet."""
    with (
        LocalCluster(2, threads_per_worker=1, processes=processes) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        for _ in range(3):
            client.retire_workers(names=[min(cluster.plan)])
            cluster.scale(2)
            assert len(cluster.plan) == 2
            client.wait_for_workers(2, timeout=SOON)


def pause(dask_worker: Any) -> None:
    dask_worker.status = distributed.Status.paused


@contextmanager
def leaving(client: Client, gate: Gate) -> Iterator[None]:
    """Worker 1 is asked to leave, and does so when the block has ended: a task runs there."""
    running = client.submit(pass_gate, gate, workers=["1"])
    until(gate.arrived, "the task runs")
    retiring = threading.Thread(target=client.retire_workers, kwargs={"names": [1]})
    retiring.start()
    until(lambda: "closing_gracefully" in statuses(client), "it is asked to leave")
    yield
    assert "closing_gracefully" in statuses(client)
    gate.open()
    running.result(timeout=SOON)
    retiring.join()


def statuses(client: Client) -> set[str]:
    return {worker["status"] for worker in client.scheduler_info()["workers"].values()}


@pytest.mark.parametrize("processes", [False, True])
def test_a_worker_that_leaves_slowly_does_not_count(processes: bool, gate: Gate) -> None:
    with (
        LocalCluster(2, threads_per_worker=1, processes=processes) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        with leaving(client, gate):
            cluster.scale(2)
            assert cluster.plan == {0, 2}
            client.wait_for_workers(2, timeout=SOON)
            assert cluster.observed == {0, 1, 2}
        assert cluster.observed == {0, 2}
        cluster.scale(2)
        assert cluster.plan == {0, 2}


def test_a_worker_that_leaves_does_not_come_back_with_the_others(gate: Gate) -> None:
    with (
        LocalCluster(2, threads_per_worker=1) as cluster,
        Client(cluster, set_as_default=False) as client,
        ThreadPoolExecutor(1) as executor,
    ):
        running = client.submit(pass_gate, gate, workers=["1"])
        until(gate.arrived, "the task runs")
        retiring = executor.submit(client.retire_workers, names=[1])
        until(lambda: "closing_gracefully" in statuses(client), "it is asked to leave")
        cluster.scale(2)
        client.restart(timeout=SOON)
        retiring.result(timeout=SOON)
        assert running.cancelled()
        assert cluster.plan == {0, 2}
        # The new one may not have joined when the others were restarted.
        until(lambda: cluster.observed == {0, 2}, "both are there")


def test_a_worker_that_does_not_come_back_is_named() -> None:
    with (
        LocalCluster(1, threads_per_worker=1) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        with pytest.raises(distributed.TimeoutError, match="these have not: worker 0"):
            client.restart_workers(["0"], timeout=0.01)
        assert client.restart_workers(["0"], timeout=SOON) == {"0": "OK"}


def test_nobody_waits_for_a_worker_that_leaves(threads: LocalCluster, gate: Gate) -> None:
    threads.scale(2)
    with Client(threads, set_as_default=False) as client, leaving(client, gate):
        with Client(threads, set_as_default=False) as second:
            assert second.submit(inc, 1).result(timeout=SOON) == 2
        assert "Scheduler" in threads.get_logs()
        threads.wait_for_workers(1, timeout=SOON)
        with pytest.raises(distributed.TimeoutError):
            threads.wait_for_workers(2, timeout=0.1)


def test_nobody_waits_for_a_worker_that_is_paused(threads: LocalCluster) -> None:
    threads.scale(2)
    with Client(threads, set_as_default=False) as client:
        client.run(pause, workers=["1"])
        until(lambda: "paused" in statuses(client), "it is paused")
        with Client(threads, set_as_default=False) as second:
            assert second.submit(inc, 1).result(timeout=SOON) == 2
        threads.wait_for_workers(1, timeout=SOON)


def test_a_worker_may_take_its_time_to_leave(monkeypatch: Any, gate: Gate) -> None:
    monkeypatch.setattr(_nanny_calls, "_PATIENCE", 0.0)
    with (
        LocalCluster(2, threads_per_worker=1, processes=False, timeout=5) as cluster,
        Client(cluster, set_as_default=False) as client,
        ThreadPoolExecutor(1) as executor,
    ):
        running = client.submit(pass_gate, gate, workers=["1"])
        until(gate.arrived, "the task runs")
        scaling = executor.submit(cluster.scale, 1)
        # Longer than other answers may take.
        assert not futures.wait([scaling], timeout=6).done
        gate.open()
        scaling.result(timeout=SOON)
        # The client is told by another connection than the cluster.
        until(running.done)
        assert len(gate.arrivals()) == 1, "it ran where it was, to its end"
        assert cluster.plan == cluster.observed == {0}


def test_a_worker_that_was_given_up_does_not_count() -> None:
    with (
        LocalCluster(2, threads_per_worker=1) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        worker = cluster.workers["1"]
        worker._give_up("there is no memory")
        worker.close()
        until(lambda: worker.is_over, "its process has ended")
        assert cluster.plan == {0}
        assert "Scheduler" in cluster.get_logs()
        with Client(cluster, set_as_default=False) as second:
            assert second.submit(inc, 1).result(timeout=SOON) == 2
        cluster.scale(2)
        client.wait_for_workers(2, timeout=SOON)
        assert cluster.plan == cluster.observed == {0, 2}


def test_a_cluster_has_its_workers_when_it_is_made() -> None:
    with LocalCluster(2, threads_per_worker=1) as cluster:
        assert cluster.observed == {0, 1}

    async def use() -> None:
        async with LocalCluster(1, processes=True, asynchronous=True) as cluster:
            assert cluster.observed == {0}

    asyncio.run(use())


def test_a_cluster_says_why_its_workers_cannot_be_started(monkeypatch: Any) -> None:
    monkeypatch.setattr(_worker_process, "_COMMAND", (sys.executable, "-c", "1 / 0"))
    with pytest.raises(
        RuntimeError, match=r"cannot be started; worker 0: (.|\n)*ZeroDivisionError"
    ):
        LocalCluster(1, processes=True)


def test_workers_may_come_while_a_client_looks_at_them(threads: LocalCluster) -> None:
    class Comes:
        @property
        def __class__(self) -> type:
            threads.workers["another"] = threads.workers["0"]
            return int

    threads.workers["comes"] = Comes()
    try:
        assert threads.is_ready()
    finally:
        del threads.workers["comes"], threads.workers["another"]


def test_a_client_that_does_not_get_through_its_start_is_closed(
    threads: LocalCluster, monkeypatch: Any
) -> None:
    async def fail(client: Connected, *_: Any) -> None:
        failed.append(client)
        raise RuntimeError("on purpose")

    failed: list[Connected] = []
    monkeypatch.setattr(Connected, "_wait_for_local", fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        Client(threads)
    assert [client.status for client in failed] == ["closed"]
    assert dask.config.get("scheduler", None) is None


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (0, 2, 1)])
def test_clients_that_end_in_any_order_leave_no_settings(
    threads: LocalCluster, order: tuple[int, ...]
) -> None:
    names = ["scheduler", "dataframe.shuffle.method", "array.rechunk.method"]
    before = {name: dask.config.get(name, None) for name in names}
    aside = Client(threads, set_as_default=False)
    clients = [Client(threads) for _ in order]
    aside.close()
    for which in order:
        assert dask.config.get("scheduler") == "dask.distributed"
        clients[which].close()
    assert {name: dask.config.get(name, None) for name in names} == before


def test_clients_that_end_at_the_same_time_leave_no_settings(threads: LocalCluster) -> None:
    for _ in range(5):
        clients = [Client(threads) for _ in range(4)]
        with ThreadPoolExecutor(len(clients)) as executor:
            list(executor.map(Client.close, clients))
        assert dask.config.get("scheduler", None) is None


def test_a_client_that_ends_in_its_own_block_leaves_no_settings(threads: LocalCluster) -> None:
    with Client(threads) as first:
        with Client(threads) as second:
            second.close()
            assert dask.config.get("scheduler") == "dask.distributed"
        first.close()
        assert dask.config.get("scheduler", None) is None
    assert dask.config.get("scheduler", None) is None


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_clients_of_dask_and_ours_leave_no_settings(
    threads: LocalCluster, order: tuple[int, ...]
) -> None:
    for _ in range(2):
        with distributed.LocalCluster(
            n_workers=0, processes=False, dashboard_address=None
        ) as theirs:
            clients = [distributed.Client(theirs), Client(threads)]
            for which in order:
                assert dask.config.get("scheduler") == "dask.distributed"
                clients[which].close()
            assert dask.config.get("scheduler", None) is None
        with dask.config.set(scheduler="threads"):
            Client(threads).close()
            assert dask.config.get("scheduler") == "threads"
        Client(threads).close()
        assert dask.config.get("scheduler", None) is None


def test_what_a_cluster_asks_by_itself_is_no_client(threads: LocalCluster) -> None:
    class Joined(distributed.SchedulerPlugin):
        name = "joined"

        def __init__(self) -> None:
            self.clients: list[str] = []

        def add_client(self, scheduler: Any, client: str) -> None:
            self.clients.append(client)

    def heard(dask_scheduler: Any) -> list[str]:
        return [*dask_scheduler.plugins["joined"].clients, *dask_scheduler.get_events()]

    with Client(threads, set_as_default=False) as client:
        client.register_plugin(Joined())
        assert threads.observed == {0}
        with Client(threads, set_as_default=False) as second:
            until(lambda: second.id in client.run_on_scheduler(heard), "a client is heard of")
        assert not [name for name in client.run_on_scheduler(heard) if "Supervisor" in name]


def test_whoever_scales_waits_for_what_adaptive_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(self: Scaling, addresses: Any, names: Any) -> dict[str, Any]:
        reached.set()
        assert go_on.wait(SOON)
        return retire(self, addresses, names)

    reached, go_on = threading.Event(), threading.Event()
    retire = Scaling._retire
    monkeypatch.setattr(Scaling, "_retire", slowly)
    with (
        LocalCluster(2, threads_per_worker=1, processes=False) as cluster,
        ThreadPoolExecutor(1) as executor,
    ):
        adaptive = cluster.adapt(minimum=1, maximum=2, **FAST)
        assert reached.wait(SOON)
        adaptive.stop()
        scaling = executor.submit(cluster.scale, 2)
        futures.wait([scaling], timeout=0.2)
        go_on.set()
        scaling.result(timeout=SOON)
        until(lambda: len(cluster.plan) == 2, "there are two")
        cluster.wait_for_workers(2, timeout=SOON)


def test_adaptive_does_nothing_once_it_is_stopped(threads: LocalCluster) -> None:
    """Although it may have decided to."""
    threads.scale(2)
    adaptive = threads.adapt(minimum=2, maximum=2, interval="1 h")
    adaptive.stop()
    threads.sync(adaptive.scale_down, [1])
    threads.sync(adaptive.scale_up, 3)
    assert threads.plan == threads.observed == {0, 1}


def test_a_name_is_not_given_again(threads: LocalCluster) -> None:
    """`Adaptive` retires workers by name, and then asks the cluster to end what has their names."""
    threads.scale(2)
    asyncio.run(threads.scheduler_comm.retire_workers(names=[1]))
    threads.scale(2)
    asyncio.run(threads.scale_down([1]))
    assert threads.plan == {0, 2}
    threads.wait_for_workers(2, timeout=SOON)


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


def test_waiting_in_an_event_loop_takes_no_thread() -> None:
    async def use() -> None:
        # `scale` needs one.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with LocalCluster(1, processes=False, asynchronous=True) as cluster:
            waiting = [cluster.wait_for_workers(2) for _ in range(3)]
            await asyncio.wait(waiting, timeout=0.2)
            await asyncio.wait_for(cluster.scale(2), SOON)
            await asyncio.wait_for(asyncio.gather(*waiting), SOON)

    asyncio.run(use())


def test_who_no_longer_waits_for_a_start_does_not_end_it() -> None:
    async def start(cluster: LocalCluster) -> None:
        await cluster

    async def use() -> None:
        cluster = LocalCluster(1, processes=False, asynchronous=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(start(cluster), 0)
        starting = asyncio.ensure_future(start(cluster))
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await cluster.close()
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


class Slow(distributed.WorkerPlugin):
    """A plugin that takes a moment, as one that loads a model does."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def setup(self, worker: Any) -> None:
        if worker.name != 0:
            await asyncio.sleep(0.8)


def test_what_runs_at_a_worker_waits_for_each_of_its_plugins(
    threads: LocalCluster, monkeypatch: Any
) -> None:
    def plugins(dask_worker: Any) -> list[str]:
        return sorted(set(names) & set(dask_worker.plugins))

    names = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"]

    with Client(threads, set_as_default=False) as client, ThreadPoolExecutor(1) as executor:
        for name in names:
            client.register_plugin(Slow(name))
        # Longer than one of them takes, and shorter than all.
        monkeypatch.setattr(_service, "_SET_UP", 4.0)
        # It returns when the plugins are set up.
        executor.submit(threads.scale, 2)
        answers: dict[str, list[str]] = {}
        until(lambda: answers.update(client.run(plugins)) or len(answers) == 2, "it has joined")
        assert list(answers.values()) == [sorted(names)] * 2


SAYS = """
import sys, treadle
if __name__ == "__main__":
    options = eval(sys.argv[1])
    with treadle.LocalCluster(1, threads_per_worker=1, **options) as cluster:
        with treadle.Client(cluster) as client:
            client.run(abs, -1)
            client.run_on_scheduler(abs, -1)
            [kept] = client.get_worker_logs().values()
    print(any("out-of-band function 'abs'" in line for _, line in kept))
"""

FAILS = """
import logging, sys, time, treadle

def logged(client):
    return any("Compute Failed" in text for log in client.get_worker_logs().values() for _, text in log)

def mark():
    logging.getLogger("treadle.worker").critical("it was logged")

with treadle.Client(workers=1, threads_per_worker=1, silence_logs=sys.argv[1]) as client:
    assert client.submit(int, "no").exception()
    while not logged(client):
        time.sleep(0.01)
    client.run(mark)
    sys.stdin.read()
"""


@pytest.mark.parametrize("processes", [True, False])
@pytest.mark.parametrize(
    ("options", "says"),
    [({}, False), ({"silence_logs": "error"}, False), ({"silence_logs": 0}, True)],
)
def test_what_distributed_says_is_silenced_but_kept(
    tmp_path: Path, processes: bool, options: dict[str, Any], says: bool
) -> None:
    script = tmp_path / "says.py"
    script.write_text(SAYS)
    command = [sys.executable, str(script), repr({"processes": processes, **options})]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SOON, check=True)
    assert ran.stdout == "True\n"
    assert ("out-of-band" in ran.stderr) is says


@pytest.mark.parametrize(("level", "says"), [("error", True), ("critical", False)])
def test_what_workers_log_is_silenced(tmp_path: Path, level: str, says: bool) -> None:
    script, printed = tmp_path / "fails.py", tmp_path / "printed"
    script.write_text(FAILS)
    with printed.open("w") as stderr:
        command = [sys.executable, str(script), level]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=stderr)
    try:
        until(lambda: "it was logged" in printed.read_text(), "it is printed", SOON)
        assert ("Compute Failed" in printed.read_text()) is says
    finally:
        process.communicate(timeout=SOON)


@pytest.mark.parametrize("level", ["loud", True, -1, 2.5])
def test_what_is_no_level_is_refused(level: Any) -> None:
    with pytest.raises(ValueError, match="silence_logs="):
        LocalCluster(1, processes=False, silence_logs=level)


PRELOAD = """
import os

def dask_setup(worker):
    os.environ["PRELOADED"] = "yes"
"""


def test_workers_have_the_environment_and_preloads_that_were_given(tmp_path: Path) -> None:
    preload = tmp_path / "preloaded.py"
    preload.write_text(PRELOAD)
    env = {"OMP_NUM_THREADS": 3, "MINE": "here", "NONE": None}
    options = {"env": env, "preload": str(preload), "interface": "lo", "lifetime": 3600}
    with Client(workers=2, threads_per_worker=1, **options) as client:
        assert client.cluster.scheduler_address.startswith("treadle://127.0.0.1:")

        def seen() -> list[str | None]:
            return [os.environ.get(name) for name in (*env, "PRELOADED")]

        assert list(client.run(seen).values()) == [["3", "here", None, "yes"]] * 2
        # So has a process that replaces one.
        client.restart()
        assert list(client.run(seen).values()) == [["3", "here", None, "yes"]] * 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"processes": False, "env": {"A": 1}}, "env=: only workers that are processes"),
        ({"processes": False, "preload": "x.py", "lifetime": "1h"}, "preload=, lifetime=: only"),
        ({"lifetime": "soon"}, "^lifetime is 'soon'"),
        ({"env": ["A"]}, "give names of variables"),
        ({"interface": "lo", "host": "127.0.0.1"}, "not both"),
        ({"interface": "no-such"}, "no-such"),
    ],
)
def test_options_of_workers_that_cannot_be_are_refused(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        LocalCluster(1, **options)
