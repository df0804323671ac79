"""Clusters of engines: ours and ipyparallel's, on this machine."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

# ipyparallel's hub forgets engines that take longer to register; on few cores many do.
REGISTRATION = 600


@contextlib.contextmanager
def treadle(count: int) -> Iterator[Any]:
    import treadle

    with treadle.Client(workers=count, threads_per_worker=1) as client:
        client.wait_for_workers(count)
        yield client


@contextlib.contextmanager
def ipyparallel(count: int) -> Iterator[Any]:
    import ipyparallel

    cluster = ipyparallel.Cluster(
        n=count,
        controller_args=[f"--Hub.registration_timeout={REGISTRATION}"],
        log_level=logging.ERROR,
    )
    cluster.start_cluster_sync()
    try:
        client = cluster.connect_client_sync()
        client.wait_for_engines(count, timeout=REGISTRATION, interactive=False)
        yield client
        client.close()
    finally:
        cluster.stop_cluster_sync()


CLUSTERS: dict[str, Callable[[int], contextlib.AbstractContextManager[Any]]] = {
    "treadle": treadle,
    "ipyparallel": ipyparallel,
}


def views(client: Any) -> dict[str, Any]:
    """Both views of all engines of a client."""
    return {"direct": client.direct_view(), "broadcast": client.broadcast_view()}
