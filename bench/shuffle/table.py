"""A data frame of 640 MB, shuffled by a column: the table of the shuffle's bars, by partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import dask.dataframe as dd
import pandas as pd

import floor
import skeleton
import work
from clusters import WORKERS
from figures import Figure
from sides import OUR_TASKS, THEIR_TASKS, THEIRS, Turn, by, computed, in_turns, sides, ways

ROWS = 8_000_000
PARTITIONS = (8, 64, 256, 1024)
BLOCKS, SKELETON, FLOOR = "row blocks", "the graph without exchange", "both"


def frame(maps: int, rows: int = ROWS, columns: int = work.COLUMNS) -> Any:
    return dd.from_map(
        partial(work.table, rows=rows // maps, columns=columns),
        range(maps),
        meta=work.table(0, 0, columns),
    )


def lengths(shuffled: Any) -> Any:
    return shuffled.map_partitions(work.length, meta=pd.Series(dtype="int64"))


def shuffled(frame: Any) -> Any:
    return lengths(frame.shuffle("c1"))


def shuffle(client: Any, frame: Any) -> None:
    rows = computed(client, shuffled(frame)).sum()
    expected = frame.npartitions * (ROWS // frame.npartitions)
    if rows != expected:
        raise RuntimeError(f"{rows:,} rows of {expected:,} came")


def beside_the_floor(
    engines: Any, case: floor.Case, run: Callable[..., None], graph: Callable[..., Any], rounds: int
) -> Any:
    """The ways in turns, with the two parts of their floor."""
    ours = engines["treadle"]

    def bare() -> float:
        ours.settle()
        with by("p2p"):
            return skeleton.seconds(ours.client, graph(*ours.held))

    with floor.running(case) as blocks:
        turns: dict[str, Turn] = {BLOCKS: blocks.turn, SKELETON: bare, **ways(engines, run)}
        outcome = in_turns(turns, rounds)
    values = outcome.samples.values
    if BLOCKS in values and SKELETON in values:
        values[FLOOR] = [a + b for a, b in zip(values[BLOCKS], values[SKELETON], strict=True)]
    return outcome


def measure(quick: bool) -> Iterator[Figure]:
    with sides() as engines:
        for partitions in PARTITIONS[:3] if quick else PARTITIONS:
            for side in engines.values():
                side.hold(frame(partitions, ROWS))
            # The index is a column of the rows.
            columns = work.COLUMNS + 1
            case = floor.Case(partitions, ROWS // partitions, columns, partitions, False, WORKERS)
            outcome = beside_the_floor(engines, case, shuffle, shuffled, 1 if quick else 5)
            what = f"`shuffle` of 640 MB to {partitions:,} partitions"
            yield outcome.at_most(what, 1.5, FLOOR, BLOCKS, SKELETON)
            yield outcome.at_least("the same", 4, THEIRS, THEIR_TASKS)
            yield outcome.at_most("the same", 1.05, OUR_TASKS)
