"""What a client does with the workers: wait for them, and start them anew."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dask.typing import no_default

from treadle._compat.distributed import SchedulerInfo, WorkerStartTimeoutError, parse_timedelta
from treadle.client import _distributed
from treadle.client._distributed import documented
from treadle.client._hosted import Hosted
from treadle.client._scheduler_rpc import ask_python
from treadle.cluster._clusters import cluster_at
from treadle.cluster._local_cluster import LocalCluster
from treadle.cluster._options import dashboard_at, with_links
from treadle.cluster._worker_process import WorkerProcess
from treadle.common import _scheduler_file
from treadle.common._ask import ask
from treadle.pickling._by_value import ByValue
from treadle.shuffle._history import ShuffleRecord, Shuffles

__all__ = ["Managing"]

# What is not the function's, of the keyword arguments.
_OF_RUN = frozenset(["nanny", "workers", "wait", "on_error"])


class Managing(Hosted):
    """A client and its cluster's workers."""

    scheduler_file: str | None

    # Distributed's code pickles what is called, and plugins, with what the script defines by value.

    async def _run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        called = (ByValue(function), *map(ByValue, args))
        return await super()._run(*called, **_by_value(kwargs, _OF_RUN))

    async def _run_on_scheduler(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        called = (ByValue(function), *map(ByValue, args))
        return await super()._run_on_scheduler(*called, **_by_value(kwargs, ("wait",)))

    async def _register_scheduler_plugin(self, plugin: Any, **options: Any) -> Any:
        return await super()._register_scheduler_plugin(ByValue(plugin), **options)

    async def _register_worker_plugin(self, plugin: Any, **options: Any) -> Any:
        return await super()._register_worker_plugin(ByValue(plugin), **options)

    async def _register_nanny_plugin(self, plugin: Any, **options: Any) -> Any:
        return await super()._register_nanny_plugin(ByValue(plugin), **options)

    @documented
    def wait_for_workers(self, n_workers: int, timeout: Any = None) -> Any:
        """Wait until so many workers are there, and know of them."""
        if not isinstance(self.cluster, LocalCluster):
            return super().wait_for_workers(n_workers, timeout)
        if not isinstance(n_workers, int) or n_workers < 1:
            raise ValueError(f"n_workers={n_workers!r}: it must be a positive integer")
        # By itself: what the cluster's client hears this one does not.
        return self.sync(self._wait_for_workers, n_workers, timeout)

    async def _wait_for_workers(self, n_workers: int, timeout: Any = None) -> None:
        loop = asyncio.get_running_loop()
        limit = parse_timedelta(timeout, "s") if timeout else None
        until = None if limit is None else loop.time() + limit
        pause = 0.002
        while True:
            # Who has lost the scheduler would wait for ever.
            self._usable("wait for workers")
            await self._update_scheduler_info(n_workers=-1)
            workers = self._scheduler_identity.get("workers", {})
            running = sum(worker.get("status") == "running" for worker in workers.values())
            if running >= n_workers:
                return
            if until is not None and loop.time() > until:
                raise WorkerStartTimeoutError(running, n_workers, timeout)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)

    @property
    def dashboard_link(self) -> str | None:
        """Where the scheduler shows its state and metrics, if it does."""
        if self.cluster is not None:
            link: str | None = self.cluster.dashboard_link
            return link
        if self._host is not None:
            return self._host.pages_link
        return dashboard_at(self._scheduler_identity.get("http"))

    def _repr_html_(self) -> str:
        text: str = super()._repr_html_()
        return with_links(text, self.dashboard_link)

    @property
    def pages_link(self) -> str | None:
        """Where the scheduler itself serves its pages, whatever ``distributed.dashboard.link`` says."""
        if self.cluster is not None:
            own: str | None = getattr(self.cluster, "pages_link", None)
            if own is not None:
                return own
        if self._host is not None:
            return self._host.own_pages_link
        link: str | None = self._scheduler_identity.get("http")
        return link

    def shuffles(self) -> Shuffles:
        """Return records of this scheduler's shuffles, those that run and the latest 256 that ended.

        They are :class:`treadle.shuffle.ShuffleRecord`, in the order in which they ended, those that
        run last. What a record says of the ``work`` of a shuffle is complete when that has ended. The
        journal has earlier ones, see ``treadle shuffle history``.
        """
        records: Shuffles = self.sync(self._shuffles)
        return records

    async def _shuffles(self) -> Shuffles:
        connection = self._usable("ask for shuffles")
        told = await ask(connection, "", "shuffle_records", {})
        there: dict[int, dict[str, Any]] = {}
        if any("service" in one for one in told):
            there = await ask_python(connection, "sidecar", "shuffle_records_at_services", {})
        joined = (ShuffleRecord.joined(one, there.get(one["number"])) for one in told)
        return Shuffles(map(ShuffleRecord.of, joined))

    def scheduler_info(self, n_workers: int = -1, **_kwargs: Any) -> SchedulerInfo:
        """Return what the scheduler says about itself and ``n_workers`` workers; -1: all."""
        if self.asynchronous:
            return self._scheduler_identity
        # Its own answer: the periodic one, which asks for no workers, may come in between.
        info: SchedulerInfo = self.sync(self._scheduler_info, n_workers)
        return info

    async def _scheduler_info(self, n_workers: int) -> SchedulerInfo:
        await self._update_scheduler_info(n_workers)
        return self._scheduler_identity

    def write_scheduler_file(self, scheduler_file: str) -> None:
        """Write where the scheduler is, and what lets this user in, for ``scheduler_file=``."""
        if self.scheduler_file:
            raise ValueError("Scheduler file already set")
        values = dict(self.scheduler_info())
        values["cluster"] = self._usable("ask for the cluster").cluster
        if isinstance(self.cluster, LocalCluster):
            values["secret_file"] = self.cluster.secret_file
            if prefix := self.cluster._credentials.prefix("client"):
                values["tls"] = prefix
        _scheduler_file.write(scheduler_file, values)
        self.scheduler_file = scheduler_file

    def _get_scheduler_info(self, n_workers: int) -> tuple[Any, SchedulerInfo]:  # noqa: ARG002
        """Return what was heard last: a notebook that shows the client waits for nobody."""
        return self.scheduler, self._scheduler_identity

    async def _restart_cluster(self, timeout: float, wait_for_workers: bool) -> None:
        """Drop all tasks and values, and start the workers anew."""
        before = await self._workers()
        await ask(self._usable("restart"), "", "restart", {})
        await self._replace(before, timeout, wait_for_workers)

    async def _restart_workers(
        self, workers: list[str], timeout: Any, raise_for_error: bool
    ) -> dict[str, str]:
        limit = parse_timedelta(self._timeout * 4 if timeout is no_default else timeout, "s")
        return await self._restart_some(workers, limit, "raise" if raise_for_error else "return")

    async def _restart_some(
        self, workers: list[str], timeout: float, on_error: str
    ) -> dict[str, str]:
        """Start some workers anew, given by address or name; returns how that went."""
        known = await self._workers()
        by_name = {name: address for address, name in known.items()}
        addresses = [by_name.get(str(worker), str(worker)) for worker in workers]
        assert self.scheduler is not None
        cluster = cluster_at(self.scheduler.address)
        for address in addresses:
            if address not in known:
                raise KeyError(address)
            if cluster is not None and cluster.is_thread(known[address]):
                raise ValueError(
                    f"Restarting workers requires a nanny to be used. Worker {address} has type "
                    "Worker: it is threads of this process."
                )
        there = {address: known[address] for address in addresses}
        outcome = "OK"
        try:
            await self._replace(there, timeout, True)
        except _distributed.TimeoutError:
            if on_error == "raise":
                raise
            outcome = "timed out"
        return dict.fromkeys(workers, outcome)

    async def _workers(self) -> dict[str, str]:
        """Return the names of the workers by address."""
        identity = await ask(self._usable("ask for the workers"), "", "identity", {"n_workers": -1})
        return {address: str(worker["name"]) for address, worker in identity["workers"].items()}

    async def _replace(self, workers: dict[str, str], timeout: float, wait: bool) -> None:
        assert self.scheduler is not None
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        cluster = cluster_at(self.scheduler.address)
        if cluster is None:
            # Whoever supervises them starts others.
            await self.scheduler.broadcast(
                {"op": "restart"}, workers=list(workers), on_error="ignore"
            )
        elif not cluster.restart(list(workers.values())):
            return  # threads of this process
        names = set(workers.values())
        if cluster is not None:
            # One that leaves does not come back.
            names &= set(map(str, cluster.requested))
        pause = 0.002
        while wait:
            now = await self._workers()
            if not workers.keys() & now.keys() and names <= set(now.values()):
                return
            if loop.time() > until:
                there = workers.keys() & now.keys()
                missing = {workers[address] for address in there} | names - set(now.values())
                raise _distributed.TimeoutError(
                    f"Waited for {len(workers)} worker(s) to reconnect after restarting, but after "
                    f"{timeout:g} s these have not: {_states(cluster, missing)}. Consider "
                    "a longer timeout, or wait_for_workers=False."
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.1)


def _states(cluster: LocalCluster | None, names: Iterable[str]) -> str:
    """Name workers, and say what those have printed that this process has started."""
    states = []
    for name in sorted(names):
        worker = cluster.workers.get(name) if cluster is not None else None
        log = worker.log() if isinstance(worker, WorkerProcess) else ""
        states.append(f"worker {name}" + (f" has printed:\n{log}\n" if log else ""))
    return ", ".join(states)


def _by_value(kwargs: Mapping[str, Any], others: Collection[str]) -> dict[str, Any]:
    return {name: value if name in others else ByValue(value) for name, value in kwargs.items()}
