"""A worker process that ends while it is wanted is replaced, whatever its exit status."""

from __future__ import annotations

import errno
import os
import signal
import subprocess

import distributed
import pytest

from client_support import AGAINST, SOON, Gate, addresses, inc, pass_gate
from process_support import kill, send
from reliability_support import processes, until_replaced
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it reaches into treadle's cluster"),
    pytest.mark.usefixtures("quiet"),
]


def end_the_first_time(gate: Gate, status: int) -> str:
    gate.arrive()
    if not gate.arrived(2):
        os._exit(status)
    return "the second time"


def close_everything_the_first_time(gate: Gate) -> str:
    gate.arrive()
    if not gate.arrived(2):
        os.close(1)
        os.close(2)
        os.closerange(3, 256)
    return "the second time"


def end(status: int) -> None:
    os._exit(status)


def panic() -> None:
    """Raise what PyO3 takes for a panic of another thread: it panics again where it meets this."""
    kinds = BaseException.__subclasses__()
    raise next(kind for kind in kinds if kind.__name__ == "PanicException")("on purpose")


class PanicsOnce:
    """A result: the engine panics the first time that it asks for the size of one."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def __sizeof__(self) -> int:
        self.gate.arrive()
        if not self.gate.arrived(2):
            panic()
        return 2000


class PanicsInAPlugin(distributed.WorkerPlugin):
    """A plugin: the engine panics when it tells it that the first task is forgotten."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def transition(self, key: object, start: str, finish: str, **kwargs: object) -> None:
        if finish == "forgotten":
            self.gate.arrive()
            if not self.gate.arrived(2):
                panic()


def close_this_worker() -> None:
    import asyncio

    worker = distributed.get_worker()
    asyncio.run_coroutine_threadsafe(worker.close(), worker.loop.asyncio_loop).result(SOON)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_task_that_ends_its_worker_with_status_0_is_run_again(new_client, gate, workers):
    client = new_client(workers=workers)
    future = client.submit(end_the_first_time, gate, 0)
    assert future.result(timeout=SOON) == "the second time"
    client.wait_for_workers(workers, timeout=SOON)
    assert client.gather(client.map(inc, range(20))) == list(range(1, 21))


@pytest.mark.timeout(8 * SOON, method="signal")
def test_a_task_that_always_ends_its_worker_with_status_0_is_given_up(new_client):
    client = new_client(workers=1)
    future = client.submit(end, 0, retries=0)
    with pytest.raises(distributed.KilledWorker, match="exited with code 0"):
        # Several processes are started and end before that.
        future.result(timeout=4 * SOON)
    assert client.submit(inc, 1).result(timeout=2 * SOON) == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_whose_engine_panics_is_replaced(new_client, gate, workers, capfd):
    client = new_client(workers=workers)
    before = processes(client)
    future = client.submit(PanicsOnce, gate)
    distributed.wait(future, timeout=SOON)
    assert future.status == "finished"
    client.wait_for_workers(workers, timeout=SOON)
    assert len(before.items() - processes(client).items()) == 1
    assert client.gather(client.map(inc, range(20))) == list(range(1, 21))
    assert "a thread of the engine panicked: on purpose" in capfd.readouterr().err


def test_a_plugin_in_which_the_engine_panics_holds_up_no_task(new_client, gate):
    client = new_client(workers=1)
    before = processes(client)
    client.register_plugin(PanicsInAPlugin(gate))
    assert client.submit(inc, 1).result(timeout=SOON) == 2
    # Nothing runs: the worker's loop tells this, not the thread of a task.
    until(gate.arrived, "the plugin is told", SOON)
    assert client.gather(client.map(inc, range(20))) == list(range(1, 21))
    assert processes(client) == before


def test_a_task_in_which_the_engine_panics_fails_and_its_worker_goes_on(new_client):
    client = new_client(workers=1)
    before = processes(client)
    with pytest.raises(RuntimeError, match="engine panicked: on purpose"):
        client.submit(panic).result(timeout=SOON)
    assert client.gather(client.map(inc, range(20))) == list(range(1, 21))
    assert processes(client) == before


def test_a_worker_that_somebody_terminates_is_replaced(new_client):
    client = new_client(workers=2)
    values = client.map(bytes, range(5000, 5010))
    distributed.wait(values, timeout=SOON)
    # One after the other: values move to the one that stays.
    for name, before in processes(client).items():
        send(before, signal.SIGTERM)
        until_replaced(client, name, before)
        client.wait_for_workers(2, timeout=SOON)
    assert client.gather(values) == [bytes(n) for n in range(5000, 5010)]
    assert client.gather(client.map(inc, range(20))) == list(range(1, 21))


