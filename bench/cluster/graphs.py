"""Tree reduction and nearest neighbours: as prebuilt graphs, and with the client in the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dask._task_spec import Task, TaskRef

import clusters
from figures import Figure, interleave
from work import add, inc

_numbers = iter(range(1 << 60))


def tree(leaves: int) -> tuple[dict[Any, Any], Any, int]:
    """A binary reduction of ``leaves`` values: the graph, its root and what that is."""
    name = f"tree-{next(_numbers)}"
    graph: dict[Any, Any] = {}
    level = []
    for leaf in range(leaves):
        key = (name, 0, leaf)
        graph[key] = Task(key, inc, leaf)
        level.append(key)
    height = 0
    while len(level) > 1:
        height += 1
        above = []
        for position in range(0, len(level), 2):
            key = (name, height, position // 2)
            refs = [TaskRef(below) for below in level[position : position + 2]]
            graph[key] = Task(key, add, *refs)
            above.append(key)
        level = above
    return graph, level[0], sum(range(1, leaves + 1))


def neighbours(width: int, steps: int) -> tuple[dict[Any, Any], list[Any], None]:
    """Each value is the sum of its neighbours' of the step before."""
    name = f"near-{next(_numbers)}"
    graph: dict[Any, Any] = {}
    for place in range(width):
        key = (name, 0, place)
        graph[key] = Task(key, inc, place)
    for step in range(1, steps):
        for place in range(width):
            key = (name, step, place)
            around = {max(place - 1, 0), place, min(place + 1, width - 1)}
            refs = [TaskRef((name, step - 1, other)) for other in sorted(around)]
            graph[key] = Task(key, min, *refs) if len(refs) > 1 else Task(key, add, *refs)
    return graph, [(name, steps - 1, place) for place in range(width)], None


def prebuilt(build: Callable[[int], Any]) -> Callable[[Any, int], float]:
    def run(client: Any, size: int) -> float:
        graph, keys, expected = build(size)
        start = time.perf_counter()
        result = client.get(graph, keys)
        seconds = time.perf_counter() - start
        assert expected is None or result == expected
        return len(graph) / seconds

    return run


def reduced_in_the_loop(client: Any, leaves: int) -> float:
    """Whenever two results are there, their sum is submitted."""
    from distributed import as_completed

    start = time.perf_counter()
    futures = client.map(inc, range(leaves), pure=False)
    with client.as_current():
        pending = as_completed(futures)
    waiting: list[Any] = []
    tasks = leaves
    alive = leaves
    for batch in pending.batches():
        waiting.extend(batch)
        while len(waiting) >= 2:
            one, other = waiting.pop(), waiting.pop()
            alive -= 1
            tasks += 1
            total = client.submit(add, one, other, pure=False)
            if alive > 1:
                pending.add(total)
            else:
                assert total.result() == sum(range(1, leaves + 1))
                return tasks / (time.perf_counter() - start)
    raise AssertionError("the reduction ended early")


# Leaves, or places: of all engines.
SHAPES: tuple[tuple[str, Callable[[Any, int], float], int, bool], ...] = (
    ("tree reduction of 8,191 tasks, prebuilt", prebuilt(tree), 1 << 12, True),
    ("nearest neighbours, 50 steps of 100, prebuilt", prebuilt(lambda n: neighbours(n, 50)), 100, True),
    ("tree reduction of 2,047 tasks, `as_completed().batches()`", reduced_in_the_loop, 1 << 10, False),
)  # fmt: skip


def measure(quick: bool) -> Iterator[Figure]:
    with clusters.beside() as clients:
        for what, run, size, everywhere in SHAPES:
            turns = {
                name: partial(run, client, size // 4 if quick else size)
                for name, client in clients.items()
                if everywhere or name != "frisky"
            }
            samples = interleave(turns, 3)
            yield samples.against(what, "treadle", ["distributed"], 50, unit="tasks/s")
            if "frisky" in samples:
                yield samples.against("the same", "treadle", ["frisky"], 10, unit="tasks/s")
