"""Clusters of two local worker processes with one thread each: ours, distributed's, frisky's, Ray's."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dask
from distributed import Client, futures_of
from distributed import wait as distributed_wait

from program import Program

WORKERS = 2


def has(peer: str) -> bool:
    """Whether a peer is installed that ``make bench-cluster`` installs."""
    return importlib.util.find_spec(peer) is not None


@contextlib.contextmanager
def treadle(workers: int = WORKERS, threads: int = 1, **options: Any) -> Iterator[Any]:
    import treadle

    with treadle.Client(workers=workers, threads_per_worker=threads, **options) as client:
        client.wait_for_workers(workers)
        yield client


@contextlib.contextmanager
def distributed(workers: int = WORKERS, threads: int = 1, **options: Any) -> Iterator[Any]:
    import distributed

    with distributed.Client(
        n_workers=workers,
        threads_per_worker=threads,
        processes=True,
        dashboard_address=None,
        silence_logs=50,
        **options,
    ) as client:
        yield client


@contextlib.contextmanager
def attached(workers: int = WORKERS, threads: int = 1, **options: Any) -> Iterator[Any]:
    """Ours in the worker processes of a cluster of distributed's."""
    import treadle

    with (
        distributed(workers, threads, set_as_default=False) as there,
        treadle.attach(there, **options) as here,
    ):
        here.wait_for_workers(workers)
        yield here


@contextlib.contextmanager
def frisky(workers: int = WORKERS, threads: int = 1) -> Iterator[Any]:
    import frisky

    with (
        frisky.LocalCluster(
            n_workers=workers, threads_per_worker=threads, processes=True, silence_summary=True
        ) as cluster,
        cluster.get_client() as client,
        # It makes itself Dask's scheduler, for everybody in this process.
        dask.config.set(scheduler=None),
    ):
        yield client


@contextlib.contextmanager
def apart(
    workers: int = WORKERS, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[Any, int, list[int]]]:
    """A client of ours whose scheduler is a process of its own; the scheduler's pid, the workers'."""
    import treadle

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        known = ["--scheduler-file", str(Path(folder, "scheduler.json"))]
        command = [sys.executable, "-m", "treadle"]
        scheduler = [*command, "scheduler", "--port", "0", "--http", "none", "--supervised", *known]
        started = [stack.enter_context(Program(scheduler, environment))]
        until = time.monotonic() + 30
        while not Path(known[1]).exists():
            assert time.monotonic() < until, "the scheduler does not start"
            time.sleep(0.05)
        for _ in range(workers):
            worker = [*command, "worker", "--nthreads", "1", "--supervised", *known]
            started.append(stack.enter_context(Program(worker)))
        client = stack.enter_context(treadle.Client(scheduler_file=known[1]))
        client.wait_for_workers(workers)
        first, *others = (program.process.pid for program in started)
        yield client, first, others


@contextlib.contextmanager
def ray(workers: int = WORKERS) -> Iterator[Any]:
    import ray

    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        logging_level="error",
        log_to_driver=False,
        configure_logging=False,
    )
    try:
        yield ray
    finally:
        ray.shutdown()


CLIENTS = {"treadle": treadle, "distributed": distributed, "attached": attached}


@contextlib.contextmanager
def beside(workers: int = WORKERS, threads: int = 1) -> Iterator[dict[str, Any]]:
    """Clients of ours and of the peers that are here, all at once; none of them is Dask's default."""
    with contextlib.ExitStack() as stack:
        clients = {
            "treadle": stack.enter_context(treadle(workers, threads, set_as_default=False)),
            "distributed": stack.enter_context(distributed(workers, threads, set_as_default=False)),
        }
        if has("frisky"):
            clients["frisky"] = stack.enter_context(frisky(workers, threads))
        yield clients


def new_each_time(client: Any) -> dict[str, Any]:
    """The options with which calls of equal arguments are run again: always so with frisky."""
    return {"pure": False} if isinstance(client, Client) else {}


def wait(client: Any, what: Any) -> None:
    """Until futures, or all of a persisted collection, are there."""
    if isinstance(client, Client):
        with client.as_current():
            done, _ = distributed_wait(what)
        if any(future.status == "error" for future in futures_of(list(done))):
            raise RuntimeError("a task failed")
        return
    import frisky

    if not isinstance(what, list):
        values = dict(what.__dask_graph__()).values()
        what = [value for value in values if isinstance(value, frisky.Future)]
    frisky.wait(what)


def held(client: Any) -> set[str]:
    """The keys whose values workers have."""
    if isinstance(client, Client):
        return {str(key) for key, workers in client.who_has().items() if workers}
    return {task["key"] for task in client.get_scheduler_state()["tasks"] if task["who_has"]}


def settled(client: Any, keys: set[str]) -> Callable[[], None]:
    """Waits until workers have only these keys.

    Results have the same keys each time: one that is not released yet would not be computed again.
    """

    def settle() -> None:
        until = time.monotonic() + 30
        while held(client) - keys:
            assert time.monotonic() < until, "results are not released"
            time.sleep(0.01)

    return settle
