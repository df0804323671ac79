"""Peak number of live values of a sequential run, given a priority for each task.

A value lives from the end of its task until the last task that reads it has run; the value of a requested key
lives to the end. Live values are counted after each task, before what it no longer needs is released, which is
the moment of the highest memory. Data nodes are part of the graph and exist anyway: they count as no value.
An alias counts as a task that holds a value. Only tasks that a requested key needs are run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dask._task_spec import DataNode, GraphNode

Graph = Mapping[Any, GraphNode]


class _Run:
    """Dependencies, dependents and live values of one sequential run."""

    def __init__(self, dsk: Graph, keys: Iterable[Any]) -> None:
        self.requested = set(keys)
        self.deps: dict[Any, list[Any]] = {}
        self.dependents: dict[Any, list[Any]] = {}
        stack = list(self.requested)
        while stack:
            key = stack.pop()
            if key in self.deps:
                continue
            self.deps[key] = [d for d in dsk[key].dependencies if not isinstance(dsk[d], DataNode)]
            stack.extend(self.deps[key])
        self.deps = {k: d for k, d in self.deps.items() if not isinstance(dsk[k], DataNode)}
        for key, deps in self.deps.items():
            self.dependents.setdefault(key, [])
            for d in deps:
                self.dependents.setdefault(d, []).append(key)
        self.readers = {k: len(d) for k, d in self.dependents.items()}
        self.live = 0
        self.peak = 0

    def finish(self, key: Any) -> None:
        self.live += 1
        self.peak = max(self.peak, self.live)
        for d in self.deps[key]:
            self.readers[d] -= 1
            if not self.readers[d] and d not in self.requested:
                self.live -= 1
        if not self.readers[key] and key not in self.requested:
            self.live -= 1


def lifo(dsk: Graph, keys: Iterable[Any], priority: Mapping[Any, int]) -> int:
    """Peak of the rule that Dask's schedulers follow with one worker.

    Ready tasks form a stack. Tasks that become ready together are pushed so that the lowest priority number
    pops first; the tasks that are ready at the start are sorted likewise.
    """
    run = _Run(dsk, keys)
    waiting = {k: len(d) for k, d in run.deps.items()}
    ready = sorted((k for k, n in waiting.items() if not n), key=priority.__getitem__, reverse=True)
    done = 0
    while ready:
        key = ready.pop()
        run.finish(key)
        done += 1
        for d in sorted(run.dependents[key], key=priority.__getitem__, reverse=True):
            waiting[d] -= 1
            if not waiting[d]:
                ready.append(d)
    assert done == len(run.deps), "the graph has a cycle"
    return run.peak


def strict(dsk: Graph, keys: Iterable[Any], priority: Mapping[Any, int]) -> int:
    """Peak of a run in the strict order of the priorities, as Treadle runs with one worker.

    Raises ``ValueError`` if the priorities are not a topological order.
    """
    run = _Run(dsk, keys)
    for key in _topological(run.deps, priority):
        run.finish(key)
    return run.peak


def _topological(deps: Mapping[Any, list[Any]], priority: Mapping[Any, int]) -> Iterator[Any]:
    ran: set[Any] = set()
    for key in sorted(deps, key=priority.__getitem__):
        for d in deps[key]:
            if d not in ran:
                raise ValueError(f"priority of {key!r} is lower than that of its dependency {d!r}")
        ran.add(key)
        yield key
