"""How long after `compute` the first task of a graph of 100,000 runs, beside distributed."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator
from typing import Any

import clusters
from figures import Figure, Samples

TASKS = 100_000
BAR = 0.5  # seconds


def measure(quick: bool) -> Iterator[Any]:
    samples = Samples()
    for _ in range(1 if quick else 3):
        for name, cluster in (("treadle", clusters.treadle), ("distributed", clusters.distributed)):
            with cluster() as client:
                client.submit(operator.add, 1, 2).result()
                graph: dict[Any, Any] = {("at", i): (time.time,) for i in range(TASKS)}
                # They end one after another, with one result.
                graph["first"] = (min, [("at", i) for i in range(TASKS)])
                start = time.time()
                first = client.get(graph, "first")
                samples.values.setdefault(name, []).append(first - start)
    taken = samples.median("treadle")
    yield Figure(
        f"first task of {TASKS:,} runs after",
        f"{taken:.2f} s",
        f"distributed {samples.median('distributed'):.2f} s",
        f"{samples.ratio('treadle', 'distributed'):.2f}",
        f"≤ {BAR:g} s",
        taken <= BAR,
    )
