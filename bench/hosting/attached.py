"""The workloads of `bench/cluster` in the workers of a Dask cluster, beside Treadle's own local cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import clusters
import workloads
from figures import Figure, time_of

BAR = 0.9


def measure(quick: bool) -> Iterator[Any]:
    label, setting = "naive", workloads.SETTINGS["naive"]
    ratios = {}
    with (
        clusters.treadle(*setting[:2], set_as_default=False) as own,
        clusters.attached(*setting[:2], set_as_default=False) as attached,
    ):
        clients = {"own": own, "attached": attached}
        for what, samples in workloads.on(clients, setting, 1 if quick else 5):
            ratios[what] = samples.ratio("own", "attached")
            yield Figure(
                f"{what} ({label}), attached",
                time_of(samples.median("attached")),
                f"own cluster {time_of(samples.median('own'))}",
                f"{ratios[what]:.2f} ×",
            )
    mean = workloads.mean_of(ratios)
    yield Figure(
        f"all of these but `create` ({label}), geometric mean",
        "",
        "own cluster",
        f"{mean:.2f} ×",
        f"≥ {BAR:g} ×",
        mean >= BAR,
    )
