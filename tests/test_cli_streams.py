"""Commands whose output nobody reads, or that have none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from waiting import until

if sys.platform != "linux":
    pytest.skip("the commands need Linux", allow_module_level=True)

TIMEOUT = 60
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts commands, and ends those that are left."""
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("a secret of these tests alone")
    environment = {**os.environ, "TREADLE_SECRET_FILE": str(secret)}
    # What is not flushed stays, as it does for users.
    environment.pop("PYTHONUNBUFFERED", None)
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "treadle", *arguments],
            env=environment,
            cwd=tmp_path,
            text=True,
            **{"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, **options},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=TIMEOUT)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("worker", "--help"),
        ("certs",),
        ("bench", "transfer", "--data-mb", "1", "--iters", "2"),
        ("probe", "--local", "2", "--seconds", "0.05"),
    ],
)
def test_who_does_not_read_the_output_gets_no_traceback(
    start: Start, arguments: tuple[str, ...]
) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        process = start(*arguments, stdout=writes)
    finally:
        os.close(writes)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 1
    assert errors in ("", "Error: Broken pipe\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("certs",),
        ("bench", "transfer", "--data-mb", "1", "--iters", "2"),
        ("probe", "--local", "2", "--seconds", "0.05"),
    ],
)
def test_a_command_needs_no_output(start: Start, arguments: tuple[str, ...]) -> None:
    process = start(*arguments, preexec_fn=partial(os.close, 1))
    _, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (0, "")


def test_a_server_whose_output_nobody_reads_goes_on(start: Start, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    file = tmp_path / "scheduler.json"
    try:
        scheduler = start("scheduler", "--port", "0", "--scheduler-file", str(file), stdout=writes)
    finally:
        os.close(writes)
    until(lambda: file.exists() or scheduler.poll() is not None, "the scheduler is there")
    # Its output goes nowhere from then on.
    until(lambda: standard(scheduler.pid)[1] == os.devnull or scheduler.poll() is not None)
    assert scheduler.poll() is None
    scheduler.send_signal(signal.SIGTERM)
    _, errors = scheduler.communicate(timeout=TIMEOUT)
    assert scheduler.returncode == 0
    assert "Broken pipe" not in errors


def standard(pid: int) -> list[str]:
    """What the standard streams of a process are."""
    return [os.readlink(f"/proc/{pid}/fd/{descriptor}") for descriptor in range(3)]


def close_all() -> None:
    os.closerange(0, 3)


def test_a_cluster_needs_no_standard_streams(start: Start, tmp_path: Path) -> None:
    """No socket is taken for one of them."""
    file = tmp_path / "scheduler.json"
    started: dict[str, Any] = {"preexec_fn": close_all, "stderr": None}
    scheduler = start("scheduler", "--port", "0", "--scheduler-file", str(file), **started)
    until(lambda: file.exists() or scheduler.poll() is not None, "the scheduler is there")
    assert scheduler.poll() is None
    assert standard(scheduler.pid) == [os.devnull] * 3
    log = tmp_path / "worker.log"
    options = ("--no-nanny", "--log-file", str(log), "--scheduler-file", str(file))
    worker = start("worker", *options, **started)
    until(lambda: log.exists() or worker.poll() is not None, "the worker is there")
    assert worker.poll() is None
    for process in (worker, scheduler):
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 0
    assert not file.exists()
