"""Schedulers and workers as a test of distributed sees them, those that it makes itself included.

What Treadle's know they answer. All else is the inside of distributed, and skips the test.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import distributed.utils_test
import pytest
from distributed import Scheduler, SpecCluster, Status, Worker

import treadle
from schedulers_of_tests import scheduler_of
from treadle.client import LocalCluster
from treadle.cluster._local_workers import process_worker, thread_worker
from treadle.common._worker_options import WorkerOptions

# Seconds for a cluster's workers to join.
PATIENCE = 60.0


def unserved(options: Mapping[str, Any], served: Collection[str]) -> None:
    """Skip a test whose cluster has options that mean nothing, or something else, to Treadle."""
    # Treadle has none of distributed's extensions to begin with.
    unknown = sorted(name for name in options.keys() - served if options[name] != {})
    if unknown:
        pytest.skip(f"its cluster has options of distributed's own: {', '.join(unknown)}")


# Of distributed's servers: what they check of themselves, and what they would show.
CHECKS = ("dashboard", "dashboard_address", "transition_counter_max", "validate")
STARTED_WITH = ("local_directory", "memory_limit", "nthreads", "resources")
WORKER_OPTIONS = ("memory_limit", "nthreads", "plugins", "resources", *CHECKS)


# What workers of distributed have, and their class does not say.
INSIDE = ("batched_stream", "monitor", "transfer_outgoing_log", "transfer_incoming_log")


class StandIn:
    """A scheduler or a worker as a test sees it: what Treadle's knows, and a skip for all else."""

    def __init__(self, real: Any, **known: Any) -> None:
        vars(self).update(known, _real=real)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(self._real, name)
        except (AttributeError, NotImplementedError):
            if self._is_of_test(name):
                raise
            self._skip(name)

    def _is_of_test(self, name: str) -> bool:
        """Whether distributed's worker has nothing of this name, before a test gives it that."""
        known = hasattr(Worker, name) or name in Worker.__annotations__
        return isinstance(self._real, Worker) and not (known or name in INSIDE)

    def __setattr__(self, name: str, value: Any) -> None:
        # What Treadle's lets be set is set, and what distributed's does not have.
        described = getattr(type(self._real), name, None)
        is_new = self._is_of_test(name) and not hasattr(self._real, name)
        if not is_new and getattr(described, "fset", None) is None:
            self._skip(f"{name} = {value!r}")
        try:
            setattr(self._real, name, value)
        except NotImplementedError:
            self._skip(f"{name} = {value!r}")

    def __delattr__(self, name: str) -> NoReturn:
        self._skip(name)

    def _skip(self, what: str) -> NoReturn:
        kind = type(self._real).__name__.removesuffix("StandIn")
        pytest.skip(f"the inside of distributed's {kind}: {what}")

    def __repr__(self) -> str:
        return f"<stand-in of {self._real!r}>"


class Nannied(StandIn):
    """A worker process, as a test sees its nanny."""

    @property
    def plugins(self) -> Mapping[str, Any]:
        """Its plugins, by name."""
        plugins: Mapping[str, Any] = self._real.nanny.plugins
        return plugins

    def __init__(self, cluster: LocalCluster, process: Any) -> None:
        super().__init__(process, data={}, name=process.name)
        vars(self).update(_cluster=cluster)

    @property
    def worker_address(self) -> str:
        """Where its process listens, as the scheduler knows it now."""
        workers = self._cluster._scheduler.sidecar.scheduler.workers.values()
        return next(worker.address for worker in workers if str(worker.name) == self.name)


def common(own: Mapping[str, Any]) -> tuple[str, WorkerOptions]:
    """Return what a worker is started with."""
    name = own.get("name")
    given = {name: own[name] for name in STARTED_WITH if name in own}
    return (
        f"own-{next(_names)}" if name is None else str(name),
        WorkerOptions.of(given, share=1.0),
    )


