"""``set_index`` of the table's data frame, computed whole: each partition is sorted, and summed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

import floor
import work
from clusters import WORKERS
from figures import Figure
from sides import OUR_TASKS, THEIR_TASKS, THEIRS, computed, sides
from table import BLOCKS, ROWS, SKELETON, beside_the_floor, frame

PARTITIONS = 64


def indexed(frame: Any) -> Any:
    """With divisions that are known: Dask reads the column for them otherwise."""
    names = [name for name in frame.columns if name != "c1"]
    made = frame.set_index("c1", divisions=work.divisions(frame.npartitions))[names]
    return made.map_partitions(work.summed, meta=pd.Series(dtype="int64"))


def run(client: Any, frame: Any) -> None:
    sums = computed(client, indexed(frame))
    assert len(sums) == frame.npartitions, "partitions are missing"


def measure(quick: bool) -> Iterator[Figure]:
    with sides() as engines:
        for side in engines.values():
            side.hold(frame(PARTITIONS))
        # The index does not travel: it is replaced.
        case = floor.Case(PARTITIONS, ROWS // PARTITIONS, work.COLUMNS, PARTITIONS, True, WORKERS)
        outcome = beside_the_floor(engines, case, run, indexed, 1 if quick else 5)
    what = f"`set_index` of 640 MB, {PARTITIONS} partitions, each sorted and summed"
    yield outcome.at_most(what, 1.5, BLOCKS, limit=outcome.told(SKELETON))
    yield outcome.at_least("the same", 1, THEIRS, THEIR_TASKS, OUR_TASKS)
