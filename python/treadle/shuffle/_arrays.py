"""Pieces of an array as rows of a shuffle, and a chunk of all pieces for it.

A piece is one row with one field of bytes: 4 bytes with the length of a pickle, the pickle (the piece's
index in its chunk, its dtype and shape), and the elements in C order. An array that is not NumPy's own,
or whose elements are objects, is in the pickle as a whole.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from treadle import _core
from treadle.shuffle._pickles import dumps
from treadle.shuffle._piece import Piece

Index = tuple[int, ...]

_LENGTH = 4
# A row begins with its length and that of its one field.
_ROW = 8


def _is_plain(array: Any) -> bool:
    return type(array) is np.ndarray and array.dtype.itemsize > 0 and not array.dtype.hasobject


def split_array(partitions: int, pieces: Iterable[tuple[int, Index, Any]]) -> _core.Rows:
    """The pieces of a chunk, each with its partition and its index among the pieces of that.

    Pieces may be views of any memory; they are copied here, each once. Raises ``ValueError`` for a
    number that is no partition, ``OverflowError`` when rows are gathered if a piece has 2 GiB or more.
    """
    pieces = list(pieces)
    heads = []
    for _, index, array in pieces:
        shape = (array.dtype, array.shape) if _is_plain(array) else (array,)
        heads.append(dumps((index, *shape)))
    sizes = [
        _LENGTH + len(head) + (array.nbytes if _is_plain(array) else 0)
        for head, (_, _, array) in zip(heads, pieces, strict=True)
    ]
    ends = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    data = np.empty(ends[-1], np.uint8)
    for start, head, (_, _, array) in zip(ends, heads, pieces, strict=False):
        body = start + _LENGTH + len(head)
        data[start : start + _LENGTH].view("<u4")[0] = len(head)
        data[start + _LENGTH : body] = np.frombuffer(head, np.uint8)
        if _is_plain(array):
            place = data[body : body + array.nbytes].view(array.dtype)
            np.copyto(place.reshape(array.shape), array)
    numbers = np.array([partition for partition, _, _ in pieces], np.int64)
    return _core.Rows(numbers, partitions, "partition", [(ends, data, None)])


def _pieces(piece: Piece) -> Iterable[tuple[Index, Any]]:
    """The indexes and arrays of a piece, as views of its memory."""
    _core.scan_rows([0], [piece.data])  # so that all lengths are right
    data = memoryview(piece.data).cast("B")
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        field = data[at + _ROW : at + length]
        end = _LENGTH + int.from_bytes(field[:_LENGTH], "little")
        index, *rest = pickle.loads(field[_LENGTH:end])
        if len(rest) == 1:
            yield index, rest[0]
        else:
            dtype, shape = rest
            yield index, np.frombuffer(field[end:], dtype).reshape(shape)
        at += length


def assemble_array(pieces: Sequence[Piece]) -> Any:
    """A chunk of its pieces, in one allocation. Raises ``ValueError`` if some are not there."""
    arrays = {index: array for piece in pieces for index, array in _pieces(piece)}
    if not arrays:
        raise ValueError("A chunk of an array has at least one piece, and none came.")
    counts = [max(places) + 1 for places in zip(*arrays, strict=True)]
    if len(arrays) != np.prod(counts, dtype=int):
        raise ValueError(f"A chunk has {counts} pieces along its axes, and {len(arrays)} came.")
    if not all(map(_is_plain, arrays.values())):
        return _concatenated(arrays, counts)
    starts = []
    for axis, count in enumerate(counts):
        firsts = [tuple(at if a == axis else 0 for a in range(len(counts))) for at in range(count)]
        starts.append(np.cumsum([0, *(arrays[first].shape[axis] for first in firsts)]))
    dtype = np.result_type(*{array.dtype for array in arrays.values()})
    chunk = np.empty([axis[-1] for axis in starts], dtype)
    for index, array in arrays.items():
        place = tuple(slice(s[at], s[at + 1]) for s, at in zip(starts, index, strict=True))
        chunk[place] = array
    return chunk


def _concatenated(arrays: dict[Index, Any], counts: Sequence[int]) -> Any:
    """By Dask's own function, which knows arrays of other libraries."""
    from dask.array.core import concatenate3

    grid = np.empty(counts, object)
    for index, array in arrays.items():
        grid[index] = array
    return concatenate3(grid.tolist())
