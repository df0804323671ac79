"""Rows of a data frame to partitions and back, without a network: ``python bench/shuffle/rows.py``.

In turns, on one thread: partition and concatenate in pandas, the same with NumPy row blocks (the floor of the
shuffle's bars), and ours. Figures are ratios of medians over the rounds; a machine that others use gives no more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

import work
from floor import sorted_by
from treadle import _core, shuffle

Run = Callable[[], int]


def frames(rows: int, maps: int, partitions: int) -> list[pd.DataFrame]:
    random = np.random.default_rng(0)
    each = rows // maps
    return [
        work.table(part, each).assign(_partitions=random.integers(0, partitions, each))
        for part in range(maps)
    ]


def in_pandas(inputs: list[pd.DataFrame], partitions: int) -> int:
    """As Dask's shuffle by tasks: take the rows in order of partitions, slice, concatenate."""
    pieces: list[list[pd.DataFrame]] = [[] for _ in range(partitions)]
    for frame in inputs:
        numbers = frame["_partitions"].to_numpy()
        order = np.argsort(numbers, kind="stable")
        taken = frame.drop(columns="_partitions").take(order)
        ends = np.bincount(numbers, minlength=partitions).cumsum()
        for partition, (end, count) in enumerate(zip(ends, np.diff(ends, prepend=0), strict=True)):
            pieces[partition].append(taken.iloc[end - count : end])
    return sum(len(pd.concat(each)) for each in pieces)


def in_numpy(inputs: list[Any], partitions: int) -> int:
    """Rows as blocks: one run of memory a piece. The index travels as a column, as ours does."""
    pieces: list[list[Any]] = [[] for _ in range(partitions)]
    for block, numbers in inputs:
        order, ends = sorted_by(numbers, partitions)
        taken = block[order]
        for partition, (end, count) in enumerate(zip(ends, np.diff(ends, prepend=0), strict=True)):
            pieces[partition].append(taken[end - count : end])
    return sum(len(np.concatenate(each)) for each in pieces)


def ours(inputs: list[pd.DataFrame], partitions: int, seconds: dict[str, float]) -> int:
    agreed = shuffle.Agreed(inputs[0].iloc[:0], "_partitions", partitions)
    start = time.perf_counter()
    arenas = []
    for number, frame in enumerate(inputs):
        rows = shuffle.split(agreed, frame)
        arenas += rows.gather(1, number, number, [(1, [(0, partitions)])])
    gathered = time.perf_counter()
    found: list[list[shuffle.Piece]] = [[] for _ in range(partitions)]
    for number, arena in enumerate(arenas):
        memory = memoryview(arena)
        for partition in range(partitions):
            for offset, length, count, _ in arena.find(partition):
                piece = shuffle.Piece(number, count, memory[offset : offset + length])
                found[partition].append(piece)
    located = time.perf_counter()
    total = sum(len(shuffle.assemble(agreed, pieces)) for pieces in found)
    seconds["gather"] = gathered - start
    seconds["find"] = located - gathered
    seconds["assemble"] = time.perf_counter() - located
    return total


def in_turns(runs: dict[str, Run], rows: int, rounds: int) -> dict[str, float]:
    """The median of the seconds of each, taken in turns after a first round that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            if run() != rows:
                raise RuntimeError(f"{name} lost rows")
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each[1:]) for name, each in seconds.items()}


def shuffled(rows: int, rounds: int) -> None:
    print(
        "| partitions | pandas s | NumPy blocks s | ours s | gather, find, assemble s | ours / pandas | ours / NumPy |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for partitions in (8, 64, 256, 1024):
        maps = min(partitions, 64)
        inputs = frames(rows, maps, partitions)
        blocks = []
        for frame in inputs:
            plain = frame.drop(columns="_partitions").to_numpy()
            index = frame.index.to_numpy()[:, None]
            block = np.ascontiguousarray(np.hstack([plain, index]))
            blocks.append((block, frame["_partitions"].to_numpy().copy()))
        parts: dict[str, float] = {}
        medians = in_turns(
            {
                "pandas": lambda i=inputs, p=partitions: in_pandas(i, p),
                "numpy": lambda b=blocks, p=partitions: in_numpy(b, p),
                "ours": lambda i=inputs, p=partitions, s=parts: ours(i, p, s),
            },
            len(inputs[0]) * maps,
            rounds,
        )
        mine = medians["ours"]
        last = ", ".join(f"{parts[name]:.2f}" for name in ("gather", "find", "assemble"))
        print(
            f"| {partitions} ({maps} maps) | {medians['pandas']:.2f} | {medians['numpy']:.2f} | {mine:.2f} | {last} "
            f"| {mine / medians['pandas']:.2f} | {mine / medians['numpy']:.2f} |",
            flush=True,
        )


def digests(rounds: int) -> None:
    """A digest of rows beside a copy of the same memory, both in the nearest caches and beyond."""
    for width in (8, 88, 800):
        for length in (64 << 10, 64 << 20):
            piece = np.random.default_rng(0).integers(0, 255, length // width * width, np.uint8)
            to = np.empty_like(piece)
            repeats = max(1, (32 << 20) // length)
            runs: dict[str, Run] = {
                "copy": lambda r=repeats, t=to, p=piece: [np.copyto(t, p) for _ in range(r)] and 0,
                "digest": lambda r=repeats, w=width, p=piece: (
                    [_core.digest_rows(w, 1, 2, p) for _ in range(r)] and 0
                ),
            }
            medians = in_turns(runs, 0, rounds)
            rates = {name: len(piece) * repeats / took / 1e9 for name, took in medians.items()}
            print(
                f"rows of {width} bytes, {length >> 10} KiB: digest {rates['digest']:.1f} GB/s, "
                f"copy {rates['copy']:.1f} GB/s, digest / copy in time "
                f"{medians['digest'] / medians['copy']:.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("shuffle", "digest"))
    args = parser.parse_args()
    if args.only != "shuffle":
        digests(args.rounds)
    if args.only != "digest":
        shuffled(args.rows, args.rounds)


if __name__ == "__main__":
    main()
