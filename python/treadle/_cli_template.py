"""The hidden command ``treadle template``: has imported what workers need, and forks them."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

__all__ = ["template"]

_PR_SET_PDEATHSIG = 1
# Of a request.
_LARGEST = 1 << 16


@click.command(hidden=True)
@click.argument("descriptor", type=int)
def template(descriptor: int) -> None:
    """Fork a worker for each request that comes on a socket.

    A request is a packet, ``{"id": ..., "arguments": [...]}`` in JSON, with three descriptors: the
    standard input of the worker, its standard output and error, and its ``--channel``. The answers are
    ``{"id": ..., "pid": ...}``, and ``{"id": ..., "status": ...}`` when the worker has ended, as
    ``subprocess`` has it. When there will be no more requests, it ends after its workers.
    """
    channel = socket.socket(fileno=descriptor)
    _preload()
    arguments = _serve(channel)
    if arguments is None:
        return
    # This is a worker now, out of the loop that its parent goes on with.
    from treadle._cli_worker import worker

    worker.main(arguments, prog_name="python -m treadle worker")


def _preload() -> None:
    from treadle import _cli_worker  # noqa: F401
    from treadle._compat.distributed import worker_memory  # noqa: F401
    from treadle.worker import Service

    # It reads the versions of packages from their files.
    Service.info()
    with suppress(ImportError):
        from IPython.core import interactiveshell  # noqa: F401
    # What is never collected is never written to, and stays shared.
    gc.collect()
    gc.freeze()


def _serve(channel: socket.socket) -> list[str] | None:
    """Return the arguments of a worker, in its process, and nothing at the end."""
    numbers: dict[int, int] = {}

    def tell_end(pid: int, status: int) -> None:
        _tell(channel, id=numbers.pop(pid), status=os.waitstatus_to_exitcode(status))

    def reap(*_: Any) -> None:
        while numbers and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            tell_end(*ended)

    signal.signal(signal.SIGCHLD, reap)
    while True:
        packet, descriptors, _, _ = socket.recv_fds(channel, _LARGEST, 3)
        if not packet:
            break
        request = json.loads(packet)
        # Its end is told after its beginning.
        with _later(signal.SIGCHLD):
            pid = os.fork()
            if pid == 0:
                channel.close()
                *standard, own = descriptors
                _become_worker(*standard)
                return ["--channel", str(own), *map(str, request["arguments"])]
            numbers[pid] = request["id"]
            _tell(channel, id=request["id"], pid=pid)
        for descriptor in descriptors:
            os.close(descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while numbers:
        tell_end(*os.wait())
    return None


def _become_worker(standard_input: int, output: int) -> None:
    """Be as a process that was started by itself."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Who would be told of its end is gone with the template.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)
    for descriptor, standard in ((standard_input, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
    os.close(standard_input)
    os.close(output)
    # Python's own generator does so by itself.
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


def _tell(channel: socket.socket, **said: int) -> None:
    # Whoever is not there any more needs no answer.
    with suppress(OSError):
        channel.send(json.dumps(said).encode())


@contextmanager
def _later(number: signal.Signals) -> Iterator[None]:
    """Have a signal wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
