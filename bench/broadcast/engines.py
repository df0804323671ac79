"""Clusters of engines: ours and ipyparallel's, on this machine, and simulated ones."""

from __future__ import annotations

import contextlib
import logging
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from program import Program

ROOT = Path(__file__).parents[2]

# ipyparallel's hub forgets engines that take longer to register; on few cores many do.
REGISTRATION = 600

# Seconds between the starts of two engines: about what one of them takes of two cores.
DELAY = 0.8

# Of ipyparallel's broadcast scheduler: the fastest of 0 to 3, as `published.py` measures them.
DEPTH = 2

# Of simulated engines: hundreds of nodes share a few cores, and answer when it is their turn.
PATIENCE = 300
# Of them in one process, and at most.
TOGETHER = 64
CROWD = 512


@contextlib.contextmanager
def treadle(count: int, **options: Any) -> Iterator[Any]:
    import treadle

    with treadle.Client(workers=count, threads_per_worker=1, **options) as client:
        client.wait_for_workers(count)
        yield client


@contextlib.contextmanager
def ipyparallel_cluster(count: int, *controller_args: str) -> Iterator[Any]:
    """A cluster of ipyparallel's, when all its engines are there: its ``Cluster``.

    Raises ``TimeoutError`` if they do not come: some of a hundred do not always.
    """
    import ipyparallel
    from traitlets.config import Config

    # Many start at once: the controller answers some late. It misses some if it is busy: the first heartbeat
    # of an engine may come before its registration is noted, and is ignored ("ignoring new heart") for good.
    config = Config()
    config.LocalEngineSetLauncher.delay = DELAY
    config.EngineLauncher.engine_args = [f"--IPEngine.timeout={REGISTRATION}"]
    cluster = ipyparallel.Cluster(
        n=count,
        config=config,
        controller_args=[f"--Hub.registration_timeout={REGISTRATION}", *controller_args],
        log_level=logging.ERROR,
    )
    cluster.start_cluster_sync()
    try:
        until = time.monotonic() + REGISTRATION
        while True:
            # A client that connects while engines register may miss some: another one is told of all.
            with cluster.connect_client_sync() as client:
                try:
                    client.wait_for_engines(count, timeout=20, interactive=False)
                    break
                except TimeoutError:
                    if time.monotonic() > until:
                        raise
        yield cluster
    finally:
        cluster.stop_cluster_sync()


@contextlib.contextmanager
def ipyparallel(count: int) -> Iterator[Any]:
    depth = f"--IPController.broadcast_scheduler_depth={DEPTH}"
    with ipyparallel_cluster(count, depth) as cluster, cluster.connect_client_sync() as client:
        client.wait_for_engines(count, timeout=REGISTRATION, interactive=False)
        yield client


@contextlib.contextmanager
def simulated(
    count: int, hosts: int | None = None, **options: Any
) -> Iterator[tuple[Any, Simulated]]:
    """A client, and engines on so many hosts, as far as any node knows; by default on one each."""
    import treadle

    with (
        treadle.Client(workers=0, processes=True, worker_timeout=PATIENCE, **options) as client,
        Simulated(client, count, hosts or count) as crowd,
    ):
        yield client, crowd


CLUSTERS: dict[str, Callable[[int], contextlib.AbstractContextManager[Any]]] = {
    "treadle": treadle,
    "ipyparallel": ipyparallel,
}


def views(client: Any) -> dict[str, Any]:
    """The views of all engines of a client; ipyparallel has one more."""
    found = {"direct": client.direct_view(), "broadcast": client.broadcast_view()}
    if type(client).__module__.startswith("ipyparallel"):
        found["coalescing"] = client.broadcast_view(is_coalescing=True)
    return found


class Simulated:
    """Engines of a few processes: the workers' own native code, with sockets and threads of each, and
    instead of Python an answer that is always the same.
    """

    def __init__(self, client: Any, count: int, hosts: int) -> None:
        # Each has some fifteen descriptors.
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._hosts = hosts
        processes = [min(TOGETHER, count - first) for first in range(0, count, TOGETHER)]
        self._stack = contextlib.ExitStack()
        python = "{}.{}".format(*sys.version_info)
        cluster = client.cluster
        command = [str(_built()), cluster.scheduler_address, cluster.secret_file, python]
        frames = [frame.hex() for frame in _done()]
        self._programs = [
            self._stack.enter_context(
                Program([*command, str(these), str(these * hosts // count), *frames])
            )
            for these in processes
        ]
        for program in self._programs:
            program.line(timeout=120)
        client.wait_for_workers(count)

    def sent(self, size: int = 0) -> tuple[int, list[int]]:
        """The degree of the tree of a payload, and bytes that each has sent since the last call."""
        sent: list[int] = []
        for program in self._programs:
            program.tell(f"{size} {self._hosts}")
            degree, *these = map(int, program.line().split())
            sent += these
        return degree, sent

    def __enter__(self) -> Simulated:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _done() -> list[bytes]:
    """What an engine answers to a push: when it began and ended, no error, no value."""
    # Builds before this one, which `bench/builds` measures beside it, have it elsewhere.
    from treadle.worker import _cast_reply

    return [struct.pack("<2d", 0.0, 0.0), _cast_reply.dumps({"status": "ok"})]


def _built() -> Path:
    command = [
        "cargo",
        "build",
        "--quiet",
        "--profile",
        "dist",
        "--locked",
        "-p",
        "treadle-node-worker",
    ]
    subprocess.run([*command, "--example", "engines"], cwd=ROOT, check=True)
    return ROOT / "target" / "dist" / "examples" / "engines"
