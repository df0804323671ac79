"""What a host starts: a scheduler, and workers. Both are threads of the process that starts them."""

from __future__ import annotations

import contextlib
import gc
import logging
import shutil
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from treadle import _core
from treadle._security import Certificates, of_prefix, write_certificates
from treadle.client._local import LocalCluster, ThreadWorker, secret_file_in

__all__ = ["SchedulerPart", "WorkerPart"]

logger = logging.getLogger("treadle.hosting")

# Seconds until a worker that has lost the scheduler tries again: the first time, and at most.
_FIRST_RETRY, _LAST_RETRY = 0.5, 10.0


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

    def close(self) -> None:
        self._cluster.close()


class WorkerPart:
    """A worker in this process. If it loses the scheduler it joins again, as another incarnation.

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
        self._directory = tempfile.mkdtemp(prefix="treadle-", dir=directory)
        if certificates is not None:
            certificates = of_prefix(write_certificates(self._directory, certificates))
        scheme = "treadle" if certificates is None else "treadle+tls"
        self._arguments: dict[str, Any] = {
            "listen": f"{scheme}://{f'[{host}]' if ':' in host else host}:0",
            "secret": secret_file_in(self._directory, secret),
            "certificates": certificates,
            "insecure": insecure,
            "directory": self._directory,
            "name": name,
            "nthreads": nthreads,
            "memory_limit": memory_limit,
            "resources": resources,
            "shares_arrays": True,
        }
        self._scheduler = scheduler
        self._closing = threading.Event()
        self._lock = threading.Lock()
        try:
            self._worker: ThreadWorker | None = ThreadWorker(scheduler, **self._arguments)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        self._watching = threading.Thread(
            target=self._watch, name=f"treadle-hosted-{name}", daemon=True
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

    def close(self, timeout: float) -> None:
        """End it. Its values move to other workers first, for at most ``timeout`` seconds."""
        self._closing.set()
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.drain(timeout)
            worker.close()
        self._watching.join(timeout + 5)
        with contextlib.suppress(OSError):
            shutil.rmtree(self._directory)
        # The worker's two sides refer to each other, and its lock is a descriptor.
        del worker
        gc.collect()
        # Nobody looks after it any more.
        _core.trim_memory()
