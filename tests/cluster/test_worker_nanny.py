"""`treadle worker` looks after its worker processes, as `dask worker` does with its nanny."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from client_support import AGAINST, SOON
from ports import free_port
from process_support import Process, alive, kill, until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the processes are Treadle's")


def inc(x: int) -> int:
    return x + 1


def workers_of(client: Any) -> dict[str, int]:
    """The process ids by the names of workers, none while the scheduler is away."""
    info = client.scheduler_info()["workers"].values()
    return {str(worker["name"]): worker["pid"] for worker in info}


def nanny(start: Any, *arguments: str) -> Process:
    return start("worker", *arguments, "--nanny", "--nthreads", "1")


@pytest.fixture
def scheduler(start: Any) -> Process:
    return start("scheduler", "--port", str(free_port()))


def test_workers_that_are_killed_are_replaced_and_end_with_their_nanny(start, scheduler, join):
    looked_after = nanny(start, scheduler.address, "--nworkers", "2", "--name", "w")
    client = join(scheduler)
    client.wait_for_workers(2, timeout=2 * SOON)
    before = workers_of(client)
    assert before.keys() == {"w-0", "w-1"}
    until(lambda: looked_after.output.count("listening at") == 2, "both say so")
    assert looked_after.pid not in before.values()
    kill(before["w-0"])
    until(lambda: workers_of(client).get("w-0") not in (None, before["w-0"]), "w-0 is replaced")
    after = workers_of(client)
    assert after["w-1"] == before["w-1"]
    assert client.submit(inc, 1, workers=["w-0"]).result(timeout=SOON) == 2
    assert "worker w-0 was killed by SIGKILL; it is replaced" in looked_after.output
    looked_after.send(signal.SIGTERM)
    assert looked_after.wait() == 0
    assert not [pid for pid in after.values() if alive(pid)]
    assert workers_of(client) == {}


def test_workers_end_with_a_nanny_that_is_killed(start, scheduler, join):
    looked_after = nanny(start, scheduler.address)
    client = join(scheduler)
    client.wait_for_workers(1, timeout=2 * SOON)
    (pid,) = workers_of(client).values()
    looked_after.end()
    until(lambda: not alive(pid), "the worker has ended")


def test_workers_join_the_scheduler_that_comes_after_one_that_was_killed(start, scheduler, join):
    address = scheduler.address
    looked_after = nanny(start, address, "--name", "w")
    client = join(scheduler)
    client.wait_for_workers(1, timeout=2 * SOON)
    before = workers_of(client)
    client.close()
    scheduler.end()
    until(lambda: "Waiting for the scheduler" in looked_after.output, "it has lost it", 2 * SOON)
    client = join(start("scheduler", address))
    client.wait_for_workers(1, timeout=2 * SOON)
    after = workers_of(client)
    assert after.keys() == before.keys()
    assert after != before
    assert client.submit(inc, 1).result(timeout=SOON) == 2
    assert "w lost the scheduler; it is replaced" in looked_after.output


def test_workers_wait_for_the_scheduler_that_a_file_names(start, join, tmp_path):
    file = str(tmp_path / "scheduler.json")
    looked_after = nanny(start, "--scheduler-file", file)
    until(lambda: "Waiting for the scheduler" in looked_after.output, "there is no file", 2 * SOON)
    # Each at an address of its own, and of a cluster of its own.
    first = start("scheduler", "--port", "0", "--scheduler-file", file)
    client = join(first)
    client.wait_for_workers(1, timeout=2 * SOON)
    client.close()
    first.end()
    # One that ends in peace takes its workers along.
    last = start("scheduler", "--port", "0", "--scheduler-file", file)
    client = join(last)
    client.wait_for_workers(1, timeout=2 * SOON)
    client.close()
    last.send(signal.SIGTERM)
    assert last.wait() == 0
    assert looked_after.wait() == 0


def let_nobody_read() -> None:
    """Make the standard output a pipe whose reader has gone."""
    reads, writes = os.pipe()
    os.close(reads)
    os.dup2(writes, 1)


def show(number: int) -> int:
    print("number", number, flush=True)
    return number


def test_tasks_may_print_when_nobody_reads_any_more(start, scheduler, join):
    start("worker", scheduler.address, "--nanny", "--nthreads", "1", before=let_nobody_read)
    client = join(scheduler)
    assert client.gather(client.map(show, range(3))) == list(range(3))


def test_a_nanny_gives_up_after_its_death_timeout(start, scheduler, join):
    looked_after = nanny(start, scheduler.address, "--death-timeout", "200ms")
    client = join(scheduler)
    client.wait_for_workers(1, timeout=2 * SOON)
    client.close()
    scheduler.end()
    assert looked_after.wait() == 1
    assert "it found no scheduler" in looked_after.output


def test_workers_that_the_cluster_retires_are_not_replaced(start, scheduler, join):
    looked_after = nanny(start, scheduler.address, "--nworkers", "2", "--name", "w")
    client = join(scheduler)
    client.wait_for_workers(2, timeout=2 * SOON)
    kept = client.submit(bytes, 100_000, workers=["w-0"])
    client.retire_workers(names=["w-0"])
    assert workers_of(client).keys() == {"w-1"}
    assert len(kept.result(timeout=SOON)) == 100_000
    kept.release()
    client.retire_workers(names=["w-1"])
    assert looked_after.wait() == 0


def test_a_restart_of_the_cluster_starts_other_processes(start, scheduler, join):
    nanny(start, scheduler.address, "--name", "w")
    client = join(scheduler)
    client.wait_for_workers(1, timeout=2 * SOON)
    before = workers_of(client)
    client.restart()
    after = workers_of(client)
    assert after.keys() == before.keys()
    assert after != before


def test_what_is_wrong_is_said_once(start, scheduler):
    looked_after = nanny(
        start, scheduler.address, "--preload", "no_such_module_at_all", "--name", "w"
    )
    assert looked_after.wait() == 1
    assert looked_after.output.count("No module named 'no_such_module_at_all'") == 1
    assert looked_after.lines[-1] == "Error: worker w: it ended before it was ready"


def test_auto_is_as_many_as_suit_the_cores(start, scheduler, join):
    from distributed.deploy.utils import nprocesses_nthreads

    start("worker", scheduler.address, "--nanny", "--nworkers", "auto")
    processes, threads = nprocesses_nthreads()
    client = join(scheduler)
    client.wait_for_workers(processes, timeout=2 * SOON)
    assert sorted(client.nthreads().values()) == [threads] * processes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nanny", "--nworkers", "some"), "--nworkers"),
        (("--nanny", "--nworkers", str(-(os.cpu_count() or 1) - 5)), "--nworkers"),
        (("--nworkers", "2"), "--no-nanny is for one worker"),
        (("--nanny", "--nworkers", "2", "--listen", "127.0.0.1:0"), "--listen"),
        (("--nanny", "--death-timeout", "soon"), "--death-timeout"),
    ],
)
def test_options_that_make_no_sense(start, arguments, message):
    process = start("worker", "a:1", *arguments)
    assert process.wait() == 2
    assert message in process.output
