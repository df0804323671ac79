"""A Dask cluster goes from 1 to 4 to 2 workers, and loses one by a kill, while Treadle works in it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import distributed
import numpy as np

import treadle
from figures import Figure

PARTS, SIZE = 400, 50_000
PATIENCE = 120.0


def measure(quick: bool) -> Iterator[Any]:
    for number in range(1 if quick else 3):
        start = time.perf_counter()
        steps = _run()
        yield Figure(
            f"1 → 4 → 2 workers and one kill during {PARTS} tasks, run {number + 1}",
            f"{time.perf_counter() - start:.1f} s",
            bar="right results",
            passed=True,
            limit=steps,
        )


def _run() -> str:
    options: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(n_workers=1, silence_logs=50, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as there,
        treadle.attach(there) as here,
    ):
        parts = here.map(part, range(PARTS), pure=False)
        sums = [here.submit(total, *parts[i::20], pure=False) for i in range(20)]
        steps = [f"{_done(parts)} done at 1"]
        cluster.scale(4)
        _until(lambda: len(here.ncores()) == 4, "four workers")
        _until(lambda: _done(parts) > PARTS // 8, "they work")
        steps.append(f"{_done(parts)} at 4")
        os.kill(next(iter(here.run(os.getpid).values())), signal.SIGKILL)
        _until(lambda: _done(parts) > PARTS // 4, "the others work")
        steps.append(f"{_done(parts)} after the kill")
        cluster.scale(2)
        expected = [sum(SIZE * number for number in range(i, PARTS, 20)) for i in range(20)]
        assert here.gather(sums) == expected
        assert [int(one[-1]) for one in here.gather(parts)] == list(range(PARTS))
        _until(lambda: len(here.ncores()) == 2, "two workers")
    return ", ".join(steps)


def part(number: int) -> Any:
    time.sleep(0.05)
    return np.full(SIZE, number)


def total(*parts: Any) -> int:
    return int(sum(int(one.sum()) for one in parts))


# Workers import nothing of the benchmark.
part.__module__ = total.__module__ = "__main__"


def _done(futures: list[Any]) -> int:
    return sum(future.status == "finished" for future in futures)


def _until(condition: Any, what: str) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.05)
