"""Graphs on several threads of this process."""

from __future__ import annotations

import atexit
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from multiprocessing.pool import Pool
from typing import Any

import dask.config
from dask.callbacks import Callback

from treadle import _core, sync
from treadle._compat.dask import MultiprocessingPoolExecutor
from treadle.common._settings import num_workers_of
from treadle.local._graph import Cache, Graph, Keys, configured_cache, materialize, rerun_locally
from treadle.local._with_callbacks import executor_size, run_steps

__all__ = ["get"]

atexit.register(_core.close_pool)


def get(
    dsk: Graph,
    keys: Keys,
    cache: Cache | None = None,
    num_workers: int | None = None,
    pool: Executor | Pool | None = None,
    **kwargs: Any,
) -> Any:
    """Compute ``keys`` of a graph on several threads.

    The counterpart of ``dask.threaded.get``. The threads are the engine's own unless a pool is
    given, here or as ``pool`` in Dask's configuration. Called inside a task, it runs the graph on
    the calling thread.

    Parameters
    ----------
    dsk
        A Dask graph: a mapping of keys to tasks, or an expression that makes one.
    keys
        A key, or (nested) lists of keys.
    cache
        Values that are there already, by key. Values of the run are kept in it while they are
        needed, and those of ``keys`` afterwards.
    num_workers
        How many threads run tasks; by default ``num_workers`` of Dask's configuration, or else the
        number of cores that this process may use.
    pool
        Any ``concurrent.futures.Executor``, or a pool of ``multiprocessing``. Tasks that have to
        leave the process are pickled with ``cloudpickle``.
    **kwargs
        ``callbacks`` and ``rerun_exceptions_locally`` as in Dask; anything else is ignored, as
        Dask ignores it.

    Returns
    -------
    The value of the key, or (nested) tuples of values.

    Raises
    ------
    KeyError
        A requested key is not in the graph.
    MissingDependencyError
        A task reads a key that is not in the graph.
    CycleError
        Tasks wait for each other.
    KeyboardInterrupt
        Within 100 ms after the signal. Tasks in flight finish on their own, and their results are
        dropped.
    Exception
        What a task raises, with its own traceback; nothing starts after that.
    """
    config = dask.config.config
    cache = configured_cache(cache)
    callbacks = kwargs.get("callbacks")
    rerun = rerun_locally(kwargs)
    native = cache is None and not callbacks and not Callback.active and not rerun
    if _core.inside_a_task():
        # The thread is one of somebody's workers: waiting for others could be for ever.
        return sync.get(dsk, keys, cache, callbacks=callbacks)
    if pool is None:
        pool = config.get("pool")
    if pool is not None:
        executor = MultiprocessingPoolExecutor(pool) if isinstance(pool, Pool) else pool
        limit = executor_size(executor)
        if native and isinstance(executor, ThreadPoolExecutor):
            return _core.run_threads(materialize(dsk), keys, limit, _Recruiter(executor))
        return run_steps(dsk, keys, executor, limit, cache, callbacks, rerun)
    limit = num_workers_of(num_workers)
    if native:
        return _core.run_threads(materialize(dsk), keys, limit)
    executor = ThreadPoolExecutor(limit, thread_name_prefix="treadle")
    try:
        return run_steps(dsk, keys, executor, limit, cache, callbacks, rerun)
    finally:
        # After an interrupt, tasks in flight finish on their own.
        executor.shutdown(wait=False, cancel_futures=True)


class _Recruiter:
    """Makes threads of a ``ThreadPoolExecutor`` work for a team."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.executor = executor

    def __call__(self, team: _core.Team) -> None:
        def left(future: Future[None]) -> None:
            if future.cancelled():
                team.lost(RuntimeError("the pool was shut down before the graph was computed"))
            elif (error := future.exception()) is not None:
                team.lost(error)

        self.executor.submit(team.work).add_done_callback(left)
