"""A worker on threads of the calling process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle import _core
from treadle.common._certificates import Certificates
from treadle.common._settings import preloads_of, sight_memory_of_worker
from treadle.common._worker_options import WorkerOptions
from treadle.worker._ends import End, end_of
from treadle.worker._service import Service

if TYPE_CHECKING:
    from treadle.worker._native import Native

__all__ = ["ThreadWorker"]


class ThreadWorker:
    """A worker on threads of this process; with ``preloads``, it runs those of Dask's configuration.

    What it spills is in ``directory``.
    """

    #: It has joined when it is made.
    announced = True
    #: It has started, or it could not be made.
    given_up = None
    #: Whether it leaves, as the scheduler has asked it to: it counts no more.
    leaving = False

    def __init__(
        self,
        scheduler: str,
        options: WorkerOptions,
        *,
        name: str,
        directory: str,
        secret: Path,
        certificates: Certificates | None,
        insecure: bool,
        listen: str | None = None,
        shares_arrays: bool = False,
        preloads: bool = False,
    ) -> None:
        connection: Any = {"secret": secret, "certificates": certificates, "insecure": insecure}
        preload, argv = preloads_of("worker") if preloads else ((), ())
        self._service = Service(
            connection=connection, preload=preload, preload_argv=argv, shares_arrays=shares_arrays
        )
        self._native: Any = _core.Worker(
            scheduler,
            options,
            name=name,
            directory=directory,
            listen=listen,
            service=self._service,
            sight_memory=sight_memory_of_worker(),
            info={**Service.info(), "local_directory": directory},
            **connection,
        )
        try:
            self._native.start()
        except BaseException:
            self.close()
            raise

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """``distributed.Worker``: tools ask whether it is one."""
        from distributed import Worker

        return Worker

    @property
    def left(self) -> bool:
        """Whether it has ended, say since the cluster asked it to leave."""
        return self.wait(0.0) is not None

    @property
    def native(self) -> Native:
        """Its native side."""
        native: Native = self._native
        return native

    def __getattr__(self, name: str) -> Any:
        """What tasks there get of their worker: ``data``, ``address``, ``state``, …"""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._service.worker, name)

    def wait(self, timeout: float) -> End | None:
        """Wait until it has ended; return why, or None after so many seconds."""
        return end_of(self._native, timeout)

    def let_go(self) -> None:
        """Let it end by itself, when it has handed over its values."""
        self.leaving = True

    @property
    def runs_tasks(self) -> bool:
        """Whether a task runs in a thread of it, before its end or after."""
        return bool(self._service.worker.active_threads)

    def close(self) -> None:
        """End it, after a little time for the tasks that run."""
        try:
            self._native.close("its client was closed")
        finally:
            self._service.stop()
