"""The state of a run in the form in which Dask's callbacks expect it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from dask.core import flatten

from treadle._compat.dask import DataNode, GraphNode
from treadle.local._graph import Cache, Key, Keys

__all__ = ["State"]


class State:
    """Keeps the dictionary that Dask's own schedulers keep.

    ``state`` has the keys ``dependencies``, ``dependents``, ``waiting`` and ``waiting_data``
    (sets by key), ``cache`` (values by key), and ``ready``, ``running``, ``finished`` and
    ``released`` (sets).
    """

    def __init__(
        self, graph: dict[Key, Any], tasks: tuple[Key, ...], keys: Keys, cache: Cache | None
    ) -> None:
        values: Cache = {} if cache is None else cache
        wanted = set(flatten([keys]))
        #: What stays in the cache: requested values, and what was in it before.
        self.kept = wanted | set(values)
        dependencies: dict[Key, set[Key]] = {}
        dependents: defaultdict[Key, set[Key]] = defaultdict(set)
        for task in tasks:
            node = graph[task]
            dependencies[task] = set(node.dependencies) if isinstance(node, GraphNode) else set()
            for dependency in dependencies[task]:
                dependents[dependency].add(task)
        for key in wanted | set(dependents):
            node = graph.get(key)
            if isinstance(node, DataNode):
                values[key] = node()
        for key in [*dependents, *tasks, *self.kept]:
            dependencies.setdefault(key, set())
            dependents.setdefault(key, set())
        waiting = {task: dependencies[task] - set(values) for task in tasks}
        self.state: dict[str, Any] = {
            "dependencies": dependencies,
            "dependents": dict(dependents),
            "waiting": {task: missing for task, missing in waiting.items() if missing},
            "waiting_data": {key: set(readers) for key, readers in dependents.items()},
            "cache": values,
            "ready": {task for task, missing in waiting.items() if not missing},
            "running": set(),
            "finished": set(),
            "released": set(),
        }

    def start(self, task: Key) -> None:
        """A task was taken from those that are ready."""
        self.state["ready"].discard(task)
        self.state["running"].add(task)

    def finish(self, task: Key, value: Any) -> None:
        """A task returned its value."""
        state = self.state
        state["cache"][task] = value
        state["running"].discard(task)
        state["finished"].add(task)
        for dependent in state["dependents"][task]:
            missing = state["waiting"][dependent]
            missing.discard(task)
            if not missing:
                del state["waiting"][dependent]
                state["ready"].add(dependent)
        for dependency in state["dependencies"][task]:
            readers = state["waiting_data"][dependency]
            readers.discard(task)
            if not readers and dependency not in self.kept:
                del state["waiting_data"][dependency]
                state["released"].add(dependency)
                state["cache"].pop(dependency, None)
