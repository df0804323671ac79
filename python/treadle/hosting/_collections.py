"""Persisted collections of the host's client that become Treadle's, and back."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import distributed
from dask.base import is_dask_collection
from dask.core import flatten

from treadle._compat.dask import Alias

if TYPE_CHECKING:
    from treadle.client import Client

__all__ = ["adopt", "give_back"]

_T = TypeVar("_T")


def adopt(collection: _T, client: Client | None = None) -> _T:
    """Return a persisted collection of the host's client as one of Treadle's client.

    The values go from the host's workers to Treadle's, which are in the same processes: nothing is
    copied there, and nothing goes through the client. The one given stays what it is.

    Parameters
    ----------
    collection
        A Dask collection, persisted and finished.
    client
        Of :func:`treadle.attach`; by default the one that is Dask's default client. With an
        asynchronous one, what is returned has to be awaited.

    Raises
    ------
    TypeError
        It is no collection.
    ValueError
        It is not persisted, or parts of it still run, or ``client`` has another value of a key.
    RuntimeError
        Parts of it failed or are lost; or the client is not attached to anything.
    """
    client = _attached(client)
    return client.sync(_adopt, collection, client)  # type: ignore[no-any-return]


def give_back(collection: _T, client: Client | None = None) -> _T:
    """Return a persisted collection of Treadle's client as one of the host's client.

    The values go from Treadle's workers to the host's. What was adopted from the host and is still
    there stays there; any other key that the host has is refused with a ``ValueError``, since its
    value may be another one. The result needs Treadle no more.

    Parameters and errors are those of :func:`adopt`.
    """
    client = _attached(client)
    return client.sync(_give_back, collection, client)  # type: ignore[no-any-return]


async def _adopt(collection: Any, client: Client) -> Any:
    host = client.host()
    keys = _keys(collection, "Dask's client")
    theirs = [future for future in keys.values() if host.owns(future)]
    found = await host.adopt(client, theirs)
    return _rebuilt(collection, keys, found, client, f"{host}, nor of this client")


async def _give_back(collection: Any, client: Client) -> Any:
    keys = _keys(collection, "this client")
    ours = [future for future in keys.values() if future.client is client]
    found = await client.host().give_back(client, ours)
    return _rebuilt(collection, keys, found, None, "this client")


def _attached(client: Client | None) -> Client:
    from treadle.client import Client

    found: Any = distributed.default_client() if client is None else client
    if not isinstance(found, Client):
        raise RuntimeError(
            f"{found!r} is not a client of Treadle: give the one that treadle.attach returned, "
            "client=..."
        )
    found.host()
    return found


def _keys(collection: Any, whose: str) -> dict[Hashable, Any]:
    """Return the future of each part of a collection."""
    if not is_dask_collection(collection):
        raise TypeError(f"a Dask collection is needed, not {type(collection).__name__}")
    graph = collection.__dask_graph__()
    futures = {}
    for key in flatten(collection.__dask_keys__()):
        node = graph.get(key)
        # Data frames give their parts other names than those that the futures have.
        while isinstance(node, Alias):
            node = graph.get(node.target)
        if not isinstance(node, distributed.Future):
            raise ValueError(
                f"the collection is not persisted: {key!r} is no future. Persist it with {whose} "
                "first, client.persist(collection), and wait for it"
            )
        futures[key] = node
    return futures


def _rebuilt(
    collection: Any,
    keys: Mapping[Hashable, Any],
    found: Mapping[Hashable, Any],
    own: Any,
    whose: str,
) -> Any:
    for future in keys.values():
        if future.key not in found and (own is None or future.client is not own):
            raise ValueError(f"{future.key!r} is not a future of {whose}")
    rebuild, args = collection.__dask_postpersist__()
    return rebuild({key: found.get(future.key, future) for key, future in keys.items()}, *args)
