"""Graphs of growing size from the client to done: no step may grow faster than the graph."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import clusters
from figures import Figure, time_of
from graphs import tree


def run(client: Any, leaves: int) -> tuple[int, float]:
    graph, root, expected = tree(leaves)
    start = time.perf_counter()
    assert client.get(graph, root) == expected
    return len(graph), time.perf_counter() - start


def measure(quick: bool) -> Iterator[Figure]:
    sizes = [1 << 12, 1 << 15] if quick else [1 << 13, 1 << 16, 1 << 19]
    with clusters.treadle() as client:
        run(client, 1 << 10)
        found = [run(client, leaves) for leaves in sizes]
    base = found[0][1] / found[0][0]
    for tasks, seconds in found:
        each = seconds / tasks
        yield Figure(
            f"tree of {tasks:,} tasks, from the client to done",
            f"{time_of(seconds)}, {time_of(each)} a task",
            ratio=f"{each / base:.2f} × a task of {found[0][0]:,}",
            bar="≤ 1.5 ×",
            passed=each <= 1.5 * base,
        )
