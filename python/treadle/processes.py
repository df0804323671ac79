"""Graphs on several processes of this machine."""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.pool import Pool
from typing import TYPE_CHECKING, Any

import dask.config
from dask.callbacks import Callback
from dask.core import flatten

from treadle import _core, threaded
from treadle._compat.dask import get_context, initialize_worker_process
from treadle.common._settings import num_workers_of
from treadle.local._graph import Cache, Graph, Keys, configured_cache, materialize, rerun_locally
from treadle.local._unpicklable_tasks import CannotTravel, in_stages
from treadle.local._with_callbacks import run_steps

if TYPE_CHECKING:
    from treadle.client import Client, Future

__all__ = ["get"]

Initializer = Callable[[], object]

# Who holds it starts or ends processes.
_lock = threading.Lock()
# By number of processes and what each has called first.
_clients: dict[tuple[int, Initializer | None], Client] = {}

_warned_of_pickles = False


def get(
    dsk: Graph,
    keys: Keys,
    cache: Cache | None = None,
    num_workers: int | None = None,
    pool: Executor | Pool | None = None,
    initializer: Initializer | None = None,
    func_dumps: Any = None,
    func_loads: Any = None,
    **kwargs: Any,
) -> Any:
    """Compute ``keys`` of a graph on several processes.

    The counterpart of ``dask.multiprocessing.get``: ``compute(scheduler="treadle-processes")``. The
    processes are kept for the next graph, and end with this one. They pass values to each other
    themselves, through shared memory. A task runs in the calling process if its function, an
    argument or its value cannot be pickled, on threads; what else has run already then runs again.

    Parameters
    ----------
    dsk
        A Dask graph: a mapping of keys to tasks, or an expression that makes one.
    keys
        A key, or (nested) lists of keys.
    cache
        As with :func:`treadle.threaded.get`.
    num_workers
        How many processes, of one thread each; by default ``num_workers`` of Dask's configuration,
        or else the number of cores that this process may use.
    pool
        Run tasks there instead: an executor, or a pool of ``multiprocessing``. By default ``pool`` of
        Dask's configuration.
    initializer
        Called in each process before its first task; by default ``multiprocessing.initializer`` of
        Dask's configuration. Graphs with another one than the last have processes started for them.
    func_dumps, func_loads
        Not used, with a warning: values are pickled as on any cluster.
    **kwargs
        ``callbacks`` and ``rerun_exceptions_locally`` as in Dask; anything else is ignored, as
        Dask ignores it, and so are ``chunksize`` and ``optimize_graph``.

    Notes
    -----
    With callbacks, a cache or ``rerun_exceptions_locally``, this process takes each step, and values
    pass through it. So it is with ``multiprocessing.context`` of Dask's configuration if that is not
    ``"spawn"``, and in a child that was forked from a process with a cluster; then the processes are
    started for one graph, as with Dask.

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
    # First: it says what to install where distributed is missing.
    from treadle.client._graphs import converted

    # isort: split
    from distributed import get_worker

    _warn_of_pickles(func_dumps, func_loads)
    pool = pool or dask.config.get("pool", None)
    initializer = initializer or dask.config.get("multiprocessing.initializer", None)
    if pool is not None:
        if initializer is not None:
            warnings.warn(
                "initializer= has no effect with pool=: give it to the pool when that is made",
                UserWarning,
                stacklevel=2,
            )
        return threaded.get(dsk, keys, cache, pool=pool, **kwargs)
    limit = num_workers_of(num_workers)
    try:
        get_worker()
    except ValueError:
        inside = _core.inside_a_task()
    else:
        inside = True
    if inside:
        # A task of a cluster has processes already; one of threads cannot wait for others.
        return threaded.get(dsk, keys, cache, num_workers=num_workers, **kwargs)
    cache = configured_cache(cache)
    callbacks = kwargs.get("callbacks")
    rerun = rerun_locally(kwargs)
    own = dask.config.get("multiprocessing.context", "spawn") != "spawn" or _is_forked()
    if own or callbacks or Callback.active or rerun or cache is not None:
        with _started(limit, initializer) if own else _kept(limit, initializer) as executor:
            return run_steps(dsk, keys, executor, limit, cache, callbacks, rerun)
    graph = converted(materialize(dsk))
    wanted = list(dict.fromkeys(flatten([keys])))
    for key in wanted:
        if key not in graph:
            raise KeyError(key)
    client = _client(limit, initializer)
    here = partial(_compute_here, limit)
    return _shaped(keys, in_stages(graph, wanted, partial(_compute_there, client), here))


def _compute_there(
    client: Client, graph: Mapping[Hashable, Any], wanted: list[Hashable]
) -> dict[Hashable, Any]:
    from treadle.client._submission import submit_graph

    try:
        futures = submit_graph(client, client._usable("submit"), graph, wanted)
    except TypeError as error:
        if _is_about_pickling(error):
            raise CannotTravel from error
        raise
    try:
        values: dict[Hashable, Any] = client.gather(futures)
        return values
    except BaseException as error:
        if isinstance(error, TypeError) and _is_about_pickling(error):
            raise CannotTravel(_not_pickled(futures, graph)) from error
        # What is not needed any more shall not go on.
        client.cancel(list(futures.values()))
        raise
    finally:
        for future in futures.values():
            future.release()


def _compute_here(
    limit: int, graph: dict[Hashable, Any], wanted: list[Hashable]
) -> dict[Hashable, Any]:
    return dict(zip(wanted, threaded.get(graph, wanted, num_workers=limit), strict=True))


def _is_about_pickling(error: TypeError) -> bool:
    """Whether the client or a worker could not pickle something."""
    return bool(error.args) and str(error.args[0]).startswith("Could not serialize object of type")


def _not_pickled(
    futures: Mapping[Hashable, Future], graph: Mapping[Hashable, Any]
) -> Iterator[Hashable]:
    """Yield the keys whose values could not be pickled."""
    of_message = {f"the result of {key!r}": key for key in graph}
    for future in futures.values():
        try:
            future.result()
        except TypeError as error:
            if _is_about_pickling(error) and len(error.args) > 2:
                place = str(error.args[2]).rpartition(" at worker ")[0]
                if place in of_message:
                    yield of_message[place]
        except Exception:
            # Another task's, which the next attempt raises.
            continue


def _warn_of_pickles(func_dumps: Any, func_loads: Any) -> None:
    global _warned_of_pickles
    config = dask.config.config
    given = func_dumps or func_loads or config.get("func_dumps") or config.get("func_loads")
    if given is not None and not _warned_of_pickles:
        _warned_of_pickles = True
        warnings.warn(
            "Treadle does not use func_dumps= and func_loads=: values are pickled as on any cluster",
            UserWarning,
            stacklevel=3,
        )


@contextmanager
def _started(limit: int, initializer: Initializer | None) -> Iterator[Executor]:
    """Start processes as Dask's configuration has them, for one graph."""
    with ProcessPoolExecutor(
        limit,
        mp_context=get_context(),
        initializer=partial(initialize_worker_process, user_initializer=initializer),
    ) as pool:
        yield pool


@contextmanager
def _kept(limit: int, initializer: Initializer | None) -> Iterator[Executor]:
    """Use the processes that are kept, as an executor."""
    with _client(limit, initializer).get_executor() as executor:
        yield executor


def _is_forked() -> bool:
    """Whether this process can have no cluster, since it was forked from one that had."""
    try:
        _core.refuse_forked()
    except RuntimeError:
        return True
    return False


def _shaped(keys: Any, values: dict[Any, Any]) -> Any:
    if isinstance(keys, list):
        return tuple(_shaped(key, values) for key in keys)
    return values[keys]


def _client(count: int, initializer: Initializer | None) -> Client:
    from treadle.client import Client

    with _lock:
        client = _clients.get((count, initializer))
        if client is not None and client.status == "running":
            return client
        # A program that makes its initializers anew would have ever more processes.
        for other in [key for key in _clients if key[1] is not None and initializer is not None]:
            _clients.pop(other).close()
        client = Client(
            workers=count,
            threads_per_worker=1,
            set_as_default=False,
            dashboard_address=None,
            name="processes",
        )
        if initializer is not None:
            try:
                client.run(initializer)
            except BaseException:
                client.close()
                raise
        _clients[count, initializer] = client
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
