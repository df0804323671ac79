"""Clusters from a specification of their own: Treadle's processes for ``distributed.SpecCluster``.

A :class:`SpecCluster` starts a scheduler and workers of several kinds, each given by its class and
options, and subclasses of it decide which. What only differs in the number of workers is a
:class:`treadle.LocalCluster`.

    >>> SpecCluster(
    ...     workers={
    ...         "small": {"cls": Worker, "options": {"nthreads": 1}},
    ...         "large": {"cls": Worker, "options": {"nthreads": 4, "resources": {"GPU": 1}}},
    ...     },
    ...     worker={"cls": Worker, "options": {"nthreads": 1}},
    ... )
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from distributed import Status
from distributed.deploy.cluster import Cluster
from distributed.deploy.spec import ProcessInterface

from treadle._compat.distributed import SchedulerInfo
from treadle._compat.distributed import SpecCluster as SpecClusterOfDistributed
from treadle.cluster._clusters import cluster_at
from treadle.cluster._local_cluster import LocalCluster
from treadle.cluster._local_workers import process_worker
from treadle.cluster._scheduler_comm import SchedulerComm, identity
from treadle.cluster._worker_process import WorkerProcess
from treadle.common._loop import off_loop
from treadle.common._worker_options import WorkerOptions

__all__ = ["Scheduler", "SpecCluster", "Worker"]

# Seconds for a worker's process to join, with all that it imports, and for it to end.
_START, _FAREWELL = 60.0, 5.0


class Scheduler(ProcessInterface):
    """A scheduler as threads of this process.

    Parameters
    ----------
    options
        ``host``, ``scheduler_port``, ``dashboard_address``, ``security``, ``protocol``, ``secret``,
        ``certificates``, ``insecure``, ``worker_timeout`` and ``local_directory`` of
        :class:`treadle.LocalCluster`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._options = options
        #: The cluster that has the scheduler, and the workers that this process starts for it.
        self.cluster: LocalCluster | None = None

    async def start(self) -> None:
        """Start it; its address is known then."""
        make = partial(LocalCluster, workers=0, processes=True, **self._options)
        self.cluster = await off_loop(make)
        # Distributed closes what a program leaves open, the workers first, and asks the scheduler for them.
        self.cluster._has_owner = True
        self.address = self.cluster.scheduler_address
        await super().start()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """End it, and the workers that are there."""
        if self.cluster is not None:
            await off_loop(self.cluster._end)
        await super().close()  # type: ignore[no-untyped-call]


class Worker(ProcessInterface):
    """A worker in a process of its own, which is replaced when it ends unasked.

    Parameters
    ----------
    scheduler
        The address of a :class:`Scheduler` of this process.
    name
        Unique in the cluster.
    nthreads
        How many tasks it runs at once; 0: as many as there are cores.
    memory_limit
        Of the worker's process: bytes, ``"4 GiB"``, a share of the machine's memory such as 0.5 (1 is all
        of it), ``"auto"`` or 0 for no limit. ``"auto"`` is the share of the memory that its threads are of
        the cores.
    resources
        Abstract resources, for ``resources=`` of tasks; by default those of
        ``distributed.worker.resources`` in Dask's configuration.
    local_directory
        Where it keeps what it spills.
    **options
        ``env``, ``preload``, ``lifetime``, ``lifetime_stagger`` and ``lifetime_restart``, as those of
        :class:`treadle.LocalCluster`.
    """

    def __init__(
        self,
        scheduler: str,
        name: Any,
        nthreads: int = 1,
        memory_limit: Any = "auto",
        resources: Mapping[str, float] | None = None,
        local_directory: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(scheduler=scheduler, name=name)  # type: ignore[no-untyped-call]
        self.name = name
        self._scheduler = scheduler
        given = {
            "nthreads": nthreads,
            "memory_limit": memory_limit,
            "resources": resources,
            "local_directory": local_directory,
            **options,
        }
        WorkerOptions.refuse_others("treadle.deploy.Worker", given)
        self._options = WorkerOptions.of(given)
        self._process: WorkerProcess | None = None

    async def start(self) -> None:
        """Start it, and wait until it has joined.

        Raises
        ------
        ValueError
            The scheduler is not of this process.
        RuntimeError
            Its process does not start.
        TimeoutError
            It has not joined within a minute.
        """
        cluster = cluster_at(self._scheduler)
        if cluster is None:
            raise ValueError(
                f"{self._scheduler} is no treadle.deploy.Scheduler of this process: start workers of "
                "other schedulers with `treadle worker`"
            )
        name = str(self.name)
        await off_loop(cluster._tell, "supervise", {"names": [name]})
        process = self._process = await off_loop(process_worker, cluster, name, self._options)
        cluster.workers[name] = process
        try:
            await off_loop(process.wait_until_announced, _START)
        except BaseException:
            # Nobody knows of it: it would go on, and join later.
            await self.close()
            raise
        self.address = process.address
        await super().start()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        """End it; what it has is lost unless it was retired."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
            await off_loop(process.join, _FAREWELL)
            if (cluster := cluster_at(self._scheduler)) is not None:
                cluster.workers.pop(str(self.name), None)
        await super().close()  # type: ignore[no-untyped-call]


class _Comm(SchedulerComm):
    """What a cluster's scheduler is asked; the cluster itself ends it."""

    async def terminate(self, **_: Any) -> None:
        """Do nothing."""


class _Cluster(Cluster):
    """What all clusters of distributed do, with a scheduler of Treadle's."""

    scheduler: Any
    scheduler_comm: Any

    async def _start(self) -> None:
        # The one that was made knows distributed's protocol.
        await self.scheduler_comm.close_rpc()
        self.scheduler_comm = _Comm(self.scheduler.cluster)
        self.status = Status.running

    @property
    def scheduler_info(self) -> SchedulerInfo:
        """What the scheduler says about itself and its workers."""
        if not isinstance(self.scheduler_comm, _Comm):
            return SchedulerInfo({"workers": {}})
        return SchedulerInfo(identity(self.scheduler.cluster))

    @scheduler_info.setter
    def scheduler_info(self, _info: Any) -> None:
        """Forget it: it is asked for whenever it is read."""

    @property
    def dashboard_link(self) -> str | None:
        """Where the scheduler shows its state and metrics."""
        link: str | None = self.scheduler.cluster.dashboard_link
        return link

    def get_client(self) -> Any:
        """Return a new client of the cluster."""
        from treadle.client._client import Client

        return Client(self, asynchronous=self.asynchronous)


class SpecCluster(SpecClusterOfDistributed, _Cluster):  # type: ignore[misc]
    """``distributed.SpecCluster`` of Treadle's processes; see there.

    Parameters
    ----------
    workers
        The first workers: class and options by name.
    scheduler
        Class and options of the scheduler, by default of :class:`Scheduler` without options.
    worker
        Class and options of workers that :meth:`scale` and :meth:`adapt` start, by default of
        :class:`Worker` without options.
    options
        ``asynchronous``, ``loop``, ``name``, ``shutdown_on_close`` and ``silence_logs`` of
        ``distributed.SpecCluster``.
    """

    def __init__(
        self,
        workers: Mapping[Any, Mapping[str, Any]] | None = None,
        scheduler: Mapping[str, Any] | None = None,
        worker: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        given: dict[str, Any] = {
            "workers": workers,
            "scheduler": scheduler or {"cls": Scheduler, "options": {}},
            "worker": worker or {"cls": Worker, "options": {}},
            **options,
        }
        super().__init__(**given)  # type: ignore[no-untyped-call]
