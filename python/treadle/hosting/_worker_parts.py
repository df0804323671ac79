"""The workers that a host starts: threads of the process that starts them, or a process beside it.

It does not import the client: the processes of the host need it for nothing else.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from treadle import _core
from treadle.cluster._worker_command import arguments_of
from treadle.cluster._worker_process import WorkerProcess
from treadle.common._certificates import Certificates, of_prefix, write_certificates
from treadle.common._secret import secret_file_in
from treadle.common._settings import temporary_directory
from treadle.common._worker_options import WorkerOptions
from treadle.worker._ends import Cause
from treadle.worker._thread import ThreadWorker

if TYPE_CHECKING:
    from treadle.worker._native import Native

__all__ = ["ProcessPart", "WorkerPart", "directory_of_host"]

logger = logging.getLogger("treadle.hosting")

# Seconds until a worker that has lost the scheduler tries again: the first time, and at most.
_FIRST_RETRY, _LAST_RETRY = 0.5, 10.0
# Seconds in which the first join may fail.
_JOINING = 10.0
# Seconds for a process to start, with all that it imports.
_START = 60.0
# Seconds for a worker to end by itself, and for its tasks.
_FAREWELL = 5.0
_LAST_TASKS = 0.5
# With these causes a worker ends that the cluster does not want any more.
_ASKED = (Cause.DRAINED, Cause.ASKED)


def directory_of_host(directory: str) -> str:
    """Return where the certificates of the host are, below a worker's own directory."""
    return os.path.join(directory, "host")


class _Part:
    """What workers in this process and those beside it have in common: a directory of their own.

    Parameters
    ----------
    scheduler
        The scheduler's address.
    options
        Of the worker, whose own directory is made in ``local_directory``.
    host
        The interface on which it listens.
    secret, certificates, insecure
        What lets it in.
    """

    def __init__(
        self,
        scheduler: str,
        options: WorkerOptions,
        *,
        name: str,
        host: str,
        secret: bytes,
        certificates: Certificates | None,
        insecure: bool,
    ) -> None:
        self._scheduler = scheduler
        self._host = f"[{host}]" if ":" in host else host
        self._insecure = insecure
        self._name = name
        # If this process is killed, the next one that starts here removes it.
        self._temporary = _core.Directory(
            "worker", options.local_directory or temporary_directory()
        )
        self._directory = str(self._temporary.path)
        self._options = replace(options, local_directory=self._directory)
        try:
            self._secret = secret_file_in(self._directory, secret)
            #: The prefix of the files with its certificates; None: connections have no TLS.
            self._tls: str | None = None
            if certificates is not None:
                self._tls = write_certificates(self._directory, certificates)
            self._start()
        except BaseException:
            self._remove_directory()
            raise

    def _start(self) -> None:
        raise NotImplementedError

    def rejoin(self) -> None:
        """Start the worker again if it has left as it was asked to."""
        raise NotImplementedError

    def close(self) -> None:
        """End it."""
        raise NotImplementedError

    def _remove_directory(self) -> None:
        with contextlib.suppress(OSError):
            self._temporary.remove()


class ProcessPart(_Part):
    """A worker in a process of its own, which is replaced when it ends unasked.

    ``certificates_of_host`` are for its connections to the host's own processes.
    """

    def __init__(
        self, *args: Any, certificates_of_host: Certificates | None = None, **kwargs: Any
    ) -> None:
        self._of_host = certificates_of_host
        super().__init__(*args, **kwargs)

    def _start(self) -> None:
        from treadle.cluster._inherited import inherited

        certificates, self._of_host = self._of_host, None
        if certificates is not None:
            own = directory_of_host(self._directory)
            os.mkdir(own, 0o700)
            write_certificates(own, certificates)

        arguments = arguments_of(
            self._scheduler,
            self._options,
            *("--listen", f"{self._host}:0"),
            name=self._name,
            secret_file=str(self._secret),
            tls=self._tls,
            insecure=self._insecure,
        )
        self._process = WorkerProcess(
            self._name, arguments, _ignore, environment=inherited, directory=self._directory
        )
        try:
            self._process.wait_until_announced(_START)
        except TimeoutError:
            self._end()
            raise

    def rejoin(self) -> None:
        # Whoever asks may be ahead of the process, which is about to end.
        until = time.monotonic() + _FAREWELL
        while not self._process.left:
            if time.monotonic() > until:
                return
            time.sleep(0.01)
        self._end()
        self._start()

    def close(self) -> None:
        """End it."""
        self._end()
        self._remove_directory()

    def _end(self) -> None:
        self._process.close()
        # Its tasks end with it.
        self._process.join(_LAST_TASKS)


