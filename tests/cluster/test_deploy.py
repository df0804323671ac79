"""Clusters from a specification of their own, and scaling of workers in groups."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest

import treadle
from client_support import AGAINST, SOON
from process_support import kill
from treadle.cluster._worker_process import WorkerProcess
from treadle.deploy import Scheduler, SpecCluster, Worker
from treadle.scheduler._adaptive import workers_to_close
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the processes are Treadle's")

WORKERS = {
    "small": {"cls": Worker, "options": {"nthreads": 1}},
    "large": {"cls": Worker, "options": {"nthreads": 3, "resources": {"GPU": 1}}},
}


def inc(x: int) -> int:
    return x + 1


class Numbered(SpecCluster):
    """Names its workers itself."""

    def _new_worker_name(self, number: int) -> str:
        return f"n-{number}"


def test_workers_of_several_kinds() -> None:
    with (
        dask.config.set({"distributed.worker.resources": {"LICENCE": 2}}),
        Numbered(workers=WORKERS) as cluster,
        treadle.Client(cluster) as client,
    ):
        assert cluster.requested == cluster.observed == cluster.plan == {"small", "large"}
        threads = {w["name"]: w["nthreads"] for w in client.scheduler_info()["workers"].values()}
        assert threads == {"small": 1, "large": 3}
        resources = {w["name"]: w["resources"] for w in client.scheduler_info()["workers"].values()}
        assert resources == {"small": {"LICENCE": 2}, "large": {"GPU": 1}}
        where = client.submit(os.getpid, resources={"GPU": 1}).result(timeout=SOON)
        pids = {str(w["name"]): w["pid"] for w in client.scheduler_info()["workers"].values()}
        assert where == pids["large"]
        # As those of any cluster, it is replaced.
        kill(pids["large"])
        kept = client.submit(bytes, 100_000, resources={"GPU": 1})
        assert len(kept.result(timeout=2 * SOON)) == 100_000
        cluster.scale(3)
        client.wait_for_workers(3, timeout=2 * SOON)
        assert cluster.observed == {"small", "large", "n-0"}
        cluster.scale(1)
        until(lambda: len(cluster.observed) == 1, "the others are retired", 2 * SOON)
        assert len(kept.result(timeout=2 * SOON)) == 100_000
    assert cluster.status.name == "closed"


LEFT_OPEN = """
import treadle
from treadle.deploy import Scheduler, SpecCluster, Worker

if __name__ == "__main__":
    cluster = SpecCluster({0: {"cls": Worker, "options": {"nthreads": 1}}}, {"cls": Scheduler})
    client = treadle.Client(cluster)
    print(client.submit(sum, [1, 2]).result(), client.scheduler_info()["workers"].popitem()[1]["pid"])
"""


def test_a_cluster_that_a_program_leaves_open_ends_with_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(LEFT_OPEN)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=4 * SOON, check=True
    )
    result, pid = done.stdout.split()
    assert (result, done.stderr) == ("3", "")
    until(lambda: not psutil.pid_exists(int(pid)), "the worker ends")


def test_an_asynchronous_cluster_and_what_cannot_start() -> None:
    async def use() -> Any:
        scheduler = {"cls": Scheduler, "options": {"dashboard_address": None}}
        async with SpecCluster({0: WORKERS["small"]}, scheduler, asynchronous=True) as cluster:
            async with treadle.Client(cluster, asynchronous=True) as client:
                assert await client.submit(inc, 1) == 2
            assert cluster.dashboard_link is None
            worker = Worker(cluster.scheduler_address.replace("127", "128"), name="elsewhere")
            with pytest.raises(ValueError, match=r"no treadle\.deploy\.Scheduler of this process"):
                await worker
            await worker.close()
        return cluster.status.name

    assert asyncio.run(use()) == "closed"


def test_a_worker_that_does_not_join_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(process: WorkerProcess, _timeout: float) -> None:
        late.append(process)
        raise TimeoutError("it has not joined")

    async def use() -> None:
        async with SpecCluster(scheduler={"cls": Scheduler}, asynchronous=True) as cluster:
            worker = Worker(cluster.scheduler_address, name="late")
            with pytest.raises(TimeoutError, match="it has not joined"):
                await worker
            assert worker.status.name == "closed"
            assert cluster.scheduler.cluster.workers == {}
            assert late[0].is_over

    late: list[WorkerProcess] = []
    monkeypatch.setattr(WorkerProcess, "wait_until_announced", never)
    asyncio.run(use())


def test_workers_of_a_group_go_together() -> None:
    one = {
        "nthreads": 1,
        "memory_limit": 0,
        "metrics": {"executing": 0, "ready": 0, "managed_bytes": 0, "in_memory": 0},
    }
    busy = {**one, "metrics": {**one["metrics"], "executing": 1}}
    workers = {"a": one, "b": busy, "c": one, "d": one}
    groups = {"a": "left", "b": "left", "c": "right", "d": "right"}
    assert workers_to_close(workers, groups=groups) == ["c", "d"]
    assert workers_to_close(workers, n=1, groups=groups) == []
    assert workers_to_close(workers, n=3, groups=groups) == ["c", "d"]
    assert workers_to_close(workers, minimum=3, groups=groups) == []
    assert set(workers_to_close(workers, target=0, groups=groups)) == set(workers)


def test_a_key_of_workers_is_called_with_what_is_known_of_them() -> None:
    with treadle.LocalCluster(2, 1) as cluster, treadle.Client(cluster):
        adaptive = cluster.adapt(minimum=2, interval="1 h", worker_key=lambda worker: worker.host)
        going = cluster.sync(adaptive.workers_to_close, target=0)
        assert {str(name) for name in going} == {"0", "1"}
        # They go together or not at all.
        assert cluster.sync(adaptive.workers_to_close, target=1) == []
