"""Both ways through a shuffle without a network: ours, and that of distributed's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from distributed.shuffle import _arrow, _shuffle

from treadle import _core, shuffle


def gathered(rows: _core.Rows, map_number: int, partitions: int) -> list[_core.Arena]:
    """Arenas for two groups that have every other partition."""
    groups = [
        (1, [(p, p + 1) for p in range(first, partitions, 2)])
        for first in range(min(2, partitions))
    ]
    return rows.gather(7, map_number, 100 + map_number, groups)


def pieces_of(
    arenas: Sequence[_core.Arena], map_number: int, partition: int
) -> list[shuffle.Piece]:
    """The pieces for a partition; those with a wrong digest end the test."""
    pieces = []
    for arena in arenas:
        width = 0
        for offset, length, rows, half in arena.find(partition):
            data = memoryview(arena)[offset : offset + length]
            width = length // rows
            digests = []
            for candidate in (width, 0):
                try:
                    digests.append(_core.digest_rows(candidate, map_number, partition, data))
                except ValueError:
                    digests.append(None)
            assert half in [digest and digest & 0xFFFFFFFF for digest in digests]
            pieces.append(shuffle.Piece(map_number, rows, data))
    return pieces


def ours(
    meta: pd.DataFrame,
    frames: Sequence[pd.DataFrame],
    partitions: int,
    column: Any = "_partitions",
    *,
    drop_column: bool = True,
) -> list[pd.DataFrame]:
    """All partitions."""
    agreed = shuffle.Agreed(meta, column, partitions, drop_column=drop_column)
    arenas = [
        gathered(shuffle.split(agreed, frame), number, partitions)
        for number, frame in enumerate(frames)
    ]
    found = []
    for partition in range(partitions):
        pieces = [p for n, a in enumerate(arenas) for p in pieces_of(a, n, partition)]
        found.append(shuffle.assemble(agreed, pieces))
    return found


def theirs(
    meta: pd.DataFrame,
    frames: Sequence[pd.DataFrame],
    partitions: int,
    column: Any = "_partitions",
    *,
    drop_column: bool = True,
) -> list[pd.DataFrame]:
    """All partitions, as `DataFrameShuffleRun` makes them."""
    worker_for = pd.Series({p: f"w{p % 2}" for p in range(partitions)}, name="_workers")
    worker_for = worker_for.astype("category")
    received: dict[str, list[tuple[int, bytes]]] = {}
    for number, frame in enumerate(frames):
        for worker, table in _shuffle.split_by_worker(frame, column, meta, worker_for).items():
            received.setdefault(worker, []).append((number, _arrow.serialize_table(table)))
    shards: dict[int, list[Any]] = {}
    for data in received.values():
        table = _arrow.buffers_to_table(data)
        for p, shard in _shuffle.split_by_partition(table, column, drop_column).items():
            copy = _arrow.deserialize_table(_arrow.serialize_table(shard))
            shards.setdefault(int(p), []).append(copy)
    found = []
    for partition in range(partitions):
        if partition in shards:
            found.append(_arrow.convert_shards(shards[partition], meta, column, drop_column))
        else:
            found.append(meta.drop(columns=column) if drop_column else meta.copy())
    return found
