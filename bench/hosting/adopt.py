"""Memory of Dask's workers, with Treadle in them, while a persisted array is adopted and used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import distributed

import treadle
from figures import Figure
from peaks import peak, proportional

BAR = 1.2


def measure(quick: bool) -> Iterator[Any]:
    side = 5_000 if quick else 11_200  # 200 MB, 1 GB
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as there,
        treadle.attach(there) as here,
    ):
        pids = [worker.pid for worker in cluster.workers.values()]
        for size in (500, side):
            # The first time, everything that it needs is imported.
            before = sum(map(proportional, pids))
            x = there.persist(da.random.default_rng(0).random((size, size), chunks=500))
            distributed.wait(x)
            expected = there.compute(x[::10].sum()).result()
            copy = sum(map(proportional, pids)) - before
            results: list[Any] = []

            def adopt(x: Any = x, results: list[Any] = results) -> None:
                y = treadle.adopt(x, client=here)
                results.append(here.compute(y[::10].sum()).result())

            most = peak(pids, adopt) - before
            assert results == [expected]
            del x
    ratio = most / copy
    yield Figure(
        f"a persisted array of {8 * side * side / 1e9:.1f} GB adopted and summed, peak",
        f"{most / 1e6:.0f} MB",
        f"one copy: {copy / 1e6:.0f} MB",
        f"{ratio:.2f}",
        f"≤ {BAR:g}",
        ratio <= BAR,
    )
