"""How workers leave: with their values moved, when they are asked to; and when their parent is gone."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

import distributed
import numpy as np
import pytest

from client_support import AGAINST, SOON, addresses, reach
from process_support import alive
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the commands are Treadle's")


def mark(gate, number):
    """A value of some size, and a mark that it was computed."""
    gate.arrive(number)
    return np.full(10_000, number)


def two_workers(start, *arguments, **options):
    scheduler = start("scheduler", "--port", "0")
    leaving = start("worker", scheduler.address, "--nthreads", "1", *arguments, **options)
    assert leaving.address
    staying = start("worker", scheduler.address, "--nthreads", "1", "--name", "staying")
    assert staying.address
    return scheduler, leaving, staying


def test_values_move_away_before_a_worker_leaves(start, join, gate):
    scheduler, leaving, staying = two_workers(start, "--name", "leaving")
    client = join(scheduler)
    options = {"workers": ["leaving"], "allow_other_workers": True}
    futures = [client.submit(mark, gate, i, **options) for i in range(20)]
    distributed.wait(futures, timeout=SOON)
    data = client.scatter(np.arange(50_000), workers=[leaving.address], hash=False)
    small = client.submit(int, 7, **options)
    distributed.wait(small, timeout=SOON)
    leaving.send(signal.SIGTERM)
    assert leaving.wait() == 0, leaving.output
    assert addresses(client) == [staying.address]
    assert [int(value[-1]) for value in client.gather(futures)] == list(range(20))
    assert data.result(timeout=SOON)[-1] == 49_999
    assert small.result(timeout=SOON) == 7
    assert len(gate.arrivals()) == 20  # nothing was computed twice


def test_what_runs_is_finished_before_a_worker_leaves(start, join, gate):
    scheduler, leaving, _staying = two_workers(start, "--name", "leaving")
    client = join(scheduler)
    options = {"workers": ["leaving"], "allow_other_workers": True}
    running = client.submit(slowly, gate, "running", **options)
    until(gate.arrived, "it runs")
    queued = [client.submit(slowly, gate, f"queued-{i}", **options) for i in range(5)]
    leaving.send(signal.SIGTERM)
    until(lambda: gate.arrived(2), "another worker runs what was queued")
    assert leaving.process.poll() is None
    # It may have been asked for one of them before the signal; what it still had is to go, too.
    until(lambda: status(client, leaving) == "closing_gracefully", "it is to leave")
    reach(client)
    gate.open()
    assert leaving.wait() == 0, leaving.output
    assert running.result(timeout=SOON) == "leaving"
    assert client.gather(queued) == ["staying"] * 5
    assert sorted(gate.arrivals()) == ["queued-0", "queued-1", "queued-2", "queued-3", "queued-4",
                                       "running"]  # fmt: skip


def status(client, worker):
    return client.scheduler_info()["workers"][worker.address]["status"]


def slowly(gate, name):
    gate.arrive(name)
    gate.wait()
    return distributed.get_worker().name


def hold_the_lock(pipe):
    """A call into a library that keeps the interpreter's lock, and does not end.

    Whoever has read something knows that it has begun: nobody reads all that it writes.
    """
    size = 1 << 24
    ctypes.PyDLL(None).write(os.open(pipe, os.O_WRONLY), bytes(size), ctypes.c_size_t(size))


def test_a_supervised_worker_goes_also_when_python_is_stuck(start, join, tmp_path):
    scheduler, leaving, _ = two_workers(
        start, "--name", "leaving", "--supervised", stdin=subprocess.PIPE
    )
    client = join(scheduler)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    future = client.submit(hold_the_lock, pipe, workers=["leaving"])
    with open(pipe, "rb", buffering=0) as reader:
        assert reader.read(1)
        leaving.process.stdin.close()
        assert leaving.wait() == -signal.SIGKILL
    until(lambda: len(addresses(client)) == 1, "the scheduler sees it")
    assert future.status == "pending"


def test_workers_go_with_a_client_that_is_killed(gate):
    script = (
        "import os, sys\n"
        "from treadle import Client\n"
        "if __name__ == '__main__':\n"
        "    client = Client(workers=2)\n"
        "    print(*client.run(os.getpid).values(), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    victim = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pids = list(map(int, victim.stdout.readline().split()))
        assert len(pids) == 2
    finally:
        victim.kill()
        victim.communicate()
    until(lambda: not any(map(alive, pids)), "the workers end")
