"""Graphs of which some tasks cannot leave this process: those run here, the others elsewhere.

A task stays if its function, an argument or its value cannot be pickled. Which ones these are shows
only when the graph is sent off, so graphs without them pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

from treadle._compat.dask import DataNode, GraphNode
from treadle.local import _in_executor

__all__ = ["CannotTravel", "in_stages"]

Nodes = Mapping[Hashable, GraphNode]
Run = Callable[[Nodes, list[Hashable]], Mapping[Hashable, Any]]


class CannotTravel(Exception):
    """Values of these keys, or what makes them, cannot be pickled; without keys, it is not known whose."""

    def __init__(self, keys: Iterable[Hashable] = ()) -> None:
        super().__init__()
        self.keys = frozenset(keys)


def in_stages(graph: Nodes, wanted: list[Hashable], there: Run, here: Run) -> dict[Hashable, Any]:
    """Return the values of ``wanted``, computed there as far as that is possible.

    Parameters
    ----------
    graph
        Nodes of Dask.
    there
        Computes keys of a graph in other processes. It raises :class:`CannotTravel`, whose cause is
        raised here if no task is found that has to stay. Tasks of the graph then run again.
    here
        Computes keys of a graph in this process.
    """
    stay: set[Hashable] = set()
    values: dict[Hashable, Any] = {}
    rest = dict(graph)
    requested = set(wanted)
    readers = _readers(graph)
    while rest:
        below = _closed(stay & rest.keys(), readers)
        far = {key: node for key, node in rest.items() if key not in below}
        sent = {**_inputs(far, values), **far}
        asked = [
            key for key in far if key in requested or not below.isdisjoint(readers.get(key, ()))
        ]
        if asked:
            try:
                values |= there(sent, asked)
            except CannotTravel as error:
                fresh = (error.keys or frozenset(_cannot_travel(sent, readers))) & far.keys()
                if not fresh and error.__cause__ is not None:
                    raise error.__cause__ from None
                stay |= fresh
                continue
        near = _first(stay, {key: rest[key] for key in below}, readers)
        later = below - near.keys()
        asked = [
            key for key in near if key in requested or not later.isdisjoint(readers.get(key, ()))
        ]
        if asked:
            values |= here({**_inputs(near, values), **near}, asked)
        rest = {key: rest[key] for key in later}
    return {key: values[key] for key in wanted}


def _readers(graph: Nodes) -> dict[Hashable, list[Hashable]]:
    readers: dict[Hashable, list[Hashable]] = {}
    for key, node in graph.items():
        for read in node.dependencies:
            readers.setdefault(read, []).append(key)
    return readers


def _closed(keys: set[Hashable], readers: Mapping[Hashable, list[Hashable]]) -> set[Hashable]:
    """Return the keys, and all that need them."""
    found = set(keys)
    stack = list(keys)
    while stack:
        for key in readers.get(stack.pop(), ()):
            if key not in found:
                found.add(key)
                stack.append(key)
    return found


def _first(
    stay: set[Hashable], rest: Nodes, readers: Mapping[Hashable, list[Hashable]]
) -> dict[Hashable, GraphNode]:
    """Return those of ``rest`` that have to stay and need nothing of ``rest`` but each other."""
    missing = {key: len(rest[key].dependencies & rest.keys()) for key in stay if key in rest}
    found: dict[Hashable, GraphNode] = {}
    stack = [key for key, count in missing.items() if not count]
    while stack:
        key = stack.pop()
        found[key] = rest[key]
        for reader in readers.get(key, ()):
            if reader in missing:
                missing[reader] -= 1
                if not missing[reader]:
                    stack.append(reader)
    return found


def _inputs(graph: Nodes, values: Mapping[Hashable, Any]) -> dict[Hashable, GraphNode]:
    """Return nodes for the values that a graph reads."""
    read = {key for node in graph.values() for key in node.dependencies if key in values}
    return {key: DataNode(key, values[key]) for key in read}


def _cannot_travel(graph: Nodes, readers: Mapping[Hashable, list[Hashable]]) -> Iterator[Hashable]:
    """Yield the keys of the nodes that cannot be pickled, and of those that read them."""
    for key, node in graph.items():
        if not _in_executor.can_be_pickled(node):
            yield key
            if type(node) is DataNode:
                yield from readers.get(key, ())
