"""How a local cluster makes its workers: as threads of this process, or as processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from treadle.cluster._inherited import inherited
from treadle.cluster._worker_command import arguments_of
from treadle.cluster._worker_process import WorkerProcess
from treadle.common._worker_options import WorkerOptions
from treadle.worker._thread import ThreadWorker

if TYPE_CHECKING:
    from treadle.cluster._local_cluster import LocalCluster

__all__ = ["ByName", "LocalProcess", "environment_of", "process_worker", "thread_worker"]


class ByName(dict[str, Any]):
    """Workers by name. distributed's names of local workers are numbers."""

    def __missing__(self, name: Any) -> Any:
        if isinstance(name, int):
            return self[str(name)]
        raise KeyError(name)


class LocalProcess(WorkerProcess):
    """A worker process of this machine, which shows what ``distributed.Nanny`` does of its worker."""

    #: How many tasks it runs at once.
    nthreads: int
    #: In bytes; None: it has none.
    memory_limit: int | None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """``distributed.Nanny``: tools ask whether it is one."""
        from distributed import Nanny

        return Nanny

    @property
    def worker_address(self) -> str | None:
        """Where its process listens; None while that starts."""
        return self.address


def thread_worker(
    cluster: LocalCluster, name: str, options: WorkerOptions, listen: str | None = None
) -> ThreadWorker:
    """Start a worker on threads of this process."""
    return ThreadWorker(
        cluster.scheduler_address,
        options,
        listen=listen,
        name=name,
        directory=_directory_of(cluster, name),
        preloads=True,
        **cluster._credentials.of("worker"),
    )


def process_worker(cluster: LocalCluster, name: str, options: WorkerOptions) -> LocalProcess:
    """Start a worker process, which is replaced when it dies."""
    directory = options.local_directory or _directory_of(cluster, name)
    arguments = arguments_of(
        cluster.scheduler_address,
        replace(options, local_directory=directory),
        # They end with this process, which has the scheduler: as long as it is stopped, they wait.
        *("--scheduler-timeout", "1e9"),
        *("--silence-logs", str(cluster._level)),
        *("--script", cluster.script_file),
        name=name,
        secret_file=cluster.secret_file,
        tls=cluster._credentials.prefix("worker"),
        insecure=cluster._credentials.insecure,
    )
    process = LocalProcess(
        name,
        arguments,
        cluster._died,
        environment=environment_of(options),
        preloads=True,
        directory=directory,
    )
    process.nthreads, process.memory_limit = options.nthreads, options.memory_limit or None
    return process


def environment_of(options: WorkerOptions) -> Callable[[], dict[str, str]]:
    """Return what returns a worker process's environment, as far as it is not this one's."""
    return lambda: {**inherited(), **options.env}


def _directory_of(cluster: LocalCluster, name: str) -> str:
    path = os.path.join(cluster.directory, f"worker-{name}")
    os.makedirs(path, exist_ok=True)
    return path
