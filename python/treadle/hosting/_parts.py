"""What a host starts: a scheduler, and workers, as threads of the process that starts them.

A worker may be a process of its own, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from treadle import _core
from treadle._security import Certificates, of_prefix, write_certificates
from treadle.client._inherited import inherited
from treadle.client._local import LocalCluster, ThreadWorker, secret_file_in
from treadle.sidecar._scheduler import SchedulerStandIn
from treadle.supervision import WorkerProcess

__all__ = ["ProcessPart", "SchedulerPart", "WorkerPart"]

logger = logging.getLogger("treadle.hosting")

# Seconds until a worker that has lost the scheduler tries again: the first time, and at most.
_FIRST_RETRY, _LAST_RETRY = 0.5, 10.0
# Seconds for a process to start, with all that it imports.
_START = 60.0
# Seconds for a worker to end.
_FAREWELL = 5.0
# How the reasons begin with which a worker ends that the cluster does not want any more.
_ASKED = ("it was drained", "it was asked to close")


class SchedulerPart:
    """Treadle's scheduler in this process.

    Parameters
    ----------
    host
        The interface on which it listens.
    secret, certificates, insecure
        As :class:`treadle.LocalCluster` has them.
    """

    def __init__(
        self, host: str, secret: bytes, certificates: Certificates | None, insecure: bool
    ) -> None:
        self._cluster = LocalCluster(
            0,
            host=host,
            secret=secret,
            certificates=certificates,
            insecure=insecure,
            dashboard_address=None,
        )
        self.address = self._cluster.scheduler_address

    def adaptive_target(self, target_duration: Any, *, timeout: float) -> int:
        """Return how many workers there should be for what there is to do."""
        asked = self._python.adaptive_target(target_duration)
        target: int = self._run(asked, timeout)
        return target

    def needed(self, *, timeout: float) -> set[str]:
        """Return the names of the workers that are not to go, for their tasks or their values."""
        needed: set[str] = self._run(self._find_needed(), timeout)
        return needed

    async def _find_needed(self) -> set[str]:
        python = self._python
        identity = await python.ask("", "identity", {"n_workers": -1})
        can_go = await python.workers_to_close()
        workers = identity["workers"].items()
        return {str(worker["name"]) for address, worker in workers if address not in can_go}

    def retire(self, names: Collection[str], *, timeout: float) -> None:
        """Have workers leave once others have their values.

        Raises
        ------
        TimeoutError
            They have not, within so many seconds.
        """
        self._run(self._python.retire_workers(names=list(names)), timeout)

    @property
    def _python(self) -> SchedulerStandIn:
        assert self._cluster._sidecar is not None
        return self._cluster._sidecar.scheduler

    def _run(self, coroutine: Coroutine[Any, Any, Any], timeout: float) -> Any:
        loop = self._python.loop.asyncio_loop  # type: ignore[attr-defined]
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(timeout)

    def close(self) -> None:
        self._cluster.close()


class _Part:
    """What workers in this process and those beside it have in common: a directory of their own.

    Parameters
    ----------
    scheduler
        The scheduler's address.
    host
        The interface on which it listens.
    directory
        Where its own directory is made, for what it spills.
    secret, certificates, insecure
        What lets it in.
    name, nthreads, memory_limit, resources
        Of the worker. The limit is in bytes; 0: none.
    """

    def __init__(
        self,
        scheduler: str,
        *,
        host: str,
        directory: str | None,
        secret: bytes,
        certificates: Certificates | None,
        insecure: bool,
        name: str,
        nthreads: int,
        memory_limit: int,
        resources: Mapping[str, float],
    ) -> None:
        self._scheduler = scheduler
        self._host = f"[{host}]" if ":" in host else host
        self._insecure = insecure
        self._name = name
        self._nthreads = nthreads
        self._memory_limit = memory_limit
        self._resources = resources
        self._directory = tempfile.mkdtemp(prefix="treadle-", dir=directory)
        try:
            self._secret = secret_file_in(self._directory, secret)
            #: The prefix of the files with its certificates; None: connections have no TLS.
            self._tls: str | None = None
            if certificates is not None:
                self._tls = write_certificates(self._directory, certificates)
            self._start()
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def _start(self) -> None:
        raise NotImplementedError

    def _remove_directory(self) -> None:
        with contextlib.suppress(OSError):
            shutil.rmtree(self._directory)


class ProcessPart(_Part):
    """A worker in a process of its own, which is replaced when it ends unasked."""

    def _start(self) -> None:
        arguments = [self._scheduler, "--supervised", "--name", self._name]
        arguments += ["--nthreads", str(self._nthreads), "--memory-limit", str(self._memory_limit)]
        arguments += ["--local-directory", self._directory, "--secret-file", str(self._secret)]
        arguments += ["--listen", f"{self._host}:0"]
        if self._tls is not None:
            arguments += ["--tls", self._tls]
        if self._insecure:
            arguments += ["--insecure"]
        if self._resources:
            text = " ".join(f"{name}={amount}" for name, amount in self._resources.items())
            arguments += ["--resources", text]
        self._process = WorkerProcess(self._name, arguments, _ignore, environment=inherited)
        until = time.monotonic() + _START
        while not self._process.announced:
            if reason := self._process.given_up:
                raise RuntimeError(f"its process does not start: {reason}")
            if time.monotonic() > until:
                self._end()
                raise TimeoutError(f"its process is not ready after {_START:g} s")
            time.sleep(0.01)

    def close(self) -> None:
        """End it."""
        self._end()
        self._remove_directory()

    def _end(self) -> None:
        self._process.close()
        self._process.join(_FAREWELL)


def _ignore(_death: object) -> None:
    """Nobody else has to know: it is logged."""


class WorkerPart(_Part):
    """A worker in this process. If it loses the scheduler it joins again, as another incarnation.

    One that the cluster asked to leave does not.
    """

    def _start(self) -> None:
        scheme = "treadle" if self._tls is None else "treadle+tls"
        self._arguments: dict[str, Any] = {
            "listen": f"{scheme}://{self._host}:0",
            "secret": self._secret,
            "certificates": None if self._tls is None else of_prefix(self._tls),
            "insecure": self._insecure,
            "directory": self._directory,
            "name": self._name,
            "nthreads": self._nthreads,
            "memory_limit": self._memory_limit,
            "resources": self._resources,
            "shares_arrays": True,
        }
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._worker: ThreadWorker | None = ThreadWorker(self._scheduler, **self._arguments)
        self._watching = threading.Thread(
            target=self._watch, name=f"treadle-hosted-{self._name}", daemon=True
        )
        self._watching.start()

    def _watch(self) -> None:
        """Join again whenever the worker has ended, until it is closed."""
        pause = _FIRST_RETRY
        while not self._closing.is_set():
            worker = self._worker
            if worker is not None:
                reason = worker.wait(1.0)
                if reason is None or self._closing.is_set():
                    continue
                if reason.startswith(_ASKED):
                    self._forget()
                    return
                logger.warning("Treadle's worker ended, and joins again: %s", reason)
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
                    self._worker = ThreadWorker(self._scheduler, **self._arguments)
                except Exception as error:
                    logger.info("Treadle's worker cannot join yet: %s", error)

    def _forget(self) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def close(self) -> None:
        """End it. Whoever wants its values elsewhere has the scheduler retire it first."""
        self._closing.set()
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
        self._watching.join(_FAREWELL)
        self._remove_directory()
        # The worker's two sides refer to each other, and its lock is a descriptor.
        del worker
        gc.collect()
        # Nobody looks after it any more.
        _core.trim_memory()
