"""The graph of a shuffle with the exchange left out: as many tasks, which pass no rows on.

What it takes is Dask's part (optimizing, hashing, selecting columns), Python's for each task, and the
engine's for tasks as such. The columns have to be int64.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dask._expr import FinalizeCompute
from dask._task_spec import DataNode, Task
from dask.core import flatten
from dask.dataframe.dask_expr._shuffle import _shuffle_transfer
from distributed.shuffle._core import P2PBarrierTask
from distributed.shuffle._shuffle import shuffle_unpack

import work


def without_exchange(
    graph: dict[Any, Any], spend: Callable[[], None] | None = None
) -> dict[Any, Any]:
    """The graph with tasks that call ``spend`` in the place of those of the exchange."""
    specs = [node.spec for node in graph.values() if isinstance(node, P2PBarrierTask)]
    assert specs, "the graph has no P2P shuffle"
    columns = {
        spec.id: tuple(name for name in spec.meta.columns if name != spec.column) for spec in specs
    }

    def bare(key: Any, node: Any) -> Any:
        if isinstance(node, P2PBarrierTask):
            _, *transfers = node.args
            return Task(key, work.nothing, spend, *transfers)
        if isinstance(node, Task) and node.func is _shuffle_transfer:
            return Task(key, work.nothing, spend, node.args[0])
        if isinstance(node, Task) and node.func is shuffle_unpack:
            shuffle, _, barrier = node.args
            return Task(key, work.empty, spend, DataNode(None, columns[shuffle]), barrier)
        return node

    return {key: bare(key, node) for key, node in graph.items()}


def exchanges(graph: dict[Any, Any]) -> int:
    """How many tasks of a graph `without_exchange` replaces."""
    return sum(
        isinstance(node, Task)
        and (isinstance(node, P2PBarrierTask) or node.func in (_shuffle_transfer, shuffle_unpack))
        for node in graph.values()
    )


def lowered(collection: Any) -> tuple[dict[Any, Any], list[Any], float]:
    """The graph of a computation, its keys, and the seconds that Dask took to make it."""
    start = time.perf_counter()
    expr = FinalizeCompute(collection.expr).optimize()
    graph = dict(expr.__dask_graph__())
    keys = list(flatten(expr.__dask_keys__()))
    return graph, keys, time.perf_counter() - start


def seconds(client: Any, collection: Any, spend: Callable[[], None] | None = None) -> float:
    """Seconds of a computation from the client to done, with the exchange left out."""
    graph, keys, before = lowered(collection)
    graph = without_exchange(graph, spend)
    start = time.perf_counter()
    client.get(graph, keys)
    return before + time.perf_counter() - start
