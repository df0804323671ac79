"""Many independent calls: ``client.map(inc, range(n))`` and ``wait``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import clusters
from figures import MISSING, Figure, Samples
from work import inc


def mapped(client: Any, count: int) -> float:
    """Tasks a second."""
    from distributed import wait

    start = time.perf_counter()
    futures = client.map(inc, range(count), pure=False)
    wait(futures)
    seconds = time.perf_counter() - start
    assert futures[-1].result() == count
    return count / seconds


def ray_mapped(ray: Any, count: int) -> float:
    remote = ray.remote(inc)
    start = time.perf_counter()
    futures = [remote.remote(number) for number in range(count)]
    ray.wait(futures, num_returns=count)
    return count / (time.perf_counter() - start)


def rounds(
    open_engine: Any, run: Callable[[Any, int], float], count: int, times: int
) -> list[float]:
    with open_engine() as engine:
        run(engine, max(10, count // 20))
        return [run(engine, count) for _ in range(times)]


def measure(quick: bool) -> Iterator[Figure]:
    ours = 20_000 if quick else 100_000
    theirs = 1_000 if quick else 5_000
    times = 3
    samples = Samples(
        {
            "treadle": rounds(clusters.treadle, mapped, ours, times),
            "distributed": rounds(clusters.distributed, mapped, theirs, times),
        }
    )
    what = f"`client.map(inc, range({ours:,}))` and `wait`, 2 workers (peers: {theirs:,})"
    yield samples.against(what, "treadle", ["distributed"], 100, unit="tasks/s")
    if clusters.has_ray():
        samples.values["ray"] = rounds(clusters.ray, ray_mapped, theirs, times)
        yield samples.against("the same", "treadle", ["ray"], 50, unit="tasks/s")
    else:
        yield Figure("the same", MISSING, "ray is not installed", bar="≥ 50 ×")
