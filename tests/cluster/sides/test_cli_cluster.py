"""`treadle scheduler` and `treadle worker` as processes, as people run them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ports import free_port
from process_support import Process

Start = Callable[..., Process]


def end(process: Process, number: int = signal.SIGTERM) -> int:
    """Ask a process to end; returns its exit status."""
    process.send(number)
    return process.wait()


def close_input(process: Process) -> int:
    """End the standard input of a process; returns its exit status."""
    assert process.process.stdin is not None
    process.process.stdin.close()
    return process.wait()


@pytest.fixture
def scheduler(start: Start) -> Process:
    return start("scheduler", "--port", "0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_scheduler_ends_when_it_is_asked_to(scheduler: Process, number: int) -> None:
    assert scheduler.address
    assert end(scheduler, number) == 0


def test_a_supervised_scheduler_ends_with_its_input(start: Start) -> None:
    process = start("scheduler", "--port", "0", "--supervised", stdin=subprocess.PIPE)
    assert process.address
    assert close_input(process) == 0


def test_a_taken_port_is_named(start: Start, scheduler: Process) -> None:
    address = scheduler.address
    process = start("scheduler", address)
    assert process.wait() == 1
    assert "in use" in process.output


def test_a_worker_leaves_when_it_is_asked_to(start: Start, scheduler: Process) -> None:
    worker = start("worker", scheduler.address, "--nthreads", "1", "--resources", "GPU=1")
    assert worker.address != ""
    assert end(worker) == 0


def test_a_worker_ends_at_once_when_it_is_interrupted(start: Start, scheduler: Process) -> None:
    worker = start("worker", scheduler.address, "--nthreads", "1")
    assert worker.address
    assert end(worker, signal.SIGINT) == 0


def test_a_supervised_worker_ends_with_its_input(start: Start, scheduler: Process) -> None:
    worker = start("worker", scheduler.address, "--supervised", stdin=subprocess.PIPE)
    assert worker.address
    assert close_input(worker) == 0


def test_a_worker_that_loses_its_scheduler_says_so(start: Start, scheduler: Process) -> None:
    worker = start("worker", scheduler.address, "--nthreads", "1")
    assert worker.address
    scheduler.process.kill()
    assert worker.wait() == 1
    assert "connection to the scheduler" in worker.output


def test_a_worker_without_a_scheduler_says_so(start: Start) -> None:
    process = start("worker", f"treadle://127.0.0.1:{free_port()}")
    assert process.wait() == 1
    assert "is the scheduler running?" in process.output


def test_a_worker_of_another_cluster_is_refused(
    start: Start, scheduler: Process, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.touch(mode=0o600)
    other.write_text("the secret of another cluster")
    process = start("worker", scheduler.address, "--secret-file", str(other))
    assert process.wait() == 1
    assert "secret" in process.output


def test_the_scheduler_file_is_there_while_the_scheduler_is(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    scheduler = start("scheduler", "--port", "0", "--scheduler-file", str(file))
    address = scheduler.address
    assert json.loads(file.read_text())["address"] == address
    worker = start("worker", "--scheduler-file", str(file), "--nthreads", "1")
    assert worker.address
    assert end(worker) == 0
    assert end(scheduler) == 0
    assert not file.exists()


def test_nothing_is_left_in_the_local_directory(
    start: Start, scheduler: Process, tmp_path: Path
) -> None:
    directory = tmp_path / "local"
    worker = start("worker", scheduler.address, "--local-directory", str(directory))
    assert worker.address
    assert len(list(directory.iterdir())) == 1
    assert end(worker) == 0
    assert list(directory.iterdir()) == []


def test_certificates_let_a_worker_in(start: Start, tmp_path: Path) -> None:
    assert start("certs", "--dir", str(tmp_path / "certs")).wait() == 0
    prefix = str(tmp_path / "certs" / "node")
    scheduler = start("scheduler", "--port", "0", "--tls", prefix)
    address = scheduler.address
    assert address.startswith("treadle+tls://")
    worker = start("worker", address, "--tls", prefix, "--nthreads", "1")
    assert worker.address.startswith("treadle+tls://")
    assert end(worker) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("worker",), "ADDRESS"),
        (("worker", "a:1", "--resources", "GPU"), "NAME=AMOUNT"),
        *[
            (("worker", "a:1", "--memory-limit", limit), "2GiB")
            for limit in ("lots", "-5", "-1GiB", "1e400")
        ],
        (("worker", "a:1", "--nanny", "--memory-limit", "-5"), "'-5': give bytes"),
        (("shuffle-server", "a:1", "--memory-limit", "-5"), "'-5': give bytes"),
        (("shuffle-server", "a:1", "--disk-limit", "0.5"), "--disk-limit='0.5': give bytes"),
        (("worker", "a:1", "--scheduler-timeout", "nan"), "'nan' is no number"),
        (("scheduler", "--worker-timeout", "1e300"), "--worker-timeout"),
        (("scheduler", "--scheduler-file", "/no/such/a.json"), "there is no directory /no/such"),
        (("scheduler", "--log-file", "/no/such/a.log"), "there is no directory /no/such"),
        (("scheduler", "--http", "127.0.0.1:70000"), "HOST:PORT"),
        (("scheduler", "--http", "::1:0"), "[::1]:7787"),
        (("scheduler", "--http", "no.such.host.invalid:0"), "no such host"),
        (("shuffle-server", "foo"), "treadle://foo has no port"),
        (("scheduler", "foo"), "treadle://foo has no port"),
        (("worker", "[::1]"), "treadle://[::1] has no port"),
        (("worker", "foo:bar"), "'bar' is no port"),
        (("worker", "treadle://foo:65536"), "'65536' is no port"),
        (("scheduler", "a:1", "--port", "1"), "--host and --port"),
        (("scheduler", "--http", "foo"), "--http"),
        (("scheduler", "treadle+tls://127.0.0.1:0"), "--tls PREFIX"),
        (("worker", "treadle+tls://127.0.0.1:1"), "--tls PREFIX"),
        (("worker", "tls://127.0.0.1:1"), "treadle+tls://127.0.0.1:1 needs certificates"),
        (("scheduler", "tcp://foo"), "treadle://foo has no port"),
    ],
)
def test_options_that_make_no_sense(start: Start, arguments: tuple[str, ...], message: str) -> None:
    process = start(*arguments)
    assert process.wait() == 2
    assert message in process.output
    usage, _, _, error = process.lines
    assert usage.startswith("Usage: ")
    assert error.startswith("Error: ")


def test_an_address_that_is_wrong_is_said_once(start: Start) -> None:
    process = start("worker", "--nanny", "--nworkers", "2", "foo")
    assert process.wait() == 2
    assert process.output.count("foo has no port") == 1
    assert process.lines[-1].startswith("Error: ")


def test_certificates_that_are_not_there_are_said_once(start: Start) -> None:
    process = start("worker", "127.0.0.1:1", "--tls", "/nowhere/node")
    assert process.wait() == 1
    (line,) = process.lines
    assert line.startswith(
        "Error: --tls /nowhere/node: there is no file /nowhere/ca.pem; give the prefix"
    )


def test_a_file_that_cannot_be_written_is_named(start: Start) -> None:
    process = start("scheduler", "--port", "0", "--scheduler-file", "/proc/scheduler.json")
    assert process.wait() == 1
    assert process.lines == ["Error: /proc/scheduler.json: No such file or directory"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_pages_are_at_the_host_that_is_named(start: Start, host: str) -> None:
    scheduler = start("scheduler", "--port", "0", "--http", f"{host}:0")
    expected = "127.0.0.1" if host == "localhost" else host
    assert scheduler.http.startswith(f"http://{expected}:")
    assert "workers" in scheduler.state()
