"""Dask's own scheduler and workers, whose P2P shuffles and broadcasts Treadle carries."""

from __future__ import annotations

from typing import Any

import distributed
from distributed.diagnostics.plugin import WorkerPlugin

from treadle.common._certificates import Certificates
from treadle.hosting._attach import check_client, check_options, run
from treadle.hosting._dask import DaskHost, HostedScheduler, HostedWorker
from treadle.hosting._host_base import Place

__all__ = ["accelerate", "decelerate"]

# The name of both plugins. Workers look theirs up by it.
NAME = "treadle-accelerate"


class ShufflingScheduler(HostedScheduler):
    """Treadle's scheduler, which has no tasks: it knows where the rows of Dask's shuffles are."""

    name = NAME
    has_pages = False
    taken = "{} is accelerated already: call treadle.decelerate(client) first"

    def _enter(self) -> None:
        from treadle.hosting._broadcasts import HostedBroadcasts
        from treadle.hosting._p2p_scheduler import HostedShuffles

        self._shuffles: HostedShuffles | None = HostedShuffles(self._scheduler, self._part)
        self._broadcasts = HostedBroadcasts(self._scheduler, self._part)

    def leave(self) -> None:
        """Have Dask move all by itself, also the rows of shuffles that run: these begin anew."""
        self._broadcasts.leave()
        shuffles, self._shuffles = self._shuffles, None
        if shuffles is not None:
            shuffles.leave()

    async def close(self) -> None:
        if self._part is not None:
            await self._broadcasts.close()
        await super().close()

    def valid_workers_downscaling(self, scheduler: Any, workers: list[Any]) -> list[Any]:
        """Leave it to the plugin of Dask's shuffles."""
        del scheduler
        return workers


class ShufflingWorker(HostedWorker):
    """Treadle's worker, which runs no tasks: it has rows of Dask's shuffles, and takes values."""

    name = NAME
    passes_values = False

    async def setup(self, worker: Any) -> None:
        from treadle.hosting import _shared_values

        await super().setup(worker)
        if self._part is not None:
            _shared_values.enter(self._scheduler, worker)

    async def teardown(self, worker: Any) -> None:
        from treadle.hosting import _shared_values

        _shared_values.leave(self._scheduler, worker)
        await super().teardown(worker)

    @property
    def native(self) -> Any:
        """Its native side; None while it is not there."""
        part = self._part
        return None if part is None else part.native


class ShufflingHost(DaskHost):
    """A Dask cluster that keeps its tasks."""

    name = NAME
    missing = "{} is not accelerated"

    def scheduler_plugin(self, secret: bytes, certificates: Certificates | None) -> HostedScheduler:
        return ShufflingScheduler(secret, certificates)

    def worker_plugin(self, place: Place) -> WorkerPlugin:
        return ShufflingWorker(place, *self._options)

    async def _stop(self, client: Any) -> None:
        if self._token is not None:
            # No run that needs Treadle's workers begins while they end.
            await client.run_on_scheduler(_leave_shuffles, self._token)
        await super()._stop(client)


def accelerate(dask_client: distributed.Client, *, memory_fraction: float = 0.8) -> Any:
    """Have Treadle move the rows of a Dask cluster's P2P shuffles and the values of its broadcasts.

    Dask does everything else.

    Dask's scheduler and workers stay, and run all tasks. Treadle's part of a shuffle runs in the
    process of each worker, present and future. It serves ``df.shuffle``, ``merge``, ``set_index``
    and what else Dask shuffles by ``p2p``, and ``rechunk(method="p2p")``, for all clients of the
    cluster, and their ``scatter(broadcast=...)``. Shuffles that run already end as they began. :func:`decelerate` undoes it; the end of the
    calling process does not.

    Parameters
    ----------
    dask_client
        A client of the cluster. With an asynchronous one, what is returned has to be awaited, in
        the client's event loop.
    memory_fraction
        The part of the memory limit of Dask's worker, from 0 to 1, that counts for shuffled rows:
        those that would bring the process beyond 70 % of it go to files.

    Raises
    ------
    TypeError
        ``dask_client`` is not a client of Dask.
    ValueError
        ``memory_fraction`` is out of range.
    RuntimeError
        Treadle is not installed there or has another version, or the cluster is accelerated already.

    Examples
    --------
    >>> client = distributed.Client("tcp://scheduler:8786")  # doctest: +SKIP
    >>> treadle.accelerate(client)  # doctest: +SKIP
    >>> df.merge(other, on="name", shuffle_method="p2p").compute()  # doctest: +SKIP
    >>> treadle.decelerate(client)  # doctest: +SKIP
    """
    check_client(dask_client, "accelerate")
    check_options(None, memory_fraction)
    host = ShufflingHost(dask_client, 1, memory_fraction, processes=False)
    return run(dask_client, lambda: _start(host))


def decelerate(dask_client: distributed.Client) -> Any:
    """Undo :func:`accelerate`: Dask's own P2P and broadcasts are back. Shuffles that run begin anew.

    Parameters
    ----------
    dask_client
        Any client of the cluster. With an asynchronous one, what is returned has to be awaited.

    Raises
    ------
    TypeError
        ``dask_client`` is not a client of Dask.
    RuntimeError
        The cluster is not accelerated.
    """
    check_client(dask_client, "decelerate")
    return run(dask_client, ShufflingHost(dask_client, 1, 1.0, processes=False).undo)


async def _start(host: ShufflingHost) -> None:
    await host.start()


# What runs in Dask's scheduler.


def _leave_shuffles(token: str, dask_scheduler: Any) -> None:
    plugin = dask_scheduler.plugins.get(NAME)
    if plugin is not None and token in ("", plugin.token):
        plugin.leave()
