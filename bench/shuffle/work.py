"""The functions that tasks call; importable by workers, which find this folder in their path."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

COLUMNS = 10
LARGEST = 1 << 40


def divisions(partitions: int) -> list[int]:
    """Those of keys that are spread evenly up to ``LARGEST``."""
    return [LARGEST * number // partitions for number in range(partitions + 1)]


def table(part: int, rows: int, columns: int = COLUMNS) -> pd.DataFrame:
    """One partition of int64 columns in one block, as pandas makes it: c0, c1, ..."""
    values = np.random.default_rng(part).integers(0, LARGEST, (columns, rows))
    return pd.DataFrame(values.T, columns=[f"c{number}" for number in range(columns)], copy=False)


def grouped(part: int, rows: int, groups: int) -> pd.DataFrame:
    """``table`` with a column of group numbers."""
    return table(part, rows).assign(
        group=np.random.default_rng(-1 - part & 0xFFFF_FFFF).integers(0, groups, rows)
    )


def left(part: int, rows: int, keys: int) -> pd.DataFrame:
    """The longer side of a merge: a key, a number, and a name of about a dozen letters."""
    random = np.random.default_rng(part)
    names = pd.array([f"name-{number:07d}" for number in range(1000)], dtype="str")
    return pd.DataFrame(
        {
            "key": random.integers(0, keys, rows),
            "number": random.integers(0, LARGEST, rows),
            "name": names.take(random.integers(0, len(names), rows)),
        }
    )


def right(part: int, parts: int, keys: int) -> pd.DataFrame:
    """The other side: each key once, those of a partition spread over all of them."""
    mine = np.arange(part, keys, parts)
    return pd.DataFrame({"key": mine, "value": mine * 3})


def length(frame: pd.DataFrame) -> pd.Series[int]:
    return pd.Series([len(frame)])


def summed(frame: pd.DataFrame) -> pd.Series[int]:
    """The sum of all values, of a frame whose index is sorted."""
    if not frame.index.is_monotonic_increasing:
        raise ValueError("a partition is not sorted")
    return pd.Series([frame.to_numpy().sum() + frame.index.to_numpy().sum()])


def total(group: pd.DataFrame) -> int:
    return int(group["c1"].sum())


@lru_cache
def _rows() -> tuple[Any, Any]:
    """Rows as many as those of an input, and another order of them."""
    return np.zeros((10_000, COLUMNS), np.int64), np.random.default_rng(0).permutation(10_000)


def rearrange(seconds: float) -> None:
    """Gathers rows in another order for so long, as a transfer does."""
    rows, order = _rows()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        rows.take(order, axis=0)


def nothing(spend: Callable[[], None] | None, *_inputs: Any) -> int:
    """In the place of a transfer, and of a barrier: it has its inputs and leaves them."""
    if spend:
        spend()
    return 0


@lru_cache
def _without_rows(columns: tuple[str, ...]) -> pd.DataFrame:
    return pd.DataFrame({name: np.empty(0, np.int64) for name in columns})


def empty(
    spend: Callable[[], None] | None, columns: tuple[str, ...], _barrier: int
) -> pd.DataFrame:
    """In the place of an unpack."""
    if spend:
        spend()
    return _without_rows(columns)
