"""SIGSTOP of workers: for longer than the timeout they become strangers, for less nothing happens.

A scheduler that was stopped takes nobody for lost: it did not listen.
"""

from __future__ import annotations

import signal
import time

import distributed
import pytest

from client_support import AGAINST, SOON, Gate, addresses, inc
from process_support import send
from reliability_support import processes
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="the timeout is Treadle's"),
    pytest.mark.usefixtures("quiet"),
]


def where(gate: Gate, name: str) -> str:
    """Arrive, wait for the gate, and say which worker ran this, in a value of some size."""
    here = distributed.get_worker().name
    gate.arrive((name, here))
    gate.wait()
    return here * 2000


# Seconds. On a loaded machine a worker that runs may be silent for two.
TIMEOUT = 6


def start_two(start, timeout):
    scheduler = start("scheduler", "--port", "0", "--worker-timeout", str(timeout))
    names = ("a", "b")
    workers = {
        name: start("worker", scheduler.address, "--nthreads", "1", "--name", name)
        for name in names
    }
    for worker in workers.values():
        assert worker.address
    return scheduler, workers


def names(scheduler):
    return {worker["name"] for worker in scheduler.state()["workers"].values()}


def test_a_worker_that_was_stopped_for_too_long_is_a_stranger(start, join, gate):
    scheduler, workers = start_two(start, TIMEOUT)
    client = join(scheduler)
    kept = client.submit(bytes, 5000, workers=["a"], allow_other_workers=True, key="kept")
    distributed.wait(kept, timeout=SOON)
    running = client.submit(
        where, gate, "running", workers=["a"], allow_other_workers=True, key="running"
    )
    until(gate.arrived, "the task runs")
    workers["a"].send(signal.SIGSTOP)
    until(lambda: names(scheduler) == {"b"}, "the scheduler gives it up")
    until(lambda: gate.arrived(2), "the task runs elsewhere")
    gate.open()
    assert running.result(timeout=SOON) == "b" * 2000
    assert kept.result(timeout=SOON) == bytes(5000)
    # It wakes with a result of its own, which nobody wants any more.
    workers["a"].send(signal.SIGCONT)
    assert workers["a"].wait() == 1
    assert "connection to the scheduler" in workers["a"].output
    assert names(scheduler) == {"b"}
    assert client.submit(inc, 1, pure=False).result(timeout=SOON) == 2
    second = join(scheduler)
    found = distributed.Future("running", client=second)
    assert found.result(timeout=SOON) == "b" * 2000
    assert [name for name, _ in map(eval, gate.arrivals())] == ["running", "running"]


def test_a_worker_of_that_name_comes_back(start, join):
    scheduler, workers = start_two(start, TIMEOUT)
    client = join(scheduler)
    workers["a"].send(signal.SIGSTOP)
    until(lambda: names(scheduler) == {"b"}, "the scheduler gives it up")
    again = start("worker", scheduler.address, "--nthreads", "1", "--name", "a")
    assert again.address
    assert names(scheduler) == {"a", "b"}
    workers["a"].send(signal.SIGCONT)
    assert workers["a"].wait() == 1
    # The one that left was the stopped one, not the one that has its name now.
    assert names(scheduler) == {"a", "b"}
    futures = client.map(inc, range(20), pure=False, workers=["a"])
    assert client.gather(futures) == list(range(1, 21))


def test_a_short_stop_loses_nothing(start, join, gate):
    scheduler, workers = start_two(start, 120)
    client = join(scheduler)
    before = set(addresses(client))
    futures = [client.submit(where, gate, str(i), key=f"task-{i}") for i in range(20)]
    until(lambda: gate.arrived(2), "both workers run something")
    workers["a"].send(signal.SIGSTOP)
    gate.open()
    time.sleep(1)  # it is stopped for a while; nothing depends on how long
    workers["a"].send(signal.SIGCONT)
    assert {value[0] for value in client.gather(futures)} <= {"a", "b"}
    assert set(addresses(client)) == before
    assert len(gate.arrivals()) == 20


def test_a_scheduler_that_was_stopped_loses_nobody(start, join):
    scheduler, _workers = start_two(start, TIMEOUT)
    client = join(scheduler)
    before = set(addresses(client))
    scheduler.send(signal.SIGSTOP)
    time.sleep(TIMEOUT + 1)
    scheduler.send(signal.SIGCONT)
    assert client.gather(client.map(inc, range(20), pure=False)) == list(range(1, 21))
    assert set(addresses(client)) == before
    assert "lost" not in scheduler.output


def test_a_cluster_replaces_a_worker_that_was_stopped_for_too_long(new_client):
    client = new_client(worker_timeout=TIMEOUT)
    before = dict(processes(client))
    futures = client.map(inc, range(10), pure=False)
    send(before["0"], signal.SIGSTOP)
    assert client.gather(futures) == list(range(1, 11))
    until(lambda: len(addresses(client)) == 1, "the scheduler gives it up")
    send(before["0"], signal.SIGCONT)
    until(lambda: processes(client)["0"] != before["0"], "it is replaced")
    client.wait_for_workers(2, timeout=SOON)
    assert client.gather(client.map(inc, range(10), pure=False)) == list(range(1, 11))
