"""The index of shuffled frames where it is not that of the meta: that of the data, as by tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from shuffle_support import ours, theirs

PLAIN = pd.RangeIndex(6)
NAMED = pd.Index([3, 1, 4, 1, 5, 9], name="n")
TWO = pd.MultiIndex.from_arrays([range(6), list("aabbcc")], names=["p", "q"])
UNNAMED = TWO.set_names([None, None])
THREE = pd.MultiIndex.from_arrays([range(6), list("aabbcc"), range(6)], names=["p", "q", "r"])

Case = tuple[Any, list[Any]]

# Each: the index of the meta, and those of the maps.
ALIKE: dict[str, Case] = {
    "the meta has no name": (PLAIN, [NAMED] * 2),
    "the data has no name": (NAMED, [PLAIN] * 2),
    "levels instead of values": (PLAIN, [TWO] * 2),
    "levels without names": (PLAIN, [UNNAMED] * 2),
    "values instead of levels": (TWO, [NAMED] * 2),
    "more levels": (TWO, [THREE] * 2),
    "other names of levels": (TWO, [TWO.set_names(["x", "y"])] * 2),
}
UNLIKE: dict[str, Case] = {
    "names differ": (NAMED, [NAMED, NAMED.rename("m")]),
    "one has a name": (NAMED, [NAMED, PLAIN]),
    "a name of a level differs": (TWO, [TWO, TWO.set_names(["p", "z"])]),
    "levels and values": (NAMED, [TWO, NAMED]),
}


def frame_of(index: pd.Index[Any]) -> pd.DataFrame:
    frame = pd.DataFrame({"x": np.arange(6) / 2, "_partitions": np.arange(6) % 3})
    frame.index = index
    return frame


def frames_of(case: Case) -> tuple[pd.DataFrame, list[pd.DataFrame]]:
    meta, maps = case
    return frame_of(meta).iloc[:0], [frame_of(index) for index in maps]


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("name", {**ALIKE, **UNLIKE})
def test_the_index_is_that_of_the_data(name: str, text: bool) -> None:
    meta, frames = frames_of({**ALIKE, **UNLIKE}[name])
    if text:  # rows without a fixed width
        meta, *frames = (frame.assign(text="t") for frame in (meta, *frames))
        meta["text"] = meta["text"].astype(frames[0]["text"].dtype)
    results = ours(meta, frames, 4)
    whole = pd.concat(frames)
    for partition, mine in enumerate(results[:3]):
        expected = whole[whole["_partitions"] == partition].drop(columns="_partitions")
        assert_frame_equal(mine, expected)
    assert_frame_equal(results[3], meta.drop(columns="_partitions"))


@pytest.mark.parametrize("name", ALIKE)
def test_the_index_is_as_dasks_own_shuffle_gives_it(name: str) -> None:
    meta, frames = frames_of(ALIKE[name])
    for mine, other in zip(ours(meta, frames, 4), theirs(meta, frames, 4), strict=True):
        assert_frame_equal(mine, other)


def test_rows_with_different_numbers_of_levels_keep_all_of_them() -> None:
    meta, frames = frames_of((TWO, [TWO, THREE, NAMED]))
    mine = ours(meta, frames, 3)[1]
    # pandas drops a level of these.
    assert mine.index.tolist() == [(1, "a"), (4, "c"), (1, "a", 1), (4, "c", 4), 1, 5]
    assert mine.index.dtype == object
    assert mine["x"].tolist() == [0.5, 2.0] * 3


@pytest.mark.parametrize("name", [7, True, ("a", 1), pd.NA, float("nan")])
def test_a_name_may_be_anything(name: Any) -> None:
    meta, frames = frames_of((PLAIN.rename(1), [NAMED.rename(name)] * 2))
    for mine in ours(meta, frames, 3):
        assert repr(mine.index.name) == repr(name)


def test_one_level_stays_one() -> None:
    one = pd.MultiIndex.from_arrays([range(6)], names=["p"])
    meta, frames = frames_of((one, [one]))
    assert [mine.index.nlevels for mine in ours(meta, frames, 3)] == [1, 1, 1]
    assert all(isinstance(mine.index, pd.MultiIndex) for mine in ours(meta, frames, 3))
