"""From a client of another engine to a client of Treadle in the same cluster."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import distributed

from treadle.common._worker_options import threads_of
from treadle.hosting._dask import DaskHost
from treadle.hosting._host_base import Host, Place

if TYPE_CHECKING:
    from treadle.client import Client

__all__ = ["attach", "check_client", "check_options", "connect", "detach", "run"]


def attach(
    dask_client: distributed.Client,
    *,
    nthreads: int | None = None,
    memory_fraction: float = 0.8,
    processes: bool = False,
    **kwargs: Any,
) -> Client:
    """Start Treadle inside a Dask cluster, and return a client of it.

    Treadle's scheduler runs in the process of Dask's scheduler, and a worker in the process of each
    worker of Dask, present and future. Both engines work side by side. They share the cores and the
    memory. Closing the returned client, or ``client.detach()``, ends Treadle there and leaves the
    Dask cluster as it was.

    The workers' threads, memory, directory, resources and names are those of Dask's workers. Where
    the Dask cluster has TLS, Treadle's connections have TLS, with certificates of their own.

    Parameters
    ----------
    dask_client
        A client of the cluster. With an asynchronous one, what is returned has to be awaited, in
        the client's event loop; it gives an asynchronous client.
    nthreads
        How many tasks each worker runs at once; by default, and with 0, as many as Dask's worker.
    memory_fraction
        The part of the memory limit of Dask's worker that Treadle's has, from 0 to 1.
    processes
        Whether Treadle's workers are processes of their own beside Dask's workers: for tasks that
        must not share an interpreter with them. Values between the two are copied then.
    **kwargs
        What :class:`treadle.Client` takes.

    Raises
    ------
    TypeError
        ``dask_client`` is not a client of Dask.
    ValueError
        ``nthreads`` or ``memory_fraction`` is out of range.
    RuntimeError
        Treadle is not installed there, has another version, or is attached already.

    Examples
    --------
    >>> client = treadle.attach(distributed.Client("tcp://scheduler:8786"))  # doctest: +SKIP
    >>> client.detach()  # doctest: +SKIP
    """
    check_client(dask_client, "attach")
    check_options(nthreads, memory_fraction)
    host = DaskHost(dask_client, nthreads, memory_fraction, processes)
    if dask_client.asynchronous:
        # To be awaited: the same happens in the event loop.
        return _attach(host, kwargs)  # type: ignore[return-value]
    place = dask_client.sync(host.start)
    try:
        client = connect(place, kwargs)
    except BaseException:
        dask_client.sync(host.stop)
        raise
    client._host = host
    return client


def detach(dask_client: distributed.Client) -> Any:
    """End what :func:`attach` has started, from any client of the cluster.

    ``client.detach()`` of the attached client does the same, and can keep its values. This is for a
    cluster whose attached client is gone, because its process was killed. If it is there still, its
    connection ends.

    Parameters
    ----------
    dask_client
        Any client of the cluster. With an asynchronous one, what is returned has to be awaited.

    Raises
    ------
    TypeError
        ``dask_client`` is not a client of Dask.
    RuntimeError
        Treadle is not attached to the cluster.
    """
    check_client(dask_client, "detach")
    return run(dask_client, DaskHost(dask_client, 1, 1.0, processes=False).undo)


def check_client(client: Any, what: str) -> None:
    """Refuse what is no client of Dask.

    Raises
    ------
    TypeError
        It is not.
    """
    from treadle.client import Client

    if isinstance(client, Client) or not isinstance(client, distributed.Client):
        raise TypeError(f"treadle.{what} takes a distributed.Client, not {type(client).__name__}")


def run(client: distributed.Client, function: Callable[[], Coroutine[Any, Any, None]]) -> Any:
    """Wait for a coroutine in the client's event loop, or return it if the client is asynchronous."""
    return function() if client.asynchronous else client.sync(function)


def check_options(nthreads: int | None, memory_fraction: float) -> None:
    """Refuse what no host has.

    Raises
    ------
    TypeError, ValueError
        An option is no number, or out of range.
    """
    threads_of("nthreads", nthreads, 1)
    if not 0 < memory_fraction <= 1:
        raise ValueError(f"memory_fraction={memory_fraction}: give a fraction from 0 to 1")


async def _attach(host: Host, kwargs: dict[str, Any]) -> Client:
    place = await host.start()
    try:
        client: Client = await connect(place, {**kwargs, "asynchronous": True})
    except BaseException:
        await host.stop()
        raise
    client._host = host
    return client


def connect(place: Place, kwargs: dict[str, Any]) -> Client:
    """Return a client of a scheduler. Further ones of this process need nothing but its address."""
    from treadle.client import Client
    from treadle.common import _addresses

    credentials = place._asdict()
    address = credentials.pop("address")
    _addresses.remember(address, **credentials)
    return Client(address, **credentials, **kwargs)
