"""The hidden command ``treadle template``: has imported what workers need, and forks them."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

__all__ = ["template"]

_PR_SET_PDEATHSIG = 1
# Of a request: the arguments are in a file.
_LARGEST = 4096
_DESCRIPTORS = 4


@click.command(hidden=True)
@click.argument("descriptor", type=int)
def template(descriptor: int) -> None:
    """Fork a worker for each request that comes on a socket.

    A request is a packet, ``{"id": ...}`` in JSON, with four descriptors: a file with the arguments in
    JSON, however long they are, the standard input of the worker, its standard output and error, and
    its ``--channel``. The answers are ``{"id": ..., "pid": ...}``, and ``{"id": ..., "status": ...}``
    when the worker has ended, as ``subprocess`` has it. If it cannot be forked, the only answer is
    ``{"id": ..., "errno": ..., "error": ...}``. When there will be no more requests, the template ends
    after its workers.
    """
    channel = socket.socket(fileno=descriptor)
    _preload()
    arguments = _serve(channel)
    if arguments is None:
        return
    # This is a worker now, out of the loop that its parent goes on with.
    from treadle.cli._worker import worker

    worker.main(arguments, prog_name="python -m treadle worker")


def _preload() -> None:
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

    with _ends() as ends:
        poller = select.poll()
        for readable in (channel, ends):
            poller.register(readable, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if ends.fileno() in ready:
                ends.recv(_LARGEST)
                while numbers and (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    tell_end(*ended)
            if channel.fileno() not in ready:
                continue
            packet, descriptors, _, _ = socket.recv_fds(channel, _LARGEST, _DESCRIPTORS)
            if not packet:
                break
            number = json.loads(packet)["id"]
            try:
                pid = os.fork()
            except OSError as error:
                # There may be too many processes, or too little memory, for a moment.
                _tell(channel, id=number, errno=error.errno, error=error.strerror)
            else:
                if pid == 0:
                    channel.close()
                    given, *standard, own = descriptors
                    with os.fdopen(given, "rb") as file:
                        arguments = json.load(file)
                    _become_worker(*standard)
                    return ["--channel", str(own), *map(str, arguments)]
                numbers[pid] = number
                _tell(channel, id=number, pid=pid)
            for descriptor in descriptors:
                os.close(descriptor)
    while numbers:
        tell_end(*os.wait())
    return None


@contextmanager
def _ends() -> Iterator[socket.socket]:
    """Yield what can be read when a child has ended. A child leaves it, too, and hears of none.

    A signal that comes right before a call that waits does not end that call, and a handler in Python runs after it.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _become_worker(standard_input: int, output: int) -> None:
    """Be as a process that was started by itself."""
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


def _tell(channel: socket.socket, **said: Any) -> None:
    # Whoever is not there any more needs no answer.
    with suppress(OSError):
        channel.send(json.dumps(said).encode())
