"""Graphs on several processes of this machine."""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Any

from dask.core import flatten

from treadle import threaded
from treadle._graph import Graph, Keys, materialize
from treadle._settings import num_workers_of

if TYPE_CHECKING:
    from treadle.client import Client

__all__ = ["get"]

_lock = threading.Lock()
#: By number of processes.
_clients: dict[int, Client] = {}


def get(dsk: Graph, keys: Keys, num_workers: int | None = None, **kwargs: Any) -> Any:
    """Compute ``keys`` of a graph on several processes.

    The counterpart of ``dask.multiprocessing.get``, for ``compute(scheduler=treadle.processes.get)``;
    :func:`treadle.install` has no name for it. The processes are kept for the next graph, and
    end with this one. They pass values to each other themselves, through shared memory.

    Parameters
    ----------
    dsk
        A Dask graph: a mapping of keys to tasks, or an expression that makes one.
    keys
        A key, or (nested) lists of keys.
    num_workers
        How many processes, of one thread each; by default ``num_workers`` of Dask's configuration,
        or else the number of cores that this process may use.
    **kwargs
        Ignored, as Dask ignores what it does not know.

    Returns
    -------
    The value of the key, or (nested) tuples of values.

    Raises
    ------
    CycleError
        The tasks need each other.
    KeyError
        A requested key is not in the graph.
    MissingDependencyError
        A task reads a key that is not in the graph.
    Exception
        What a task raises, with its own traceback.
    """
    from distributed import get_worker

    from treadle.client._graphs import converted

    try:
        get_worker()
    except ValueError:
        pass
    else:
        # Inside a task of a cluster: its processes are there already.
        return threaded.get(dsk, keys, **kwargs)
    graph = converted(materialize(dsk))
    wanted = list(dict.fromkeys(flatten([keys])))
    for key in wanted:
        if key not in graph:
            raise KeyError(key)
    client = _client(num_workers_of(num_workers))
    futures = client._submit_graph(client._usable("submit"), graph, wanted)
    try:
        values = client.gather(futures)
    except BaseException:
        # What is not needed any more shall not go on.
        client.cancel(list(futures.values()))
        raise
    finally:
        for future in futures.values():
            future.release()
    return _shaped(keys, values)


def _shaped(keys: Any, values: dict[Any, Any]) -> Any:
    if isinstance(keys, list):
        return tuple(_shaped(key, values) for key in keys)
    return values[keys]


def _client(count: int) -> Client:
    from treadle.client import Client

    with _lock:
        client = _clients.get(count)
        if client is None or client.status != "running":
            client = _clients[count] = Client(
                workers=count,
                threads_per_worker=1,
                set_as_default=False,
                dashboard_address=None,
                name="processes",
            )
        return client


def _close() -> None:
    with _lock:
        clients = list(_clients.values())
        _clients.clear()
    for client in clients:
        client.close()


def _after_fork() -> None:
    """Leave the parent's processes alone."""
    global _lock
    _lock = threading.Lock()
    _clients.clear()


atexit.register(_close)
os.register_at_fork(after_in_child=_after_fork)
