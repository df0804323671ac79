"""`treadle scheduler` and `treadle worker` as processes, as people run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from python_sides import SOON

Start = Callable[..., "Process"]


class Process:
    """A command of `treadle`, and what it printed."""

    def __init__(self, *arguments: str, secret: Path, stdin: int = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "treadle", *arguments],
            env={**os.environ, "TREADLE_SECRET_FILE": str(secret)},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # pytest may have been started in the background, where interrupts are ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def address(self) -> str:
        """Where it listens, as soon as it does."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("listening at "):
                return line.removeprefix("listening at ").strip()
        raise AssertionError(self.process.communicate(timeout=SOON))

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SOON)

    def wait(self) -> tuple[int, str]:
        """The exit status, and standard error."""
        _, error = self.process.communicate(timeout=SOON)
        return self.process.returncode, error


@pytest.fixture
def start(secret: Path) -> Iterator[Start]:
    started: list[Process] = []

    def start(*arguments: str, stdin: int = subprocess.DEVNULL) -> Process:
        process = Process(*arguments, secret=secret, stdin=stdin)
        started.append(process)
        return process

    yield start
    for process in started:
        process.process.kill()
        process.process.communicate(timeout=SOON)


@pytest.fixture
def scheduler(start: Start) -> Process:
    return start("scheduler", "--port", "0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_scheduler_ends_when_it_is_asked_to(scheduler: Process, number: int) -> None:
    scheduler.address()
    assert scheduler.end(number) == 0


def test_a_supervised_scheduler_ends_with_its_input(start: Start) -> None:
    process = start("scheduler", "--port", "0", "--supervised", stdin=subprocess.PIPE)
    process.address()
    assert process.wait()[0] == 0


def test_a_taken_port_is_named(start: Start, scheduler: Process) -> None:
    address = scheduler.address()
    status, error = start("scheduler", address).wait()
    assert status == 1
    assert "in use" in error


def test_a_worker_leaves_when_it_is_asked_to(start: Start, scheduler: Process) -> None:
    worker = start("worker", scheduler.address(), "--nthreads", "1", "--resources", "GPU=1")
    assert worker.address() != ""
    assert worker.end() == 0


def test_a_worker_ends_at_once_when_it_is_interrupted(start: Start, scheduler: Process) -> None:
    worker = start("worker", scheduler.address(), "--nthreads", "1")
    worker.address()
    assert worker.end(signal.SIGINT) == 0


def test_a_supervised_worker_ends_with_its_input(start: Start, scheduler: Process) -> None:
    worker = start("worker", scheduler.address(), "--supervised", stdin=subprocess.PIPE)
    worker.address()
    assert worker.wait()[0] == 0


def test_a_worker_that_loses_its_scheduler_says_so(start: Start, scheduler: Process) -> None:
    worker = start("worker", scheduler.address(), "--nthreads", "1")
    worker.address()
    scheduler.process.kill()
    status, error = worker.wait()
    assert status == 1
    assert "connection to the scheduler" in error


def test_a_worker_without_a_scheduler_says_so(start: Start, scheduler: Process) -> None:
    address = scheduler.address()
    scheduler.end()
    status, error = start("worker", address).wait()
    assert status == 1
    assert "is the scheduler running?" in error


def test_a_worker_of_another_cluster_is_refused(
    start: Start, scheduler: Process, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text("the secret of another cluster")
    status, error = start("worker", scheduler.address(), "--secret-file", str(other)).wait()
    assert status == 1
    assert "secret" in error


def test_the_scheduler_file_is_there_while_the_scheduler_is(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    scheduler = start("scheduler", "--port", "0", "--scheduler-file", str(file))
    address = scheduler.address()
    assert json.loads(file.read_text())["address"] == address
    worker = start("worker", "--scheduler-file", str(file), "--nthreads", "1")
    worker.address()
    assert worker.end() == 0
    assert scheduler.end() == 0
    assert not file.exists()


def test_nothing_is_left_in_the_local_directory(
    start: Start, scheduler: Process, tmp_path: Path
) -> None:
    directory = tmp_path / "local"
    worker = start("worker", scheduler.address(), "--local-directory", str(directory))
    worker.address()
    assert len(list(directory.iterdir())) == 1
    assert worker.end() == 0
    assert list(directory.iterdir()) == []


def test_certificates_let_a_worker_in(start: Start, tmp_path: Path) -> None:
    assert start("certs", "--dir", str(tmp_path / "certs")).wait()[0] == 0
    prefix = str(tmp_path / "certs" / "node")
    scheduler = start("scheduler", "--port", "0", "--tls", prefix)
    address = scheduler.address()
    assert address.startswith("treadle+tls://")
    worker = start("worker", address, "--tls", prefix, "--nthreads", "1")
    assert worker.address().startswith("treadle+tls://")
    assert worker.end() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("worker",), "ADDRESS"),
        (("worker", "a:1", "--resources", "GPU"), "NAME=AMOUNT"),
        (("worker", "a:1", "--memory-limit", "lots"), "2GiB"),
        (("scheduler", "a:1", "--port", "1"), "--host and --port"),
    ],
)
def test_options_that_make_no_sense(start: Start, arguments: tuple[str, ...], message: str) -> None:
    status, error = start(*arguments).wait()
    assert status == 2
    assert message in error
