"""Cost a task: flat and chained graphs of 10,000 ``inc`` tasks against a bare Python loop and Dask's schedulers.

The denominator of the flat graph is ``r[k] = t.func(*t.args)``; that of the chain looks its argument up,
``r[k] = t.func(r[a.key])``, since the plain call would pass a reference. The ratio to the plain call is printed too.
"""

from __future__ import annotations

from functools import partial

import dask.local
import dask.threaded

import graphs
import treadle
from figures import Figure
from timing import interleave, us


def measure(quick: bool) -> list[Figure]:
    n = 10_000
    rounds = 3 if quick else 9
    figures = []
    plain = graphs.flat(n)[0]
    for name, make, bare in (
        ("flat", graphs.flat, graphs.bare_flat),
        ("chain", graphs.chain, graphs.bare_chain),
    ):
        dsk, keys = make(n)
        runs = {
            "bare": partial(bare, dsk),
            "plain": partial(graphs.bare_flat, plain),
            "sync": partial(treadle.sync.get, dsk, keys),
            "threads": partial(treadle.threaded.get, dsk, keys, num_workers=2),
        }
        ours = interleave(runs, rounds, least_seconds=0.05)
        peers = interleave(
            {
                "threads": runs["threads"],
                "dask sync": partial(dask.local.get_sync, dsk, keys),
                "dask threads": partial(dask.threaded.get, dsk, keys, num_workers=2),
            },
            3 if quick else 5,
        )
        for who, bar in (("sync", 4), ("threads", 8)):
            ratio = ours.ratio(who, "bare")
            figures.append(
                Figure(
                    f"{name}, {n:,} tasks, {who}: a task",
                    us(ours.median(who) / n),
                    f"a bare loop {us(ours.median('bare') / n)}",
                    f"{ratio:.2f} × as long",
                    f"≤ {bar} ×",
                    ratio <= bar,
                    f"over the plain call {ours.ratio(who, 'plain'):.2f} ×",
                )
            )
        less = peers.ratio("dask threads", "threads")
        figures.append(
            Figure(
                f"{name}, {n:,} tasks, threads beside Dask's: a task",
                us(peers.median("threads") / n),
                f"Dask's threads {us(peers.median('dask threads') / n)} (its sync {us(peers.median('dask sync') / n)})",
                f"{less:.0f} ×",
                "≥ 40 ×",
                less >= 40,
            )
        )
    return figures
