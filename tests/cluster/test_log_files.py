"""What `treadle scheduler` and `treadle worker` log, and where to."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import pytest

from client_support import AGAINST, SOON
from process_support import kill
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the options are Treadle's")

KEPT = 4


def text_of(path):
    with suppress(FileNotFoundError):
        return path.read_text()
    return ""


def test_a_log_file_is_bounded_and_keeps_the_newest_lines(start, join, tmp_path):
    scheduler = start("scheduler", "--port", "0")
    log = tmp_path / "worker.log"
    arguments = ("--nthreads", "1", "--log-file", str(log), "--log-file-size", "100kB")
    worker = start("worker", scheduler.address, *arguments)
    assert worker.address
    client = join(scheduler)

    def say(number):
        print(f"round {number};")
        os.write(2, b"x" * 150_000 + b"\n")

    earlier = [log.with_name(f"worker.log.{number + 1}") for number in range(KEPT)]
    for number in range(KEPT + 3):
        client.submit(say, number, pure=False).result(timeout=SOON)
        until(lambda number=number: f"round {number};" in text_of(earlier[0]), "it is renamed")
    for age, path in enumerate(earlier):
        assert f"round {KEPT + 2 - age};" in path.read_text()
        assert path.stat().st_mode & 0o077 == 0
    assert len(list(tmp_path.glob("worker.log*"))) == KEPT + 1
    assert "round" not in worker.output
    # Somebody else's rotation, too.
    log.rename(tmp_path / "renamed")
    until(log.exists, "it is made anew")
    until(lambda: log.samefile(f"/proc/{worker.pid}/fd/1"), "it is written to")
    client.submit(os.write, 1, b"after that\n").result(timeout=SOON)
    assert "after that" in log.read_text()


def test_the_last_words_of_a_worker_are_in_its_log_file(start, join, tmp_path):
    log = tmp_path / "scheduler.log"
    scheduler = start("scheduler", "--port", "0", "--log-file", str(log))
    own = tmp_path / "worker.log"
    worker = start("worker", scheduler.address, "--nthreads", "1", "--log-file", str(own))
    assert worker.address
    client = join(scheduler)

    def die():
        os.write(2, b"last words\n")
        os.kill(os.getpid(), signal.SIGKILL)

    future = client.submit(die)
    worker.process.wait(SOON)
    assert own.read_text().endswith("last words\n")
    until(lambda: "is lost" in text_of(log), "the scheduler says so")
    assert " WARN treadle::scheduler: worker " in log.read_text()
    assert "is lost" not in scheduler.output
    future.cancel()


@pytest.mark.parametrize(
    ("wanted", "is_said"),
    [(None, True), ("error", False), ("off,treadle::scheduler=warn", True), ("treadle=loud", True)],
)
def test_the_environment_says_what_is_logged(start, monkeypatch, wanted, is_said):
    if wanted is not None:
        monkeypatch.setenv("TREADLE_LOG", wanted)
    scheduler = start("scheduler", "--port", "0")
    worker = start("worker", scheduler.address, "--nthreads", "1", "--name", "first")
    assert worker.address
    kill(worker.pid)
    other = start("worker", scheduler.address, "--nthreads", "1")
    assert other.address
    until(lambda: len(scheduler.state()["workers"]) == 1, "it is lost")
    if is_said:
        until(lambda: "worker first" in scheduler.output, "it is said")
    scheduler.send(signal.SIGTERM)
    scheduler.wait()
    assert ("worker first" in scheduler.output) == is_said
    assert ("TREADLE_LOG" in scheduler.output) == (wanted == "treadle=loud")


@pytest.mark.parametrize("file", ["none/log", "/proc/none-log"])
def test_a_log_file_that_cannot_be_opened_is_named(start, tmp_path, file):
    scheduler = start("scheduler", "--port", "0", "--log-file", str(tmp_path / file))
    # A directory that is not there is seen before anything begins.
    assert scheduler.wait() == (1 if file.startswith("/") else 2)
    assert str(tmp_path / file) in scheduler.output
    assert "Traceback" not in scheduler.output
