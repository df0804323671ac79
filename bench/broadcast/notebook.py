"""ipyparallel's published notebook of its broadcast view: an empty call, and pushes of square arrays."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import engines
import plots
from bare import Bare
from figures import Figure, Samples, interleave, time_of

ENGINES = 32
# Arrays are n × n doubles.
SIDES = (16, 64, 256, 512)
VIEWS = ("direct", "broadcast")
# How many times better than the better of ipyparallel's two views.
BAR = 20
FASTER_START = 3
# Calls are timed in a row of so many seconds, after one that does not count, as the notebook's
# `%timeit` does.
IN_A_ROW = 0.2
# Seconds for what other engines still do after their turn: the hub's part of it takes a while.
REST = 0.3
# What is published: 100 engines, a tree of depth 3; seconds of the direct and the broadcast view.
PUBLISHED = {"call": (0.311, 0.259), 16: (0.287, 0.266), 64: (0.598, 0.274), 256: (5.99, 0.297)}
PUBLISHED |= {512: (22.9, 0.559)}


def nothing() -> None:
    pass


# As in the notebook: engines do not import this file.
nothing.__module__ = "__main__"


def seconds(call: Callable[[], Any]) -> float:
    """Of one call, the mean of some in a row."""
    time.sleep(REST)
    call()
    count, taken, start = 0, 0.0, time.perf_counter()
    while taken < IN_A_ROW:
        call()
        count, taken = count + 1, time.perf_counter() - start
    return taken / count


def started(stack: contextlib.ExitStack, name: str) -> tuple[float, Any]:
    """Seconds until all engines have their numbers and have done something; and their client."""
    start = time.perf_counter()
    client = stack.enter_context(engines.CLUSTERS[name](ENGINES))
    assert len(client.ids) == ENGINES
    client[:].apply_sync(nothing)
    return time.perf_counter() - start, client


def calls(views: dict[str, Any]) -> dict[Any, dict[str, Callable[[], Any]]]:
    """What the notebook measures, and the calls of each view."""

    def push(view: Any, chunk: Any) -> None:
        view.push({"chunk": chunk}, block=True)

    found: dict[Any, dict[str, Callable[[], Any]]] = {
        "call": {name: functools.partial(view.apply_sync, nothing) for name, view in views.items()}
    }
    for side in SIDES:
        chunk = np.random.default_rng(side).random((side, side))
        found[side] = {name: functools.partial(push, view, chunk) for name, view in views.items()}
    return found


def measure(quick: bool) -> Iterator[Figure]:
    import ipyparallel  # noqa: F401  importing is no part of starting

    import treadle.views  # noqa: F401

    starts = Samples({name: [] for name in engines.CLUSTERS})
    for last in [True] if quick else [False, False, True]:
        with contextlib.ExitStack() as stack:
            clients = {}
            for name in engines.CLUSTERS:
                taken, clients[name] = started(stack, name)
                starts.values[name].append(taken)
            if last:
                yield start_figure(starts)
                bare = stack.enter_context(Bare(ENGINES))
                yield from notebook(clients, bare, 3 if quick else 9)


def start_figure(starts: Samples) -> Figure:
    ratio = starts.ratio("ipyparallel", "treadle")
    return Figure(
        f"starting {ENGINES} engines, with a first call to all",
        time_of(starts.median("treadle")),
        f"ipyparallel {time_of(starts.median('ipyparallel'))}",
        f"{ratio:.1f} ×",
        f"≥ {FASTER_START} ×",
        ratio >= FASTER_START,
    )


def notebook(clients: dict[str, Any], bare: Bare, rounds: int) -> Iterator[Figure]:
    views = {
        f"{name} {kind}": view
        for name, client in clients.items()
        for kind, view in engines.views(client).items()
    }
    medians: dict[Any, dict[str, float]] = {}
    for what, turns in calls(views).items():
        if what == "call":
            turns["bare"] = functools.partial(bare.call, nothing)
        samples = interleave(
            {name: functools.partial(seconds, turn) for name, turn in turns.items()}, rounds
        )
        medians[what] = {name: samples.median(name) for name in views}
        theirs = [name for name in views if name.startswith("ipyparallel")]
        best = min(theirs, key=samples.median)
        told = ", ".join(time_of(samples.median(name)) for name in theirs)
        published = ", ".join(map(time_of, PUBLISHED[what]))
        for kind in VIEWS:
            ours = f"treadle {kind}"
            ratio = samples.ratio(best, ours)
            yield Figure(
                f"{title(what)}, {kind} view, {ENGINES} engines",
                time_of(samples.median(ours)),
                f"ipyparallel direct, broadcast, coalescing: {told}",
                f"{ratio:.1f} ×",
                f"≥ {BAR} ×",
                ratio >= BAR,
                f"published, 100 engines: {published}",
            )
        if "bare" in turns:
            yield Figure(
                f"the same at {ENGINES} bare Python processes: a function read from a socket, called, "
                "answered",
                time_of(samples.median("bare")),
                f"direct view: {time_of(samples.median('treadle direct'))}",
                f"the view takes {samples.ratio('treadle direct', 'bare'):.1f} ×",
            )
    plots.draw(ENGINES, {side: medians[side] for side in SIDES})
    speedup = statistics.geometric_mean(
        medians[side]["treadle direct"] / medians[side]["treadle broadcast"] for side in SIDES
    )
    yield Figure(
        'the notebook\'s "broadcast speedup": our direct view over our broadcast view',
        f"{speedup:.2f} ×",
        limit=f"both go through the tree; pictures: {plots.OUT.relative_to(engines.ROOT)}",
    )


def title(what: Any) -> str:
    return "`apply_sync(lambda: None)`" if what == "call" else f"`push` of {what}² doubles"
