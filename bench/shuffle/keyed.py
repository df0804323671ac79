"""What shuffles by a key: ``groupby.apply`` of many groups, and a merge of two long frames."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import dask.dataframe as dd
import pandas as pd

import work
from figures import Figure
from sides import OUR_TASKS, THEIR_TASKS, THEIRS, computed, in_turns, sides, ways
from table import ROWS, lengths

PARTITIONS = 64
GROUPS = 10_000
KEYS = 4_000_000


def grouped() -> Any:
    rows = ROWS // PARTITIONS
    make = partial(work.grouped, rows=rows, groups=GROUPS)
    return dd.from_map(make, range(PARTITIONS), meta=work.grouped(0, 0, GROUPS))


def left() -> Any:
    make = partial(work.left, rows=ROWS // PARTITIONS, keys=KEYS)
    return dd.from_map(make, range(PARTITIONS), meta=work.left(0, 0, KEYS))


def right() -> Any:
    make = partial(work.right, parts=PARTITIONS, keys=KEYS)
    return dd.from_map(make, range(PARTITIONS), meta=work.right(0, PARTITIONS, KEYS).iloc[:0])


def apply(client: Any, frame: Any) -> None:
    totals = frame.groupby("group").apply(work.total, meta=pd.Series(dtype="int64"))
    found = computed(client, lengths(totals)).sum()
    assert found == GROUPS, f"{found:,} groups came"


def merge(client: Any, left: Any, right: Any) -> None:
    merged = left.merge(right, on="key")
    found = computed(client, lengths(merged)).sum()
    assert found == PARTITIONS * (ROWS // PARTITIONS), f"{found:,} rows came"


def measure(quick: bool) -> Iterator[Figure]:
    rounds = 1 if quick else 3
    with sides() as engines:
        for what, make, run in (
            (f"`groupby.apply`, {GROUPS:,} groups in 8 million rows", (grouped,), apply),
            ("`merge` of 8 and 4 million rows, one column of strings", (left, right), merge),
        ):
            for side in engines.values():
                side.hold(*(each() for each in make))
            outcome = in_turns(ways(engines, run), rounds)
            yield outcome.at_least(what, 3, THEIRS, THEIR_TASKS)
            yield outcome.at_most("the same", 1.05, OUR_TASKS)
