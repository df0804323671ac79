"""A process that forks workers: what they all import is imported once, and is in memory once."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count
from typing import IO, Any

from treadle.cluster._fork_descriptors import withhold

__all__ = ["Forked", "Template"]

# Of an answer.
_LARGEST = 4096
# Seconds for the template to import what workers need.
_PATIENCE = 60.0
# Seconds that it waits for a next worker while it has none. distributed's tests wait five for threads to end.
_IDLE = 1.0


class Template:
    """``treadle template``, which has imported what a worker needs before it is one.

    Linux only. It ends when it has had no worker for a second.

    Parameters
    ----------
    command
        Starts ``treadle``: workers are of the same interpreter.
    options
        Of :class:`subprocess.Popen`: the environment and the working directory are its workers', too.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        withhold(self._channel)
        with theirs:
            self._process = subprocess.Popen(
                [*command, "template", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                **options,
            )
        self._lock = threading.Lock()
        self._numbers = count()
        self._workers: dict[int, Forked] = {}
        self._used = time.monotonic()
        self._over = False
        threading.Thread(target=self._listen, name="treadle-template", daemon=True).start()

    def start(self, arguments: Sequence[str], channel: socket.socket) -> Forked:
        """Fork a worker; ``arguments`` are of ``treadle worker``, the channel is its ``--channel``.

        If the template cannot fork it, :attr:`Forked.error` says why.

        Raises
        ------
        OSError
            The template has ended, or there is no room for the request.
        """
        with ExitStack() as theirs:
            # In a file it may be longer than a packet.
            given = theirs.enter_context(os.fdopen(os.memfd_create("treadle-worker"), "w+b"))
            given.write(json.dumps(list(arguments)).encode())
            given.seek(0)
            with ExitStack() as ours:
                standard_input, stdin = map(os.fdopen, os.pipe(), ("rb", "wb"), (0, 0))
                theirs.callback(standard_input.close)
                ours.callback(stdin.close)
                stdout, output = map(os.fdopen, os.pipe(), ("rb", "wb"))
                theirs.callback(output.close)
                ours.callback(stdout.close)
                worker = Forked(stdin, stdout)
                self._ask(worker, [given, standard_input, output, channel])
                ours.pop_all()
        return worker

    def _ask(self, worker: Forked, descriptors: Sequence[IO[bytes] | socket.socket]) -> None:
        with self._lock:
            if self._over:
                raise BrokenPipeError("the process that forks workers has ended")
            number = next(self._numbers)
            self._workers[number] = worker
            self._used = time.monotonic()
        request = json.dumps({"id": number}).encode()
        try:
            socket.send_fds(self._channel, [request], [one.fileno() for one in descriptors])
        except OSError:
            with self._lock:
                self._workers.pop(number, None)
            raise

    def _listen(self) -> None:
        with suppress(OSError):
            while packet := self._receive():
                self._answered(json.loads(packet))
        with self._lock:
            self._over = True
            left = list(self._workers.values())
        # The kernel ends them with it.
        for worker in left:
            worker.ended(-signal.SIGKILL)
        self._process.wait()
        self._channel.close()

    def _receive(self) -> bytes:
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        while not poller.poll(1000 * _IDLE):
            self._end_if_idle()
        return self._channel.recv(_LARGEST)

    def _end_if_idle(self) -> None:
        with self._lock:
            if self._workers or time.monotonic() < self._used + _IDLE:
                return
        self.close()

    def _answered(self, answer: dict[str, Any]) -> None:
        number = answer["id"]
        if "pid" in answer:
            self._workers[number].began(answer["pid"])
        elif "error" in answer:
            self._workers.pop(number).failed(OSError(answer["errno"], answer["error"]))
        else:
            self._workers.pop(number).ended(answer["status"])

    @property
    def is_over(self) -> bool:
        """Whether it forks no more."""
        return self._over

    def close(self) -> None:
        """Fork no more: it ends after its workers, which is not waited for."""
        with self._lock:
            self._over = True
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)


class Forked:
    """A worker that a template has forked, as far as :class:`subprocess.Popen` is needed.

    Its standard input and output are pipes.
    """

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.stdin = stdin
        self.stdout = stdout
        #: Why it could not be forked: it counts as ended then.
        self.error: OSError | None = None
        self._changed = threading.Condition()
        self._pid: int | None = None
        self._status: int | None = None

    def began(self, pid: int) -> None:
        """Note that it is there."""
        with self._changed:
            self._pid = pid
            self._changed.notify_all()

    def failed(self, error: OSError) -> None:
        """Note why it could not be forked."""
        self.error = error
        self.ended(os.EX_OSERR)

    def ended(self, status: int) -> None:
        """Note its exit status, negative for a signal."""
        with self._changed:
            self._status = status
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        """The process id, once the process is there; 0, if it never was."""
        with self._changed:
            known = self._changed.wait_for(
                lambda: self._pid is not None or self._status is not None, _PATIENCE
            )
            if not known:
                raise TimeoutError(f"no worker was forked in {_PATIENCE:g} s")
            return self._pid or 0

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status when it has ended.

        Raises
        ------
        subprocess.TimeoutExpired
            It has not, in this time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._status is not None, timeout):
                raise subprocess.TimeoutExpired("treadle worker", timeout or 0.0)
            assert self._status is not None
            return self._status

    def kill(self) -> None:
        """End it by force, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        pid = self.pid
        with self._changed:
            if self._status is None:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
