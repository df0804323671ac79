"""Compare the peak number of live values: ``python bench/order/run.py``.

Treadle starts the ready task of the lowest rank, so its peak is that of its order, run strictly. It is compared with
``dask.order``, run by the same rule, and with what Dask's own scheduler makes of ``dask.order`` with its stack of ready
tasks. Exit status 1 if in either comparison the geometric mean is above 1.05 or any graph above 1.3.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dask.order import order as dask_order

import corpus
import peak
from treadle import order as treadle_order

MEAN_BAR = 1.05
WORST_BAR = 1.3
REPEATS = 3


def timed(
    order: Callable[[Any], Mapping[Any, int]], dsk: corpus.Graph
) -> tuple[Mapping[Any, int], float]:
    """The priorities, and the best time in seconds of a few runs."""
    best = math.inf
    for _ in range(REPEATS):
        copy = dict(dsk)
        start = time.perf_counter()
        priority = order(copy)
        best = min(best, time.perf_counter() - start)
    return priority, best


def measure(name: str) -> dict[str, Any]:
    dsk, keys = corpus.build(name)
    ours, our_seconds = timed(partial(treadle_order, keys=keys), dsk)
    theirs, their_seconds = timed(dask_order, dsk)
    treadle, dask, stack = (
        peak.strict(dsk, keys, ours),
        peak.strict(dsk, keys, theirs),
        peak.lifo(dsk, keys, theirs),
    )
    return {
        "graph": name,
        "tasks": len(dsk),
        "treadle": treadle,
        "dask.order": dask,
        "dask scheduler": stack,
        "over dask.order": treadle / dask,
        "over dask scheduler": treadle / stack,
        "treadle µs": 1e6 * our_seconds / len(dsk),
        "dask µs": 1e6 * their_seconds / len(dsk),
    }


def print_row(r: dict[str, Any]) -> None:
    print(
        f"| {r['graph']} | {r['tasks']} | {r['treadle']} "
        f"| {r['dask.order']} | {r['over dask.order']:.3f} "
        f"| {r['dask scheduler']} | {r['over dask scheduler']:.3f} "
        f"| {r['treadle µs']:.2f} | {r['dask µs']:.1f} |",
        flush=True,
    )


def summary(rows: list[dict[str, Any]], against: str) -> bool:
    """Print the bars of one comparison; True if they are met."""
    mean = statistics.geometric_mean(r[f"over {against}"] for r in rows)
    worst = max(rows, key=lambda r: r[f"over {against}"])
    met = mean <= MEAN_BAR and worst[f"over {against}"] <= WORST_BAR
    print(
        f"over {against}: geometric mean {mean:.3f} (bar {MEAN_BAR}), worst "
        f"{worst[f'over {against}']:.3f} in {worst['graph']} (bar {WORST_BAR}): "
        f"{'met' if met else '**missed**'}"
    )
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=corpus.BUILDERS,
        help="measure only this graph",
    )
    parser.add_argument("--seed", type=int, default=0, help="PYTHONHASHSEED of the run (default 0)")
    parser.add_argument("--json", metavar="FILE", help="also write the rows to FILE")
    args = parser.parse_args()
    # Dask walks sets of keys, so its graphs and its order depend on the seed of the string hashes.
    if os.environ.get("PYTHONHASHSEED") != str(args.seed):
        os.execve(
            sys.executable,
            [sys.executable, *sys.argv],
            {**os.environ, "PYTHONHASHSEED": str(args.seed)},
        )
    warnings.filterwarnings("ignore", message="Increasing number of chunks")

    print(
        "| graph | tasks | treadle | dask.order | ratio | dask's scheduler | ratio "
        "| µs a task: treadle | dask |"
    )
    print("| --- |" + " ---: |" * 8)
    rows = []
    for name in args.only or corpus.BUILDERS:
        rows.append(measure(name))
        print_row(rows[-1])
    print()
    met = [summary(rows, against) for against in ("dask.order", "dask scheduler")]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1, ensure_ascii=False)
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
