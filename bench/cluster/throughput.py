"""Many independent calls: ``client.map(inc, range(n))`` and ``wait``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import clusters
from figures import MISSING, Figure, interleave
from work import inc

# How many times as many tasks a second as a peer.
PEERS = {"distributed": 100, "ray": 50, "frisky": 10}


def mapped(client: Any, count: int) -> float:
    """Tasks a second."""
    start = time.perf_counter()
    futures = client.map(inc, range(count), **clusters.new_each_time(client))
    clusters.wait(client, futures)
    seconds = time.perf_counter() - start
    assert futures[-1].result() == count
    return count / seconds


def ray_mapped(ray: Any, count: int) -> float:
    remote = ray.remote(inc)
    start = time.perf_counter()
    futures = [remote.remote(number) for number in range(count)]
    ray.wait(futures, num_returns=count)
    return count / (time.perf_counter() - start)


def measure(quick: bool) -> Iterator[Figure]:
    count, many = (1_000, 20_000) if quick else (10_000, 100_000)
    with contextlib.ExitStack() as stack:
        clients = stack.enter_context(clusters.beside())
        turns = {name: partial(mapped, client, count) for name, client in clients.items()}
        if clusters.has("ray"):
            turns["ray"] = partial(ray_mapped, stack.enter_context(clusters.ray()), count)
        samples = interleave(turns, 3)
        what = f"`client.map(inc, range({count:,}))` and `wait`, 2 workers"
        for peer, least in PEERS.items():
            if peer in samples:
                yield samples.against(what, "treadle", [peer], least, unit="tasks/s")
            else:
                yield Figure(what, MISSING, f"{peer} is not installed", bar=f"≥ {least} ×")
            what = "the same"
    with clusters.treadle() as client:
        alone = interleave({"treadle": partial(mapped, client, many)}, 3)
    rate = alone.median("treadle")
    yield Figure(f"`client.map(inc, range({many:,}))` and `wait`", f"{rate:,.0f} tasks/s")
