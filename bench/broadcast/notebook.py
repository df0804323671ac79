"""ipyparallel's published notebook of its broadcast view: an empty call, and pushes of square arrays."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import engines
import plots
from figures import Figure, time_of

ENGINES = 32
# Arrays are n × n doubles.
SIDES = (16, 64, 256, 512)
# How many times better than the better of ipyparallel's two views.
BAR = 20
FASTER_START = 3


def times(call: Callable[[], Any], seconds: float) -> list[float]:
    """At least three calls, and as many as fit."""
    call()
    taken: list[float] = []
    while len(taken) < 3 or sum(taken) < seconds:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


def rounds(client: Any, seconds: float) -> dict[tuple[str, str], list[float]]:
    """Seconds of each call on each view; the calls of the notebook."""
    found = {}
    for name, view in engines.views(client).items():
        found[name, "call"] = times(lambda view=view: view.apply_sync(lambda: None), seconds)
        for side in SIDES:
            chunk = np.random.default_rng(side).random((side, side))

            def push(view: Any = view, chunk: Any = chunk) -> None:
                view.push({"chunk": chunk}, block=True)

            found[name, f"{side}"] = times(push, seconds)
    return found


def measure(quick: bool) -> Iterator[Figure]:
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    started: dict[str, float] = {}
    for name, cluster in engines.CLUSTERS.items():
        start = time.perf_counter()
        with cluster(ENGINES) as client:
            started[name] = time.perf_counter() - start
            found[name] = rounds(client, 0.3 if quick else 2)
    ratio = started["ipyparallel"] / started["treadle"]
    yield Figure(
        f"starting {ENGINES} engines",
        time_of(started["treadle"]),
        f"ipyparallel {time_of(started['ipyparallel'])}",
        f"{ratio:.1f} ×",
        f"≥ {FASTER_START} ×",
        ratio >= FASTER_START,
    )
    ours, theirs = (
        {what: statistics.median(taken) for what, taken in found[name].items()}
        for name in ("treadle", "ipyparallel")
    )
    for key in ("call", *map(str, SIDES)):
        what = "`apply_sync(lambda: None)`" if key == "call" else f"`push` of {key}² doubles"
        best = min(theirs["direct", key], theirs["broadcast", key])
        told = ", ".join(f"{view} {time_of(theirs[view, key])}" for view in ("direct", "broadcast"))
        for view in ("direct", "broadcast"):
            ratio = best / ours[view, key]
            yield Figure(
                f"{what}, {view} view, {ENGINES} engines",
                time_of(ours[view, key]),
                f"ipyparallel {told}",
                f"{ratio:.0f} ×",
                f"≥ {BAR} ×",
                ratio >= BAR,
            )
    plots.draw(SIDES, ENGINES, {"treadle": ours, "ipyparallel": theirs})