def test_the_only_worker_is_replaced_when_somebody_terminates_it(new_client, gate):
    client = new_client(workers=1)
    running = client.submit(pass_gate, gate, "ran")
    until(gate.arrived, "the task runs")
    waiting = client.map(inc, range(20))
    before = processes(client)["0"]
    send(before, signal.SIGTERM)
    gate.open()
    until_replaced(client, "0", before)
    assert running.result(timeout=SOON) == "ran"
    assert client.gather(waiting) == list(range(1, 21))


def test_a_worker_that_was_retired_stays_away_until_the_cluster_wants_it(new_client):
    client = new_client(workers=2)
    before = processes(client)
    retired = next(
        address
        for address, worker in client.scheduler_info()["workers"].items()
        if worker["name"] in (0, "0")
    )
    client.retire_workers([retired])
    worker = client.cluster.workers["0"]
    until(lambda: worker.left, "its process has ended")
    assert processes(client) == before
    assert len(addresses(client)) == 1
    # Whoever joins does not wait for it.
    second = distributed.Client(client.cluster, set_as_default=False)
    assert second.submit(inc, 1).result(timeout=SOON) == 2
    second.close()
    client.cluster.scale(2)
    client.wait_for_workers(2, timeout=SOON)
    assert before["0"] not in processes(client).values()
    client.cluster.scale(1)
    until(lambda: len(addresses(client)) == 1, "one is retired")
    assert len(processes(client)) == 1


def test_a_restart_that_comes_late_is_not_of_the_next_process(new_client):
    client = new_client(workers=2)
    worker = client.cluster.workers["1"]
    # The process has ended by then, and the next one has not begun.
    worker._died = lambda _death: worker.restart()
    before = processes(client)["1"]
    kill(before)
    until_replaced(client, "1", before)
    until(lambda: worker.announced, "the next one is there")
    client.retire_workers(names=["1"])
    until(lambda: worker.left, "it stays away")


def test_a_worker_that_closed_itself_stays_away(new_client):
    client = new_client(workers=2)
    before = processes(client)
    # Nobody waits for its answer, which the end of the worker may overtake.
    closing = client.submit(close_this_worker, workers=["1"])
    until(lambda: client.cluster.workers["1"].left, "its process has ended")
    assert processes(client) == before
    closing.release()
    assert client.submit(inc, 1).result(timeout=SOON) == 2


def test_what_ends_at_once_with_status_0_is_given_up():
    from treadle.cluster._worker_process import WorkerProcess

    deaths: list[object] = []
    worker = WorkerProcess("brief", ["--help"], deaths.append)
    until(lambda: worker.given_up, "it is given up")
    assert "before it was ready" in worker.given_up
    assert len(deaths) == 5
    worker.close()
    worker.join(SOON)


def test_a_task_that_closes_all_descriptors_is_run_again(new_client, gate):
    client = new_client(workers=1)
    future = client.submit(close_everything_the_first_time, gate)
    assert future.result(timeout=2 * SOON) == "the second time"


def test_a_worker_that_cannot_start_says_with_which_status_it_ends(start, tmp_path):
    preload = tmp_path / "preload.py"
    preload.write_text("raise RuntimeError('no, thank you')\n")
    scheduler = start("scheduler", "--port", "0")
    worker = start("worker", scheduler.address, "--preload", str(preload))
    assert worker.wait() == 1
    # Its traceback, too.
    assert "RuntimeError: no, thank you" in worker.output
    assert 'preload.py", line 1' in worker.output
    until(lambda: "exited with code 1" in scheduler.output, "the scheduler hears of its end")


class FailingStarts:
    """``subprocess.Popen``, which fails so many times after the first one."""

    def __init__(self, failures):
        self.real = subprocess.Popen
        self.failures = failures
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if 1 < self.calls <= 1 + self.failures:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return self.real(*args, **kwargs)


@pytest.mark.parametrize("failures", [2, 100])
def test_a_process_that_cannot_be_started_is_tried_again_and_given_up(monkeypatch, failures):
    from treadle.cluster._worker_process import WorkerProcess

    starts = FailingStarts(failures)
    monkeypatch.setattr(subprocess, "Popen", starts)
    deaths: list[object] = []
    worker = WorkerProcess("brief", ["--help"], deaths.append)
    until(lambda: worker.is_over, "it is over")
    if failures == 100:
        assert worker.given_up.endswith(os.strerror(errno.EAGAIN))
        assert (starts.calls, len(deaths)) == (6, 1)
    else:
        assert "before it was ready" in worker.given_up
        assert (starts.calls, len(deaths)) == (7, 5)
    worker.close()
    worker.join(SOON)


def test_what_ends_late_and_never_listened_is_given_up(monkeypatch):
    from treadle.cluster import _worker_process

    # However long each lives: it is too long for a test.
    monkeypatch.setattr(_worker_process, "_USEFUL", 0.0, raising=False)
    worker = _worker_process.WorkerProcess("brief", ["--help"], lambda _: None)
    until(lambda: worker.given_up, "it is given up")
    worker.close()
    worker.join(SOON)
