"""Pieces of arrays as rows of a shuffle and back, beside distributed's own functions."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from distributed.shuffle._rechunk import split_axes

from shuffle_support import gathered, pieces_of
from treadle import shuffle
from treadle.shuffle import _kinds
from treadle.shuffle._spec import ArraySpec


def rechunked(array: Any, old: Any, new: Any) -> dict[tuple[int, ...], Any]:
    """All new chunks of an array, cut where distributed cuts them."""
    axes = split_axes(old, new)
    indexes = list(product(*(range(len(axis)) for axis in new)))
    partition_of = {index: number for number, index in enumerate(indexes)}
    ends = [np.cumsum([0, *axis]) for axis in old]
    arenas = []
    for number, at in enumerate(product(*(range(len(axis)) for axis in old))):
        chunk = array[tuple(slice(e[i], e[i + 1]) for e, i in zip(ends, at, strict=True))]
        pieces = []
        for split in product(*(axis[i] for axis, i in zip(axes, at, strict=True))):
            chunk_index, shard_index, where = zip(*split, strict=True)
            pieces.append((partition_of[chunk_index], shard_index, chunk[where]))
        rows = shuffle.split_array(len(indexes), pieces)
        arenas.append(gathered(rows, number, len(indexes)))
    found = {}
    for index, partition in partition_of.items():
        pieces = [p for n, a in enumerate(arenas) for p in pieces_of(a, n, partition)]
        found[index] = shuffle.assemble_array(pieces)
    return found


@pytest.mark.parametrize(
    "array",
    [
        np.arange(240.0).reshape(12, 20),
        np.arange(240).reshape(12, 20)[:, ::-1].astype("f4"),
        np.asfortranarray(np.arange(240).astype("M8[s]").reshape(12, 20)),
        np.array([[None, "x"] * 10] * 12, object),
        np.ma.masked_greater(np.arange(240).reshape(12, 20), 100),
        np.zeros((12, 20), [("a", "i4"), ("b", "f8")]),
    ],
    ids=["floats", "turned", "fortran", "objects", "masked", "records"],
)
def test_a_chunk_is_what_slicing_gives(array: Any) -> None:
    old, new = ((5, 7), (8, 12)), ((4, 4, 4), (3, 0, 17))
    ends = [np.cumsum([0, *axis]) for axis in new]
    for index, chunk in rechunked(array, old, new).items():
        expected = array[tuple(slice(e[i], e[i + 1]) for e, i in zip(ends, index, strict=True))]
        assert chunk.dtype == expected.dtype
        assert type(chunk) is type(expected)
        assert chunk.shape == expected.shape
        np.testing.assert_array_equal(chunk, expected)


def test_pieces_that_are_not_there_are_missed() -> None:
    rows = shuffle.split_array(1, [(0, (0, 0), np.ones((3, 3))), (0, (1, 1), np.ones((3, 3)))])
    with pytest.raises(ValueError, match="2 pieces came"):
        shuffle.assemble_array(pieces_of(gathered(rows, 0, 1), 0, 0))
    with pytest.raises(ValueError, match="none came"):
        shuffle.assemble_array([])
    with pytest.raises(ValueError, match="has 4 in row 0"):
        shuffle.split_array(2, [(4, (0,), np.ones(3))])


@pytest.mark.parametrize("most", [1, 3, 20, 60, 10_000])
def test_large_pieces_are_cut(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(_kinds, "_ELEMENTS", most)
    array = np.arange(12 * 20 * 3).reshape(12, 20, 3)
    old, new = ((5, 7), (8, 12), (3,)), ((4, 0, 4, 4), (3, 17), (1, 2))
    chunks = _kinds.Chunks(ArraySpec(old, new))
    count = 4 * 2 * 2
    ends, after = ([np.cumsum([0, *axis]) for axis in axes] for axes in (old, new))
    arenas = []
    for place in product(*(range(len(axis)) for axis in old)):
        whole = array[tuple(slice(e[i], e[i + 1]) for e, i in zip(ends, place, strict=True))]
        pieces = list(chunks.pieces(whole, place))
        assert max(piece.size for *_, piece in pieces) <= most
        arenas.append(gathered(chunks.split(whole, place), chunks.map_of(place), count))
    for index in product(*(range(len(axis)) for axis in new)):
        partition = chunks.partition_of(index)
        found = chunks.assemble(
            [p for n, a in enumerate(arenas) for p in pieces_of(a, n, partition)]
        )
        expected = array[tuple(slice(e[i], e[i + 1]) for e, i in zip(after, index, strict=True))]
        np.testing.assert_array_equal(found, expected)


def test_pieces_of_unknown_length_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kinds, "_ELEMENTS", 2)
    unknown = (np.nan, np.nan)
    chunks = _kinds.Chunks(ArraySpec((unknown, (4, 4)), (unknown, (8,))))
    pieces = list(chunks.pieces(np.ones((7, 4)), (1, 0)))
    assert [(number, piece.shape) for number, _, piece in pieces] == [(1, (7, 2))] * 2
