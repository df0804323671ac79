"""From a client of another engine to a client of Treadle in the same cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import distributed

from treadle.hosting._dask import DaskHost

if TYPE_CHECKING:
    from treadle.client import Client

__all__ = ["attach"]


def attach(
    dask_client: distributed.Client,
    *,
    nthreads: int | None = None,
    memory_fraction: float = 0.8,
    **kwargs: Any,
) -> Client:
    """Start Treadle inside a Dask cluster, and return a client of it.

    Treadle's scheduler runs in the process of Dask's scheduler, and a worker in the process of each
    worker of Dask, present and future. Both engines work side by side. They share the cores and the
    memory. Closing the returned client, or ``client.detach()``, ends Treadle there and leaves the
    Dask cluster as it was.

    The workers' threads, memory, directory, resources, names and certificates are those of Dask's
    workers.

    Parameters
    ----------
    dask_client
        A synchronous client of the cluster.
    nthreads
        How many tasks each worker runs at once; by default as many as Dask's worker.
    memory_fraction
        The part of the memory limit of Dask's worker that Treadle's has, from 0 to 1.
    **kwargs
        What :class:`treadle.Client` takes.

    Raises
    ------
    TypeError
        ``dask_client`` is not a client of Dask, or is asynchronous.
    ValueError
        ``nthreads`` or ``memory_fraction`` is out of range.
    RuntimeError
        Treadle is not installed there, has another version, or is attached already.

    Examples
    --------
    >>> client = treadle.attach(distributed.Client("tcp://scheduler:8786"))  # doctest: +SKIP
    >>> client.detach()  # doctest: +SKIP
    """
    from treadle.client import Client

    if isinstance(dask_client, Client) or not isinstance(dask_client, distributed.Client):
        raise TypeError(
            f"treadle.attach takes a distributed.Client, not {type(dask_client).__name__}"
        )
    if dask_client.asynchronous:
        raise TypeError(
            "treadle.attach does not serve asynchronous clients: give a synchronous one of the "
            "same cluster"
        )
    if nthreads is not None and nthreads < 1:
        raise ValueError(f"nthreads={nthreads}: a worker runs one task at least")
    if not 0 < memory_fraction <= 1:
        raise ValueError(f"memory_fraction={memory_fraction}: give a fraction from 0 to 1")
    host = DaskHost(dask_client, nthreads, memory_fraction)
    place = host.start()
    try:
        client = Client(
            place.address,
            secret=place.secret,
            certificates=place.certificates,
            insecure=place.insecure,
            **kwargs,
        )
    except BaseException:
        host.stop()
        raise
    client._host = host
    return client
