"""A call to all workers when one of them has joined that moment, beside distributed.

``python bench/broadcast/run.py --only joined``
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from clusters import CLIENTS
from figures import Figure

# As much as distributed takes.
MOST = 1.0


def measure(quick: bool) -> Iterator[Figure]:
    took: dict[str, list[float]] = {"treadle": [], "distributed": []}
    for _ in range(1 if quick else 3):
        for peer, times in took.items():
            with CLIENTS[peer](1) as client:
                client.run(os.getpid)
                times += [_grown(client, workers) for workers in range(2, 5)]
    own, theirs = median(took["treadle"]), median(took["distributed"])
    yield Figure(
        "`client.run(os.getpid)` when another worker has just joined",
        f"{own * 1e3:.1f} ms (longest {max(took['treadle']) * 1e3:.1f})",
        peer=f"distributed {theirs * 1e3:.1f} ms (longest {max(took['distributed']) * 1e3:.1f})",
        ratio=f"{own / theirs:.2f} ×",
        bar=f"≤ {MOST:g} × distributed",
        passed=own <= MOST * theirs,
    )


def _grown(client: Any, workers: int) -> float:
    client.cluster.scale(workers)
    client.wait_for_workers(workers)
    begun = time.perf_counter()
    assert len(client.run(os.getpid)) == workers
    return time.perf_counter() - begun
