"""The process that forks workers goes on, whatever becomes of one request."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from client_support import AGAINST, SOON
from treadle.cluster import _worker_process
from treadle.cluster._template import Forked, Template
from waiting import until

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="it reaches into treadle's cluster"),
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only"),
]

# The first fork fails as where there are too many processes.
FORKLESS = """
import errno, os

fork = os.fork

def fail():
    os.fork = fork
    raise OSError(errno.EAGAIN, "no process on purpose")

os.fork = fail
from treadle.__main__ import main
main()
"""

# Signals of children come in another thread: they interrupt nothing that the first one waits in.
ELSEWHERE = """
import signal, threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
signal.pthread_sigmask = lambda *_: set()
from treadle.__main__ import main
main()
"""


@pytest.fixture
def forkless(tmp_path: Path) -> tuple[str, ...]:
    """How to start a `treadle` whose first fork fails."""
    script = tmp_path / "forkless.py"
    script.write_text(FORKLESS)
    return sys.executable, str(script)


@contextmanager
def opened(command: Sequence[str]) -> Iterator[Template]:
    template = Template(command)
    try:
        yield template
    finally:
        template.close()


def forked(template: Template, *arguments: str) -> Forked:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return template.start(arguments, theirs)


def test_a_fork_that_fails_is_answered_and_the_next_one_works(forkless):
    with opened(forkless) as template:
        first, second = forked(template, "--help"), forked(template, "--help")
        assert first.wait(SOON) == os.EX_OSERR
        assert isinstance(first.error, BlockingIOError)
        assert first.error.errno == errno.EAGAIN
        assert "no process on purpose" in str(first.error)
        assert second.pid > 0
        assert b"Run workers of the scheduler" in second.stdout.read()
        assert (second.wait(SOON), second.error) == (0, None)
        assert not template._workers


def test_a_worker_that_is_not_forked_is_started_by_itself(
    forkless, new_client, monkeypatch, caplog
):
    monkeypatch.setattr(_worker_process, "_COMMAND", forkless)
    client = new_client(workers=2, threads_per_worker=1)
    client.wait_for_workers(2, timeout=SOON)
    parents = client.run(os.getppid)
    own = [address for address, parent in parents.items() if parent == os.getpid()]
    assert len(own) == 1
    assert len(parents) == 2
    until(lambda: "no process on purpose" in caplog.text, lambda: caplog.text)
    # It was none that died.
    assert "is replaced" not in caplog.text


def test_ends_are_told_though_a_signal_interrupts_nothing(tmp_path: Path):
    script = tmp_path / "elsewhere.py"
    script.write_text(ELSEWHERE)
    with opened((sys.executable, str(script))) as template:
        for _ in range(2):
            assert forked(template, "--help").wait(SOON) == 0


def test_arguments_may_be_long():
    resources = " ".join(f"resource-{number}=1" for number in range(20_000))
    assert len(resources) > 1 << 18
    with opened(_worker_process._COMMAND) as template:
        worker = forked(template, "--resources", resources, "--help")
        assert b"Run workers of the scheduler" in worker.stdout.read()
        assert worker.wait(SOON) == 0


def test_a_request_that_cannot_be_sent_leaves_nothing_behind(monkeypatch: Any):
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOBUFS, "no room on purpose")

    with opened(_worker_process._COMMAND) as template:
        before = os.listdir("/proc/self/fd")
        with monkeypatch.context() as patch:
            patch.setattr(socket, "send_fds", fail)
            with pytest.raises(OSError, match="no room on purpose"):
                forked(template, "--help")
        assert not template._workers
        assert len(os.listdir("/proc/self/fd")) == len(before)
        assert forked(template, "--help").wait(SOON) == 0
