"""Treadle inside a Dask cluster: it comes with one call, follows the cluster, and goes without a trace."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest

import treadle
from client_support import AGAINST, SOON, pass_gate
from treadle.common import _addresses
from treadle.common._loop import off_loop
from treadle.common._security import temporary
from treadle.hosting._start_part import made
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it is about both"),
    pytest.mark.timeout(4 * SOON, method="signal"),
]


def pids(client):
    return sorted(client.run(os.getpid).values())


def names_of_threads():
    return [thread.name for thread in threading.enumerate() if "treadle" in thread.name]


def open_files():
    return [
        target
        for name in os.listdir("/proc/self/fd")
        if "treadle" in (target := link(f"/proc/self/fd/{name}"))
    ]


def link(path):
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


def directories(root):
    return [name for _, names, _ in os.walk(root) for name in names if "treadle" in name]


def test_a_cluster_is_used_and_left_as_it_was(dask_client, tmp_path):
    there = dask_client(memory_limit="1 GiB", resources={"lathe": 2})
    before = there.submit(np.arange, 10)
    here = treadle.attach(there, memory_fraction=0.5)
    assert pids(here) == pids(there), "workers are in the processes of Dask's"
    workers = here.scheduler_info(n_workers=-1)["workers"]
    assert {worker["nthreads"] for worker in workers.values()} == {1}
    assert {worker["memory_limit"] for worker in workers.values()} == {1 << 29}
    assert {tuple(worker["resources"].items()) for worker in workers.values()} == {(("lathe", 2),)}
    assert re.search(r" in the Dask cluster at tcp://127\.0\.0\.1:\d+, dashboard: http", repr(here))
    assert f"{there.dashboard_link}" in repr(here)
    assert f"href='{there.dashboard_link}'" in here._repr_html_()
    x = da.random.default_rng(0).random((400, 400), chunks=100)
    expected = x.sum().compute(scheduler="sync")
    assert here.compute((x.T.rechunk((50, 400)).T).sum()).result() == pytest.approx(expected)
    frame = pd.DataFrame({"key": np.arange(1000) % 7, "value": np.arange(1000)})
    sums = dd.from_pandas(frame, npartitions=8).shuffle("key").groupby("key").value.sum()
    assert here.compute(sums).result().to_dict() == frame.groupby("key").value.sum().to_dict()
    # Both work side by side.
    assert there.submit(sum, [1, 2]).result() == 3
    here.detach()
    assert there.submit(sum, [1, 2], pure=False).result() == 3
    assert before.result().sum() == 45
    assert not any(there.run(names_of_threads).values())
    until(lambda: not any(there.run(open_files).values()), "no segment and no file is left")
    assert not directories(tmp_path)
    assert not there.run_on_scheduler(lambda dask_scheduler: "treadle" in dask_scheduler.plugins)
    assert here.status == "closed"


def test_a_further_client_needs_the_address_alone(dask_client):
    there = dask_client(n_workers=1)
    here = treadle.attach(there)
    address = here.scheduler.address
    with treadle.Client(address, set_as_default=False) as further:
        assert further.submit(sum, [1, 2]).result() == 3
    here.detach()
    # Another scheduler may have the address later.
    assert _addresses.known(address) == _addresses.Credentials()


def test_tasks_that_run_do_not_hold_up_a_detach(dask_client, gate, tmp_path):
    there = dask_client(n_workers=1)
    here = treadle.attach(there)
    future = here.submit(pass_gate, gate)
    until(gate.arrived, "the task runs")
    here.detach()
    assert future.status == "cancelled"
    assert there.submit(sum, [1, 2]).result() == 3
    gate.open()
    until(lambda: not any(there.run(names_of_threads).values()), "its thread ends with it")
    until(lambda: not directories(tmp_path), "and nothing is left")


def test_it_follows_the_cluster(dask_client):
    there = dask_client()
    with treadle.attach(there) as here:
        there.cluster.scale(3)
        until(lambda: len(here.ncores()) == 3, "a worker that joins has ours")
        held = here.map(np.full, [1000] * 12, range(12))
        distributed.wait(held)
        there.cluster.scale(1)
        until(lambda: len(here.ncores()) == 1, "one that retires takes ours along")
        assert [int(array[0]) for array in here.gather(held)] == list(range(12))


def test_a_worker_that_is_killed_is_replaced(dask_client):
    there = dask_client()
    with treadle.attach(there) as here:
        old = pids(here)
        futures = here.map(slow, range(40), pure=False)
        os.kill(old[0], signal.SIGKILL)
        assert here.gather(futures) == list(range(40))
        until(lambda: len(here.ncores()) == 2 and pids(here) != old, "its nanny makes a new one")
        assert pids(here) == pids(there)


def test_results_are_right_while_the_cluster_scales_and_loses_a_worker(dask_client):
    there = dask_client(n_workers=1)
    with treadle.attach(there) as here:
        parts = here.map(slow, range(240), pure=False)
        sums = [here.submit(add_up, *parts[i::8], pure=False) for i in range(8)]
        there.cluster.scale(4)
        until(lambda: len(here.ncores()) == 4, "four workers")
        os.kill(pids(here)[0], signal.SIGKILL)
        there.cluster.scale(2)
        assert here.gather(sums) == [sum(range(i, 240, 8)) for i in range(8)]
        assert here.gather(parts) == list(range(240))
        until(lambda: len(here.ncores()) == 2, "two workers")
        assert pids(here) == pids(there)


def add_up(*numbers):
    return sum(numbers)


def slow(number):
    time.sleep(0.05)
    return number


def test_the_values_of_a_worker_that_retires_move(dask_client):
    there = dask_client()
    with treadle.attach(there) as here:
        values = here.map(np.full, [1000] * 20, range(20), pure=False)
        distributed.wait(values)
        names = [worker["name"] for worker in there.scheduler_info()["workers"].values()]
        there.retire_workers(names=names[:1])
        until(lambda: len(here.ncores()) == 1, "it is gone")
        assert len(here.has_what()) == 1
        assert all(len(holders) == 1 for holders in here.who_has(values).values())
        assert [int(array[0]) for array in here.gather(values)] == list(range(20))


def test_workers_that_dask_chooses_keep_what_treadle_needs(dask_client):
    there = dask_client()
    with treadle.attach(there) as here:
        [scattered] = here.scatter([np.ones(10_000)])
        assert len(there.retire_workers()) == 1
        until(lambda: len(here.ncores()) == 1, "the other one is gone")
        assert scattered.result().sum() == 10_000


KILLED_PART = """
import os, signal, sys
from treadle.common._worker_options import WorkerOptions
from treadle.hosting._scheduler_part import SchedulerPart
from treadle.hosting._worker_parts import WorkerPart

