"""A pytest plugin that runs tests of distributed's client on Treadle: `pytest -p treadle_distributed …`.

`distributed.Client` is `treadle.Client`, wherever it was imported, before any test is. The clusters
that `distributed.utils_test` starts are Treadle's: `gen_cluster` has its two workers in threads of
this process, as distributed has, `cluster` (and the fixtures `client`, `s`, `a`, `b`) in processes.
All else of `utils_test` stays: time limits, an event loop for each test, and the checks that a test
leaves no threads, processes and clients behind.

`s`, `a` and `b` of a coroutine test stand for Treadle's scheduler and workers. What these know they
answer; a test that asks for more is about the inside of distributed, and skipped. Schedulers, workers
and nannies that a test makes are Treadle's.

The calls that arrive are counted and reported; with fewer than `--treadle-calls N` the exit status
is 16, whatever became of the tests. `--treadle-default-client` computes everything with a client
that all tests share: for tests that need none.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import logging
import sys
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dask
import distributed
import distributed.client
import distributed.deploy.spec
import distributed.utils_test
import pytest
from distributed import Nanny, Scheduler, Worker
from distributed.deploy.subprocess import SubprocessScheduler
from distributed.utils_test import (
    NoSchedulerDelayWorker,
    check_instances,
    check_process_leak,
)

import counted
import treadle
from clusters_of_tests import LocalClusterOfTest, rpc_of_test
from schedulers_of_tests import SchedulerOfTest, scheduler_of
from servers_of_tests import (
    CHECKS,
    PATIENCE,
    WORKER_OPTIONS,
    Nannied,
    Own,
    OwnNanny,
    OwnScheduler,
    OwnWorker,
    StandIn,
    popen,
    start_process,
    start_threads,
    unserved,
)
from treadle.client import LocalCluster
from treadle.common._stderr import aside
from treadle.errors._unserved import is_public
from treadle.shuffle import _graph

# next() on these is atomic: tests call from several threads.
_calls = itertools.count()
_graphs = itertools.count()
_values = itertools.count()
_shuffles = itertools.count()


class Client(treadle.Client):
    """`treadle.Client`, counted."""

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        next(_calls)
        return super().submit(*args, **kwargs)

    def map(self, *args: Any, **kwargs: Any) -> Any:
        next(_calls)
        return super().map(*args, **kwargs)

    def _graph_to_futures(self, *args: Any, **kwargs: Any) -> Any:
        next(_graphs)
        return super()._graph_to_futures(*args, **kwargs)

    async def _scatter(self, *args: Any, **kwargs: Any) -> Any:
        next(_values)
        return await super()._scatter(*args, **kwargs)


def count_shuffles() -> None:
    """Count what clients tell of P2P shuffles."""
    told = _graph._shuffle

    def _shuffle(*args: Any) -> Any:
        next(_shuffles)
        return told(*args)

    _graph._shuffle = _shuffle


# Clusters


async def start_cluster(
    nthreads: Sequence[tuple[Any, ...]],
    scheduler_addr: str,
    security: Any = None,
    Worker: type = Worker,
    scheduler_kwargs: Mapping[str, Any] | None = None,
    worker_kwargs: Mapping[str, Any] | None = None,
    timeout: float = PATIENCE,
) -> tuple[SchedulerOfTest, list[StandIn]]:
    """`distributed.utils_test.start_cluster`, which `gen_cluster` calls."""
    if Worker not in (distributed.Worker, Nanny, NoSchedulerDelayWorker):
        pytest.skip(f"it has workers of a class of its own: {Worker.__name__}")
    if security is not None or scheduler_addr != "127.0.0.1":
        pytest.skip("its cluster has addresses or certificates of distributed's own")
    unserved(scheduler_kwargs or {}, CHECKS)
    cluster = await asyncio.to_thread(LocalCluster, workers=0, processes=False, timeout=timeout)
    try:
        for name, (host, threads, *options) in enumerate(nthreads):
            if "://" in host:
                pytest.skip("its workers have addresses of distributed's own")
            own = {**(worker_kwargs or {}), **(options[0] if options else {})}
            unserved(own, (*WORKER_OPTIONS, "name"))
            if Worker is Nanny and "plugins" in own:
                pytest.skip("its nannies have plugins")
            own = {"name": name, "host": host, **own, "nthreads": threads}
            await (start_process if Worker is Nanny else start_threads)(cluster, own)
        if Worker is Nanny:
            await asyncio.to_thread(joined, cluster)
            workers = [Nannied(cluster, worker) for worker in cluster.workers.values()]
        else:
            workers = [OwnWorker.of(cluster, worker) for worker in cluster.workers.values()]
    except BaseException:
        await asyncio.to_thread(cluster.close)
        raise
    return scheduler_of(cluster), workers


async def end_cluster(s: SchedulerOfTest, workers: Sequence[StandIn]) -> None:
    """`distributed.utils_test.end_cluster`, which `gen_cluster` calls."""
    for worker in workers:
        # `gen_cluster` would empty it afterwards.
        vars(worker)["data"] = {}
    await asyncio.to_thread(s.treadle_cluster.close)


def joined(cluster: LocalCluster) -> dict[str, str]:
    """Wait until all workers are there; their addresses by name."""
    until = time.monotonic() + PATIENCE
    with treadle.Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(len(cluster.workers), PATIENCE)
        workers = client.scheduler_info(n_workers=-1)["workers"]
        assert time.monotonic() < until
        return {str(worker["name"]): address for address, worker in workers.items()}


@contextmanager
def cluster(
    nworkers: int = 2,
    nanny: bool = False,
    worker_kwargs: Mapping[str, Any] | None = None,
    active_rpc_timeout: float = 10,
    scheduler_kwargs: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """`distributed.utils_test.cluster`."""
    options = dict(worker_kwargs or {})
    unserved(options, WORKER_OPTIONS)
    unserved(scheduler_kwargs or {}, CHECKS)
    threads = options.pop("nthreads", 1)
    options = {name: value for name, value in options.items() if name not in CHECKS}
    with check_process_leak(check=True), check_instances():
        with dask.config.set(config or {}):
            started = LocalCluster(nworkers, threads, **options)
        with started:
            addresses = joined(started)
            yield (
                {"address": started.scheduler_address},
                [
                    {"address": addresses[name], "proc": weakref.ref(worker._process)}
                    for name, worker in started.workers.items()
                ],
            )
            # As distributed does for tests that leave theirs open.
            if client := distributed.client._get_global_client():
                client.close()


# What is put in place of distributed's


def _replace(replacements: Mapping[Any, Any]) -> None:
    """Replace objects in all modules of Dask and distributed that were imported so far."""
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("dask", "distributed"):
            for attribute, value in list(vars(module).items()):
                if isinstance(value, (type, type(_replace))) and value in replacements:
                    setattr(module, attribute, replacements[value])


# What `vars` of a class has whose body is empty.
OF_ANY_CLASS = {
    *("__module__", "__doc__", "__abstractmethods__", "_abc_impl"),
    *("__firstlineno__", "__static_attributes__"),
}


def _refuse(kind: type, own: type[Own] | None = None, served: Collection[str] = ()) -> None:
    """Have tests make Treadle's in place of a class of distributed's.

    A subclass that adds nothing is made so, too, and no other one.
    """

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        adds = vars(cls).keys() - OF_ANY_CLASS
        if own is None or (cls is not kind and (cls.__mro__[1] is not kind or adds)):
            return object.__new__(cls)
        if args:
            kwargs["address"], *rest = args
            if rest:
                pytest.skip(f"it makes a {kind.__name__} with positional arguments")
        unserved(kwargs, (*served, *CHECKS))
        made = own(kind.__name__, **kwargs)
        vars(made)["_class"] = cls
        return made

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        pytest.skip(f"it makes a {type(self).__name__} of distributed's")

    kind.__new__ = __new__  # type: ignore[method-assign,assignment]
    kind.__init__ = __init__  # type: ignore[misc]


@contextmanager
def captured_logger(
    logger: str | logging.Logger, level: int = logging.INFO, propagate: bool | None = None
) -> Iterator[io.StringIO]:
    """`distributed.utils_test.captured_logger`: what distributed logs as this Treadle logs as that."""
    name = logger if isinstance(logger, str) else logger.name
    with _captured_logger(logger, level, propagate) as text:
        if (own := LOGGERS.get(name)) is None:
            yield text
            return
        handler, theirs = logging.getLogger(name).handlers[-1], logging.getLogger(own)
        before = theirs.level
        theirs.setLevel(level)
        theirs.addHandler(handler)
        try:
            yield text
        finally:
            theirs.removeHandler(handler)
            theirs.setLevel(before)


LOGGERS = {
    "distributed": "treadle",
    "distributed.client": "treadle.client",
    "distributed.scheduler": "treadle.scheduler",
    "distributed.worker": "treadle.worker",
}
_captured_logger = distributed.utils_test.captured_logger


_replace(
    {
        distributed.Client: Client,
        distributed.LocalCluster: LocalClusterOfTest,
        distributed.utils_test.cluster: cluster,
        distributed.utils_test.start_cluster: start_cluster,
        distributed.utils_test.end_cluster: end_cluster,
        distributed.utils_test.captured_logger: captured_logger,
        distributed.utils_test.popen: popen,
    }
)
for kind in (Scheduler, Worker, Nanny):
    # Treadle looks at what they have once, which is now.
    is_public(kind, "")
OF_A_WORKER = ("address", "memory_limit", "name", "nthreads", "resources")
_refuse(Scheduler, OwnScheduler, ("plugins", "port"))
_refuse(Worker, OwnWorker, (*OF_A_WORKER, "host", "plugins"))
_refuse(Nanny, OwnNanny, (*OF_A_WORKER, "local_directory"))
_refuse(SubprocessScheduler)
distributed.deploy.spec.rpc = rpc_of_test


@pytest.fixture(scope="session", autouse=True)
def treadle_default_client(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--treadle-default-client`, computes whatever has no scheduler of its own."""
    if request.config.getoption("treadle_default_client"):
        # One thread: two that write one file with xarray 2026.9 wait for each other now and then
        # (README.md).
        with Client(threads_per_worker=1):
            yield
    else:
        yield


def order_locks_by_name() -> None:
    """Have xarray take the locks of distributed in the order of their names.

    It takes several locks in the order of their `id`, and the copies that tasks unpickle have an `id`
    each. Two tasks of one process could wait for each other for ever, on distributed as well.
    """
    try:
        from xarray.backends import locks
    except ImportError:
        return
    identity = locks._lock_identity

    def by_name(lock: Any) -> int:
        return hash(lock.name) if isinstance(lock, distributed.Lock) else identity(lock)

    locks._lock_identity = by_name


def pytest_addoption(parser: pytest.Parser) -> None:
    counted.add_option(parser)
    parser.addoption(
        "--treadle-default-client",
        action="store_true",
        help="compute with a client that all tests share",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Starts the thread that prints what workers print: it is the process's own, and no test's.
    aside(int)
    order_locks_by_name()
    count_shuffles()
    counters = {
        "calls": _calls,
        "graphs": _graphs,
        "scattered values": _values,
        "shuffles": _shuffles,
    }
    config.pluginmanager.register(counted.Counts(config, counters), "treadle_counts")
