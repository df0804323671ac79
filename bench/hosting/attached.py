"""The workloads of `bench/cluster` in the workers of a Dask cluster, beside Treadle's own local cluster."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

import workloads
from figures import Figure, Samples, time_of

BAR = 0.9


def measure(quick: bool) -> Iterator[Any]:
    label, setting = "naive", workloads.SETTINGS["naive"]
    samples = Samples()
    for _ in range(1 if quick else 3):
        for engine in ("treadle", "attached"):
            for what, seconds in workloads.on(engine, setting, 1 if quick else 3).items():
                samples.values.setdefault(f"{engine} {what}", []).append(seconds)
    ratios = []
    for what in [*workloads.ARRAYS, *workloads.FRAMES]:
        own, attached = f"treadle {what}", f"attached {what}"
        ratios.append(samples.ratio(own, attached))
        yield Figure(
            f"{what} ({label}), attached",
            time_of(samples.median(attached)),
            f"own cluster {time_of(samples.median(own))}",
            f"{ratios[-1]:.2f} ×",
        )
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    yield Figure(
        f"all of these ({label}), geometric mean",
        "",
        "own cluster",
        f"{mean:.2f} ×",
        f"≥ {BAR:g} ×",
        mean >= BAR,
    )
