"""Gathering 2 GB of results in 10,000 pieces, beside distributed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import distributed

import clusters
from figures import Figure, Samples

PIECES = 10_000


def measure(quick: bool) -> Iterator[Any]:
    size = 20_000 if quick else 200_000
    samples = Samples()
    for number in range(1 if quick else 3):
        samples.values.setdefault("treadle", []).append(_gathered("treadle", size))
        if number == 0:
            # A tenth of the bytes: distributed did not gather 2 GB within three minutes.
            samples.values["distributed"] = [_gathered("distributed", 20_000)]
    ours, theirs = samples.median("treadle"), samples.median("distributed")
    yield Figure(
        f"gather {PIECES:,} results of {size / 1e3:.0f} kB",
        f"{ours:.2f} s",
        f"distributed, 20 kB each: {theirs:.2f} s",
        f"{ours / theirs:.2f}",
    )


def _gathered(name: str, size: int) -> float:
    """Return the seconds in which a client gathers pieces of so many bytes."""
    with clusters.CLIENTS[name]() as client:
        futures = client.map(bytes, [size] * PIECES, pure=False)
        distributed.wait(futures)
        start = time.perf_counter()
        values = client.gather(futures)
        taken = time.perf_counter() - start
        assert sum(map(len, values)) == size * PIECES
        del values, futures
    return taken