def _ignore(_death: object) -> None:
    """Nobody else has to know: it is logged."""


class WorkerPart(_Part):
    """A worker in this process. If it loses the scheduler it joins again, as another incarnation.

    One that the cluster asked to leave does not. With ``preloads``, it runs those of Dask's configuration,
    which the workers of a host have run already.
    """

    def __init__(self, *args: Any, preloads: bool = False, **kwargs: Any) -> None:
        self._preloads = preloads
        super().__init__(*args, **kwargs)

    def _start(self) -> None:
        scheme = "treadle" if self._tls is None else "treadle+tls"
        self._arguments: dict[str, Any] = {
            "listen": f"{scheme}://{self._host}:0",
            "secret": self._secret,
            "certificates": None if self._tls is None else of_prefix(self._tls),
            "insecure": self._insecure,
            "directory": self._directory,
            "name": self._name,
            "shares_arrays": True,
            "preloads": self._preloads,
        }
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._worker: ThreadWorker | None = None
        until = time.monotonic() + _JOINING
        while True:
            try:
                return self._join()
            except OSError as error:
                if time.monotonic() > until:
                    raise
                logger.info("Treadle's worker cannot join yet: %s", error)
                time.sleep(_FIRST_RETRY)

    def _join(self) -> None:
        self._worker = ThreadWorker(self._scheduler, self._options, **self._arguments)
        self._watching = threading.Thread(
            target=self._watch, name=f"treadle-hosted-{self._name}", daemon=True
        )
        self._watching.start()

    def rejoin(self) -> None:
        # Whoever asks may be ahead of the thread that sees the worker go.
        self._watching.join(_FAREWELL)
        with self._lock:
            if not self._watching.is_alive() and not self._closing.is_set():
                self._join()

    @property
    def native(self) -> Native | None:
        """The native side of the worker; None while there is none: it is joining again, or closed."""
        worker = self._worker
        return None if worker is None or worker.native.ended is not None else worker.native

    def _watch(self) -> None:
        """Join again whenever the worker has ended, until it is closed."""
        pause = _FIRST_RETRY
        while not self._closing.is_set():
            worker = self._worker
            if worker is not None:
                end = worker.wait(1.0)
                if end is None or self._closing.is_set():
                    continue
                if end.cause in _ASKED:
                    self._forget()
                    return
                logger.warning("Treadle's worker ended, and joins again: %s", end.reason)
                pause = _FIRST_RETRY
                worker.close()
                self._worker = None
            if self._closing.wait(pause):
                return
            pause = min(2 * pause, _LAST_RETRY)
            with self._lock:
                if self._closing.is_set():
                    return
                try:
                    self._worker = ThreadWorker(self._scheduler, self._options, **self._arguments)
                except Exception as error:
                    logger.info("Treadle's worker cannot join yet: %s", error)

    def _forget(self) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def close(self) -> None:
        """End it. Whoever wants its values elsewhere has the scheduler retire it first.

        Tasks that still run are not waited for: they keep their threads until they return, and what
        is left of the worker goes then, or after a few seconds.
        """
        self._closing.set()
        with self._lock:
            held = [self._worker]
            is_busy = self._worker is not None and self._worker.runs_tasks
            self._worker = None
        ending = threading.Thread(
            target=self._end, args=[held], name=f"treadle-ending-{self._name}", daemon=True
        )
        ending.start()
        ending.join(_LAST_TASKS if is_busy else _FAREWELL)
        if ending.is_alive():
            logger.warning("Treadle's worker %s has ended, and tasks of it still run", self._name)

    def _end(self, held: list[ThreadWorker | None]) -> None:
        # Nobody else holds it, so that it can be collected below.
        worker = held.pop()
        if worker is not None:
            worker.close()
        self._watching.join(_FAREWELL)
        self._remove_directory()
        # The worker's two sides refer to each other, and its lock is a descriptor.
        del worker
        gc.collect()
        # Nobody looks after it any more.
        _core.trim_memory()
