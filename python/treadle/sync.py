"""Graphs on the calling thread."""

from __future__ import annotations

from typing import Any

from dask.callbacks import Callback

from treadle import _core
from treadle._compat.dask import synchronous_executor
from treadle.local._graph import Cache, Graph, Keys, configured_cache, materialize
from treadle.local._with_callbacks import run_steps

__all__ = ["get"]


def get(dsk: Graph, keys: Keys, cache: Cache | None = None, **kwargs: Any) -> Any:
    """Compute ``keys`` of a graph on the calling thread, one task after another.

    The counterpart of ``dask.local.get_sync``: breakpoints and profilers see one thread.

    Parameters
    ----------
    dsk
        A Dask graph: a mapping of keys to tasks, or an expression that makes one.
    keys
        A key, or (nested) lists of keys.
    cache
        Values that are there already, by key. Values of the run are kept in it while they are
        needed, and those of ``keys`` afterwards.
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
    Exception
        What a task raises, with its own traceback.
    """
    cache = configured_cache(cache)
    callbacks = kwargs.get("callbacks")
    if cache is None and not callbacks and not Callback.active:
        return _core.run_inline(materialize(dsk), keys)
    return run_steps(dsk, keys, synchronous_executor, 1, cache, callbacks)
