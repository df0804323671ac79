"""P2P beside tasks on Treadle, for few partitions: ``python bench/shuffle/methods.py``.

In turns, on two workers of one thread: medians without the first round, and their ratio. From this comes the number of
partitions from which P2P is chosen. ``--only again`` shuffles 640 MB several times without a pause, so that the memory
of the shuffle before is used again.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))
# Workers import the functions of `work.py`.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])

import dask  # noqa: E402
import dask.array as da  # noqa: E402
from distributed import wait  # noqa: E402

import table  # noqa: E402
from clusters import treadle  # noqa: E402

METHODS = ("p2p", "tasks")


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compare(what: str, rounds: int, run: Callable[[str], Any]) -> None:
    taken: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(rounds + 1):
        for method in METHODS:
            taken[method].append(seconds(partial(run, method)))
    p2p, tasks = (statistics.median(taken[method][1:]) for method in METHODS)
    print(
        f"{what}: p2p {p2p * 1e3:.0f} ms, tasks {tasks * 1e3:.0f} ms, {p2p / tasks:.2f} ×",
        flush=True,
    )


def frames(rounds: int) -> None:
    for rows in (100, 10_000, 200_000):
        for partitions in (2, 4, 8, 16, 32):
            held = table.frame(partitions, rows * partitions).persist()
            wait(held)

            def run(method: str, held: Any = held) -> None:
                with dask.config.set({"dataframe.shuffle.method": method}):
                    table.shuffled(held).compute()

            compare(f"shuffle, {partitions} partitions of {rows:,} rows", rounds, run)


def arrays(rounds: int) -> None:
    for side, chunks in ((4000, (2, 4, 8, 16, 32)), (8000, (32, 80))):
        for count in chunks:
            held = (
                da.random.default_rng(0)
                .random((side, side), chunks=(side // count, side))
                .persist()
            )
            wait(held)

            def run(method: str, held: Any = held, width: int = side // count) -> None:
                wait(held.rechunk((len(held), width), method=method).persist())

            compare(f"rechunk of {side}² doubles, {count} chunks", rounds, run)


def again(rounds: int) -> None:
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        # The first shuffle of all is in fresh memory.
        for partitions in (64, 8, 1024):
            held = table.frame(partitions).persist()
            wait(held)
            taken = [seconds(table.shuffled(held).compute) for _ in range(rounds)]
            told = ", ".join(f"{each:.2f}" for each in taken)
            print(
                f"shuffle of 640 MB, {partitions:,} partitions, at once again: {told} s", flush=True
            )


def main() -> None:
    parts = {"frames": frames, "arrays": arrays, "again": again}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", choices=parts)
    args = parser.parse_args()
    with treadle():
        for name in [args.only] if args.only else parts:
            parts[name](args.rounds)


if __name__ == "__main__":
    main()
