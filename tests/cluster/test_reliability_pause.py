"""What was stopped and goes on (Ctrl-Z and `fg`, a paused container, a debugger) has lost nobody.

The clusters and their clients are processes apart, because the test has to go on meanwhile.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from client_support import AGAINST, SOON, Gate
from process_support import HERE, send
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the timeouts are Treadle's")

# Seconds: longer than any timeout between processes that run, 30 and worker_timeout=10.
LONG = 60
LONGER_THAN_A_PEER = 35

# A client with tasks that run, wait and are done, and with values at workers.
SCRIPT = """
import sys
import threading
import time
import distributed, treadle
from client_support import Gate, inc
from pathlib import Path

def hold(gate, value):
    # Longer than the gate itself would, which counts the time of a stop.
    gate.arrive()
    until = time.monotonic() + 600
    while not (gate.directory / "open").exists() and time.monotonic() < until:
        time.sleep(0.01)
    return value

def opened(directory):
    while not (directory / "open").exists():
        time.sleep(0.01)
    return __import__("os").getpid()

def main(address, directory):
    client = treadle.Client(address) if address else treadle.Client(workers=2)
    client.wait_for_workers(2)
    pids = client.run(__import__("os").getpid)
    gate = Gate(Path(directory))
    values = client.map(bytes, range(5000, 5020))
    distributed.wait(values)
    data = client.scatter(b"x" * 50_000)
    running = client.map(hold, [gate] * 2, range(2), pure=False)
    while not gate.arrived(2):
        time.sleep(0.01)
    waiting = client.submit(sum, [*client.map(len, values), client.submit(len, data)])
    later = client.submit(sum, [*running, waiting])
    lock = distributed.Lock("held")
    assert lock.acquire()
    calls = []
    calling = threading.Thread(
        target=lambda: calls.append(client.run(opened, gate.directory)), daemon=True
    )
    calling.start()
    # In one piece: workers print to the same file.
    print(" ".join(["ready", *map(str, pids.values()), "now\\n"]), end="", flush=True)
    assert not distributed.Lock("held").acquire(timeout=0.1), "the lock has two owners"
    assert later.result() == 1 + sum(range(5000, 5020)) + 50_000
    assert client.gather(client.map(inc, range(50), pure=False)) == list(range(1, 51))
    assert client.run(__import__("os").getpid) == pids, "a worker was lost"
    calling.join(60)
    assert calls == [pids], "a call was lost"
    print("done", flush=True)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


class Job:
    """The client above, in a process, and the processes of its workers."""

    def __init__(self, tmp_path: Path, name: str, address: str = "", secret: Path | None = None):
        directory = tmp_path / name
        directory.mkdir()
        self.gate = Gate(directory)
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        if secret is not None:
            environment["TREADLE_SECRET_FILE"] = str(secret)
        script = tmp_path / f"{name}.py"
        script.write_text(SCRIPT)
        self.output = tmp_path / f"{name}.txt"
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(
                [sys.executable, script, address, directory],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        # The line may come in pieces.
        until(lambda: " now" in self.text() or self.process.poll() is not None, name, 2 * SOON)
        [line] = [line for line in self.text().splitlines() if line.startswith("ready")]
        self.workers = [int(pid) for pid in line.split()[1:-1]]

    def text(self) -> str:
        return self.output.read_text()

    def check(self) -> None:
        self.gate.open()
        status = self.process.wait(2 * SOON)
        assert (status, "done" in self.text()) == (0, True), self.text()
        # Nothing was run twice.
        assert len(self.gate.arrivals()) == 2

    def end(self) -> None:
        self.gate.open()
        for pid in (self.process.pid, *self.workers):
            send(pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait(SOON)


@pytest.fixture
def cluster(start, secret, tmp_path):
    """Starts clusters of commands, each with a job that runs; returns the scheduler and the job."""
    made = []

    def cluster(kind: str, *options: str):
        scheduler = start("scheduler", "--port", "0", *options)
        for name in ("a", "b"):
            assert start("worker", scheduler.address, "--nthreads", "1", "--name", name).address
        made.append(Job(tmp_path, kind, scheduler.address, secret))
        return scheduler, made[-1]

    try:
        yield cluster
    finally:
        for job in made:
            job.end()


@pytest.fixture
def local(tmp_path):
    """A job on a cluster of its client's own."""
    job = Job(tmp_path, "local")
    try:
        yield job
    finally:
        job.end()


def stop(pids, seconds):
    for pid in pids:
        send(pid, signal.SIGSTOP)
    # It is stopped for so long; the time is what the test is about.
    time.sleep(seconds)
    for pid in pids:
        send(pid, signal.SIGCONT)


@pytest.mark.timeout(LONG + 6 * SOON, method="signal")
def test_processes_that_are_stopped_together_lose_nobody(cluster, local):
    scheduler, commands = cluster("commands")
    pids = [scheduler.pid, *commands.workers, commands.process.pid]
    stop([*pids, *local.workers, local.process.pid], LONG)
    commands.check()
    local.check()
    assert "lost" not in scheduler.output


@pytest.mark.timeout(LONGER_THAN_A_PEER + 8 * SOON, method="signal")
def test_who_is_stopped_alone_is_waited_for(cluster, local):
    scheduler, commands = cluster("commands")
    witness, alone = cluster("alone")
    patient, waiting = cluster("patient", "--worker-timeout", str(LONG))
    # Ctrl-Z stops the client of a cluster of its own, which has the scheduler, and no worker.
    pids = [scheduler.pid, local.process.pid, alone.process.pid, waiting.workers[0]]
    stop(pids, LONGER_THAN_A_PEER)
    commands.check()
    local.check()
    alone.check()
    waiting.check()
    for command in (scheduler, witness, patient):
        assert "lost" not in command.output