secret = b"x" * 64
scheduler = SchedulerPart("127.0.0.1", secret, None, False)
part = WorkerPart(
    scheduler.address, WorkerOptions(nthreads=1, memory_limit=0, local_directory=sys.argv[1]),
    name="1", host="127.0.0.1", secret=secret, certificates=None, insecure=False,
)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path):
    left = []
    for _ in range(2):
        command = [sys.executable, "-c", KILLED_PART, str(tmp_path)]
        ended = subprocess.run(command, timeout=SOON, check=False)
        assert ended.returncode == -signal.SIGKILL
        left.append(os.listdir(tmp_path))
    assert [len(names) for names in left] == [1, 1]
    assert left[0] != left[1]


@pytest.mark.parametrize("security", [temporary, distributed.Security.temporary])
def test_connections_have_tls_where_the_cluster_has(dask_client, security):
    """With certificates of their own: Dask's need not have the name that Treadle asks for."""
    there = dask_client(security=security(), protocol="tls://")
    with treadle.attach(there) as here:
        assert here.scheduler.address.startswith("treadle+tls://")
        assert all(address.startswith("treadle+tls://") for address in here.ncores())
        assert here.submit(sum, [1, 2]).result() == 3


def has_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
def test_a_cluster_of_ipv6(dask_client):
    there = dask_client(n_workers=1, host="[::1]")
    with treadle.attach(there) as here:
        assert here.submit(sum, [1, 2]).result() == 3
        assert all("//[::1]:" in one for one in (here.scheduler.address, *here.ncores()))


def test_a_cluster_that_closes_takes_treadle_along(dask_client):
    there = dask_client()
    here = treadle.attach(there)
    assert here.submit(sum, [1, 2]).result() == 3
    there.cluster.close()
    until(lambda: here.status == "closed", "the client knows")
    until(lambda: not [n for n in names_of_threads() if "hosted" in n], "nothing runs here")


def test_threads_of_one_process(dask_client):
    there = dask_client(processes=False, n_workers=1, threads_per_worker=2)
    with treadle.attach(there, nthreads=3) as here:
        assert list(here.ncores().values()) == [3]
        assert here.submit(os.getpid).result() == os.getpid()