_names = itertools.count()


async def start_threads(cluster: LocalCluster, own: Mapping[str, Any]) -> Any:
    """Start a worker on threads of this process, as `distributed.Worker` would be."""
    name, options = common(own)
    worker = await asyncio.to_thread(
        thread_worker, cluster, name, options, listen=f"{own.get('host') or '127.0.0.1'}:0"
    )
    cluster.workers[name] = worker
    service = worker._service
    for plugin in own.get("plugins", ()):
        await in_loop(service.worker.loop, service._plugins.add(plugin))
    return worker


async def start_process(cluster: LocalCluster, own: Mapping[str, Any]) -> Any:
    """Start a worker process, as `distributed.Nanny` would."""
    name, options = common(own)
    if options.local_directory:
        os.makedirs(options.local_directory, exist_ok=True)
    worker = await asyncio.to_thread(process_worker, cluster, name, options)
    cluster.workers[name] = worker
    return worker


async def in_loop(loop: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in the loop of a worker or a scheduler."""
    future = asyncio.run_coroutine_threadsafe(coroutine, loop.asyncio_loop)
    return await asyncio.wrap_future(future)


class Own(StandIn):
    """A scheduler or a worker that a test makes itself: it starts when it is awaited."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(None, status=Status.init, _kind=kind, _options=options)

    def __setattr__(self, name: str, value: Any) -> None:
        # `SpecCluster` says whose it is.
        if name != "_cluster":
            super().__setattr__(name, value)

    async def _start(self) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        raise NotImplementedError

    async def _started(self) -> Own:
        if vars(self).get("status") is Status.init:
            await self._start()
            # From now on it is what Treadle's says.
            vars(self).pop("status", None)
        return self

    def __await__(self) -> Any:
        return self._started().__await__()

    async def __aenter__(self) -> Own:
        return await self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, **_: Any) -> None:
        """End it, once."""
        if self._real is not None and not vars(self).get("_closed"):
            vars(self)["_closed"] = True
            await self._end()

    def _skip(self, what: str) -> NoReturn:
        pytest.skip(f"the inside of distributed's {self._kind}: {what}")


class OwnScheduler(Own):
    """`distributed.Scheduler(...)` of a test."""

    # Where workers find it is its address.
    external_address = contact_address = None

    __class__ = property(lambda _: Scheduler)  # type: ignore[assignment]

    async def _start(self) -> None:
        own = self._options
        cluster = await asyncio.to_thread(
            LocalCluster,
            workers=0,
            processes=False,
            scheduler_port=int(own.get("port") or 0),
            dashboard_address=own.get("dashboard_address", ":0"),
            timeout=PATIENCE,
        )
        real = scheduler_of(cluster)
        for plugin in own.get("plugins", ()):
            await in_loop(real.loop, real.register_scheduler_plugin(plugin))
        vars(self).update(_real=real, treadle_cluster=cluster)

    async def __aenter__(self) -> Any:
        # What plugins get.
        return (await self)._real

    async def _end(self) -> None:
        await asyncio.to_thread(self.treadle_cluster.close)


