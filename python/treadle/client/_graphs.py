"""Graphs of Dask, made ready for submission."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from treadle._compat.dask import Alias, DataNode, GraphNode, convert_legacy_task
from treadle.local._graph import materialize
from treadle.shuffle._graph import is_barrier
from treadle.worker._executors import node_in_executor

__all__ = ["converted", "in_executors", "nodes_of"]


def nodes_of(
    expr: Any,
) -> tuple[dict[Hashable, GraphNode], Mapping[str, Mapping[Hashable, Any]]]:
    """Return an expression's graph, as nodes, and its annotations by name and key.

    A graph that a user wrote down comes as it is: Dask's expression of one would hash each of its
    tasks for a name.
    """
    graph = materialize(expr)
    annotations: Mapping[str, Mapping[Hashable, Any]] = {}
    if hasattr(expr, "__dask_annotations__"):
        annotations = expr.__dask_annotations__()
    return converted(graph), annotations


def converted(graph: dict[Hashable, Any]) -> dict[Hashable, GraphNode]:
    """Return the graph with nodes for old-style tasks and plain values, and without futures.

    A future in a graph stands for itself: its key is known to the scheduler.
    """
    if all(isinstance(node, GraphNode) for node in graph.values()) and not any(
        type(node) is Alias and node.target == key for key, node in graph.items()
    ):
        return graph
    keys = set(graph)
    nodes: dict[Hashable, GraphNode] = {}
    for key, value in graph.items():
        node = convert_legacy_task(key, value, keys)
        if type(node) is Alias and node.target == key:
            continue
        nodes[key] = node if isinstance(node, GraphNode) else DataNode(key, node)
    return nodes


def in_executors(
    graph: dict[Hashable, GraphNode], executors: Mapping[Hashable, Any]
) -> dict[Hashable, GraphNode]:
    """Return the graph with those tasks in executors of their workers that have one.

    What moves the rows of P2P shuffles stays where the native worker runs it.
    """
    if not executors:
        return graph
    moving: set[Hashable] = set()
    barriers = {key for key, node in graph.items() if is_barrier(node)}
    for key, node in graph.items():
        if key in barriers:
            moving |= {key, *node.dependencies}
        elif not barriers.isdisjoint(node.dependencies):
            moving.add(key)
    # A transfer may have another name.
    names = list(moving)
    while names:
        node = graph.get(names.pop())
        if isinstance(node, Alias) and node.target not in moving:
            moving.add(node.target)
            names.append(node.target)
    return graph | {
        key: node_in_executor(graph[key], name)
        for key, name in executors.items()
        if key not in moving
    }