def test_what_cannot_be_attached_is_refused_by_name(dask_client):
    there = dask_client(n_workers=1)
    with treadle.attach(there) as here:
        with pytest.raises(TypeError, match=r"takes a distributed\.Client, not Client"):
            treadle.attach(here)
        with pytest.raises(RuntimeError, match=r"attached to .* already: detach it first"):
            treadle.attach(there)
        # It was not disturbed.
        assert here.submit(sum, [1, 2]).result() == 3
    with pytest.raises(ValueError, match="nthreads=-1"):
        treadle.attach(there, nthreads=-1)
    with pytest.raises(ValueError, match="memory_fraction=2"):
        treadle.attach(there, memory_fraction=2)
    with pytest.raises(TypeError, match="not str"):
        treadle.attach("tcp://127.0.0.1:8786")


def test_of_two_who_attach_at_once_one_does(dask_client):
    there = dask_client(n_workers=1)
    with distributed.Client(there.cluster, set_as_default=False) as other:
        outcomes = []

        def attach(client):
            try:
                outcomes.append(treadle.attach(client, set_as_default=False))
            except RuntimeError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=attach, args=[one]) for one in (there, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        refused, here = sorted(outcomes, key=lambda one: isinstance(one, treadle.Client))
        assert "already: detach it first" in str(refused)
        # It was not disturbed.
        assert here.submit(sum, [1, 2]).result() == 3
        here.detach()
    assert not any(there.run(names_of_threads).values())


def test_what_is_made_when_nobody_wants_it_any_more_ends():
    closed, begun, goes_on = threading.Event(), threading.Event(), threading.Event()

    class Part:
        def close(self):
            closed.set()

    def make():
        begun.set()
        goes_on.wait(SOON)
        return Part()

    async def run():
        # As a scheduler does with what runs when it closes.
        starting = asyncio.ensure_future(made(make, lambda: True))
        await off_loop(begun.wait)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        goes_on.set()

    asyncio.run(run())
    assert closed.wait(SOON)


def test_threads_may_detach_at_once(dask_client):
    there = dask_client(n_workers=1)
    here = treadle.attach(there)
    outcomes = []

    def close():
        outcomes.append(here.close())

    threads = [threading.Thread(target=close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert outcomes == [None] * 3, "no one has raised"
    assert not any(there.run(names_of_threads).values())


def test_futures_of_both_clients_are_waited_for_together(dask_client, gate):
    there = dask_client(n_workers=1)
    with treadle.attach(there) as here:
        theirs, ours = there.submit(pass_gate, gate, 1), here.submit(sum, [1, 2])
        assert distributed.wait([theirs, ours], return_when="FIRST_COMPLETED").not_done == {theirs}
        with pytest.raises(distributed.TimeoutError):
            distributed.wait([theirs], timeout=0.1)
        gate.open()
        assert not distributed.wait([theirs]).not_done
        theirs = there.submit(sum, [3, 4])
        assert distributed.wait([theirs, ours]).done == {theirs, ours}
        assert {one.result() for one in distributed.as_completed([theirs, ours])} == {3, 7}


def test_another_version_is_refused_with_what_to_do(dask_client):
    there = dask_client(n_workers=1)
    there.run(set_version, "0.0.1")
    try:
        with pytest.raises(
            RuntimeError, match=r"version 0\.0\.1 on workers tcp:.*pip install treadle=="
        ):
            treadle.attach(there)
    finally:
        there.run(set_version, treadle.__version__)
    with treadle.attach(there) as here:
        assert here.submit(sum, [1, 2]).result() == 3


def set_version(version):
    treadle.__version__ = version


def test_a_worker_that_cannot_start_leaves_nothing(dask_client):
    there = dask_client(n_workers=1)
    there.run(break_workers)
    with pytest.raises(RuntimeError, match="cannot start on worker"):
        treadle.attach(there)
    assert not there.run_on_scheduler(lambda dask_scheduler: "treadle" in dask_scheduler.plugins)
    assert not any(there.run(names_of_threads).values())


def break_workers():
    import treadle.hosting._worker_parts as parts

    def fails(*args, **kwargs):
        raise OSError("there is no room")

    parts.WorkerPart = fails


def test_it_can_be_detached_when_it_is_closed_already(dask_client):
    here = treadle.attach(dask_client(n_workers=1))
    here.detach()
    here.detach()
    with pytest.raises(RuntimeError, match="not attached any more"):
        here.detach(keep=True)


def test_it_can_be_detached_when_the_cluster_has_gone(dask_client):
    there = dask_client(n_workers=1)
    here = treadle.attach(there)
    cluster = there.cluster
    there.close()
    cluster.close()
    here.detach()
    assert here.status == "closed"


def test_a_worker_that_dies_while_it_is_detached_leaves_no_scheduler(dask_client):
    there = dask_client()
    here = treadle.attach(there)
    there.run(die_when_torn_down, workers=list(there.scheduler_info()["workers"])[:1])
    here.detach()
    assert not there.run_on_scheduler(lambda dask_scheduler: "treadle" in dask_scheduler.plugins)
    with treadle.attach(there) as again:
        assert again.submit(sum, [1, 2]).result() == 3


def die_when_torn_down():
    from treadle.hosting._dask import HostedWorker

    async def die(self, worker):
        os.kill(os.getpid(), signal.SIGKILL)

    HostedWorker.teardown = die


KILLED = """
import os, signal, sys
import distributed, treadle

if __name__ == "__main__":
    here = treadle.attach(distributed.Client(sys.argv[1]))
    assert here.submit(sum, [1, 2]).result() == 3
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_can_be_detached_when_its_process_was_killed(dask_client, tmp_path):
    there = dask_client(n_workers=1)
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), there.scheduler.address]
    ended = subprocess.run(command, timeout=SOON, check=False)
    assert ended.returncode == -signal.SIGKILL
    with pytest.raises(RuntimeError, match=r"already: .*treadle\.detach\(dask_client\) where"):
        treadle.attach(there)
    treadle.detach(there)
    with pytest.raises(RuntimeError, match=r"^Treadle is not attached to the Dask cluster at"):
        treadle.detach(there)

    def threads():
        return [name for name in names_of_threads() if "sidecar" in name or "schedul" in name]

    # The scheduler was in this process.
    until(lambda: not threads(), "its threads end")
    with treadle.attach(there) as here:
        here.wait_for_workers(1, timeout=SOON)
        assert here.submit(sum, [1, 2]).result() == 3


def test_it_can_be_detached_when_the_client_of_dask_is_closed(dask_client):
    there = dask_client(n_workers=1)
    cluster = there.cluster
    here = treadle.attach(there)
    there.close()
    here.detach()
    with distributed.Client(cluster, set_as_default=False) as again:
        assert not any(again.run(names_of_threads).values())
        with treadle.attach(again) as here:
            assert here.submit(sum, [1, 2]).result() == 3


def fail_to_join(times=1):
    """Have the first workers of Treadle in this process find nobody."""
    from treadle.hosting import _worker_parts

    own, failed = _worker_parts.ThreadWorker, []

    def make(*args, **kwargs):
        if len(failed) < times:
            failed.append(True)
            raise ConnectionError("the scheduler cannot be reached")
        return own(*args, **kwargs)

    _worker_parts.ThreadWorker = make


class Unreachable(distributed.WorkerPlugin):
    """As :func:`fail_to_join` in each worker that comes."""

    # Before Treadle's.
    name = "a"

    def setup(self, worker):
        fail_to_join()


class LongUnreachable(distributed.WorkerPlugin):
    """Each worker that comes later finds nobody for longer than its first join may take."""

    name = "a"

    def setup(self, worker):
        from treadle.hosting import _dask, _worker_parts

        if worker.name == 0:
            return
        _worker_parts._JOINING = _dask._AGAIN = 0.1
        fail_to_join(times=4)


@pytest.mark.parametrize("plugin", [Unreachable, LongUnreachable])
def test_a_worker_that_cannot_join_at_first_tries_again(dask_client, plugin):
    there = dask_client(n_workers=1)
    there.register_plugin(plugin())
    with treadle.attach(there) as here:
        there.cluster.scale(2)
        here.wait_for_workers(2, timeout=SOON)
        assert set(here.run(os.getpid).values()) == set(there.run(os.getpid).values())
    assert not any(there.run(names_of_threads).values())


def test_a_worker_that_cannot_join_is_let_alone_once_it_is_detached(dask_client):
    there = dask_client(n_workers=1)
    there.register_plugin(Unreachable())
    there.run(fail_to_join, times=1000)
    there.run(exec, "from treadle.hosting import _worker_parts as parts; parts._JOINING = 0.1")
    with pytest.raises(RuntimeError, match=r"cannot start on worker .*: the scheduler cannot"):
        treadle.attach(there)
    assert not any(there.run(tasks_of_treadle).values())


async def tasks_of_treadle():
    return [repr(task) for task in asyncio.all_tasks() if "_try_again" in repr(task)]


def test_an_actor_is_of_the_client_that_got_it(dask_client):
    """A client of Dask is the current one, whose scheduler does not reach Treadle's workers."""
    there = dask_client(n_workers=1)
    with treadle.attach(there) as here, there.as_current():
        assert distributed.get_client() is there
        actor = here.submit(list, [1], actor=True, pure=False).result(timeout=SOON)
        actor.append(2).result(timeout=SOON)
        assert actor.index(2).result(timeout=SOON) == 1
        # Inside of another value, too.
        (again,) = here.submit(lambda found: [found], actor, pure=False).result(timeout=SOON)
        assert again.index(2).result(timeout=SOON) == 1
