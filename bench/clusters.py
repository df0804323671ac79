"""Clusters of two local worker processes with one thread each: ours, distributed's, Ray's."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from program import Program

WORKERS = 2


def has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None


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
def attached(workers: int = WORKERS, threads: int = 1) -> Iterator[Any]:
    """Ours in the worker processes of a cluster of distributed's."""
    import treadle

    with (
        distributed(workers, threads, set_as_default=False) as there,
        treadle.attach(there) as here,
    ):
        here.wait_for_workers(workers)
        yield here


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


def settled(client: Any, keys: set[Any]) -> Callable[[], None]:
    """Waits until workers have only these keys.

    Results have the same keys each time: one that is not released yet would not be computed again.
    """

    def settle() -> None:
        until = time.monotonic() + 30
        while {key for key, workers in client.who_has().items() if workers} - keys:
            assert time.monotonic() < until, "results are not released"
            time.sleep(0.01)

    return settle
