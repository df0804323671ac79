"""Clusters of two local worker processes with one thread each: ours, distributed's, Ray's."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

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


CLIENTS = {"treadle": treadle, "distributed": distributed}
