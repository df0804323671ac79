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
    for _ in range(1 if quick else 3):
        for name, cluster in (("treadle", clusters.treadle), ("distributed", clusters.distributed)):
            with cluster() as client:
                futures = client.map(bytes, [size] * PIECES, pure=False)
                distributed.wait(futures)
                start = time.perf_counter()
                values = client.gather(futures)
                samples.values.setdefault(name, []).append(time.perf_counter() - start)
                assert sum(map(len, values)) == size * PIECES
                del values, futures
    yield Figure(
        f"gather {PIECES:,} results of {size / 1e3:.0f} kB",
        f"{samples.median('treadle'):.2f} s",
        f"distributed {samples.median('distributed'):.2f} s",
        f"{samples.ratio('treadle', 'distributed'):.2f}",
    )
