"""The planned order, as Dask's ``order`` shows its own."""

from __future__ import annotations

from typing import Any

from treadle import _core
from treadle.local._graph import Graph, Key, Keys, materialize

__all__ = ["order"]


def order(dsk: Graph, keys: Keys | None = None) -> dict[Key, int]:
    """The priority of each task: 0 runs first.

    The counterpart of ``dask.order.order``. The order keeps the number of values that are alive
    at once small; see ``docs/internals/ordering.md``.

    Parameters
    ----------
    dsk
        A Dask graph.
    keys
        The keys whose values are wanted, so that they stay alive; by default those of tasks that
        no other task reads.

    Raises
    ------
    CycleError
        Tasks wait for each other; the message names them in order.
    """
    graph: dict[Key, Any] = materialize(dsk)
    if keys is None:
        from treadle._compat.dask import DependenciesMapping, convert_legacy_graph

        graph = convert_legacy_graph(graph)
        read: set[Key] = set().union(*DependenciesMapping(graph).values())
        # In a cycle everything is read, and whoever orders it finds the cycle.
        keys = [key for key in graph if key not in read] or list(graph)
    return _core.order(graph, keys)