class OwnWorker(Own):
    """`distributed.Worker(address, ...)` of a test, and those of `gen_cluster`."""

    # `wait_for_state` asks for this.
    __class__ = property(lambda self: vars(self).get("_class", Worker))  # type: ignore[assignment]

    async def finished(self) -> None:
        """Wait until it is closed."""
        while not vars(self).get("_closed"):
            await asyncio.sleep(0.01)

    async def heartbeat(self) -> None:
        """Do nothing: who reads what the scheduler knows asks it then."""

    @classmethod
    def of(cls, cluster: LocalCluster, worker: Any) -> OwnWorker:
        """Return one that runs."""
        own = cls("Worker")
        del vars(own)["status"]
        real = worker._service.worker
        vars(own).update(_real=real, _worker=worker)
        return own

    async def _start(self) -> None:
        cluster = self._cluster()
        worker = await start_threads(cluster, self._options)
        real = worker._service.worker
        vars(self).update(_real=real, _worker=worker)
        schedulers = [one.scheduler for one in SpecCluster._instances if one.scheduler]
        if not any(vars(one).get("treadle_cluster") is cluster for one in schedulers):
            # A test is next. In a `SpecCluster`, tasks that wait for a worker would be faster.
            await asyncio.to_thread(settle, cluster)

    def _cluster(self) -> LocalCluster:
        address = str(self._options["address"])
        clusters = list(treadle.cluster._clusters.alive)
        for cluster in clusters:
            if cluster.scheduler_address.endswith(address.rpartition("://")[2]):
                return cluster
        pytest.skip(f"a worker of a scheduler that this process does not have: {address}")

    async def _end(self) -> None:
        await asyncio.to_thread(self._worker.close)
        cluster = self._cluster_or_none()
        if cluster:
            cluster.workers = {n: w for n, w in cluster.workers.items() if w is not self._worker}
            # The scheduler may be over before its workers.
            with suppress(OSError):
                while self._real.address in cluster._scheduler.sidecar.scheduler.workers:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(settle, cluster)

    def _cluster_or_none(self) -> LocalCluster | None:
        address = self._real._native.scheduler
        return treadle.cluster._clusters.cluster_at(address)


class Killable:
    """`Nanny.process`, and its `process`: what a test kills."""

    def __init__(self, process: Any) -> None:
        self._process = process

    @property
    def process(self) -> Killable:
        """As distributed has it: a process of a process."""
        return self

    async def kill(self) -> None:
        """Kill the worker's process."""
        os.kill(self._process.pid, signal.SIGKILL)


class OwnNanny(OwnWorker):
    """`distributed.Nanny(address, ...)` of a test."""

    @property
    def process(self) -> Killable:
        """The process of the worker."""
        return Killable(self._worker)

    async def _start(self) -> None:
        cluster = self._cluster()
        process = await start_process(cluster, self._options)
        vars(self).update(_real=process, _worker=process, data={}, name=process.name, _its=cluster)
        until = time.monotonic() + PATIENCE
        while self.worker_address is None:
            assert time.monotonic() < until
            await asyncio.sleep(0.02)

    @property
    def worker_address(self) -> str | None:
        """Where its process listens, as the scheduler knows it now."""
        workers = self._its._sidecar.scheduler.workers.values()
        names = {str(worker.name): worker.address for worker in workers}
        return names.get(vars(self)["name"])

    async def _end(self) -> None:
        self._its.workers.pop(vars(self)["name"], None)
        await asyncio.to_thread(self._worker.close)
        await asyncio.to_thread(self._worker.join, PATIENCE)


def settle(cluster: LocalCluster) -> None:
    """Return when the scheduler's Python side has heard what happened before."""
    # By its address: a client of the cluster would wait until all of its workers are there.
    with treadle.Client(cluster.scheduler_address, set_as_default=False) as client:
        client.run_on_scheduler(int)


_popen = distributed.utils_test.popen


@contextmanager
def popen(args: Sequence[Any], *rest: Any, **kwargs: Any) -> Iterator[Any]:
    """`distributed.utils_test.popen`: `python -m dask worker` and `scheduler` are Treadle's."""
    python, *command = map(str, args)
    if command[:2] != ["-m", "dask"]:
        with _popen(args, *rest, **kwargs) as process:
            yield process
        return
    options = ["--http=none" if option == "--no-dashboard" else option for option in command[2:]]
    with _popen([python, "-m", "treadle", *options], *rest, **kwargs) as process:
        if options[0] == "scheduler":
            # `treadle worker` does not wait for one that is not there yet.
            port = next(
                int(o.rpartition("=")[2]) for o in options if o.rpartition("=")[2].isdigit()
            )
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
        yield process
