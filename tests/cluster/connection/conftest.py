"""A scheduler and a worker in this process, and connections to them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from connection_support import Connect, Handlers

from treadle import _core
from treadle.cluster._local_cluster import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with_worker = LocalCluster(processes=False, threads_per_worker=2)
    yield with_worker
    with_worker.close()


@pytest.fixture
def connect(cluster: LocalCluster) -> Iterator[Connect]:
    made: list[Any] = []

    def connect(handlers: Any = None, **options: Any) -> Any:
        name = f"client-{os.getpid()}-{time.monotonic_ns()}"
        options.setdefault("secret", Path(cluster.secret_file))
        address = cluster.scheduler_address
        connection = _core.Connection(address, name, handlers or Handlers(), **options)
        made.append(connection)
        return connection

    yield connect
    for connection in made:
        connection.close(1.0)


@pytest.fixture
def connection(connect: Connect) -> Any:
    return connect()
