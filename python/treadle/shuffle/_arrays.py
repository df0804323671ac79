"""Converts pieces of an array to rows of a shuffle, and the pieces of a chunk to the chunk.

A piece is one row with one field of bytes: a head, and the elements in C order. The head has the index of
the piece in its chunk, the shape and the dtype (``crates/shuffle/rows/src/chunks.rs``). An array that is not
NumPy's own, or whose elements are objects, is pickled together with its index, in a head of another kind.
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

# Bytes of the length before a head, and of the two lengths before the field: of the row, of the field.
_LENGTH = 4
_ROW = 8
# The first byte of a head: the piece is pickled, or its elements follow.
_PICKLED, _PLAIN = b"\0", b"\1"


def _is_plain(array: Any) -> bool:
    return type(array) is np.ndarray and array.dtype.itemsize > 0 and not array.dtype.hasobject


def _kind(dtype: np.dtype[Any]) -> bytes:
    """A dtype as bytes: its name if that is enough, otherwise pickled."""
    name = dtype.str
    is_all = dtype.isbuiltin == 1 and np.dtype(name) == dtype and not dtype.metadata
    return name.encode() if is_all else dumps(dtype)


def _dtype(kind: bytes) -> np.dtype[Any]:
    return pickle.loads(kind) if kind[:1] == b"\x80" else np.dtype(kind.decode())


def _forward(array: np.ndarray[Any, Any]) -> Any:
    """The array as a buffer without negative strides."""
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    memory: Any = array
    try:
        return memoryview(memory)
    except (ValueError, TypeError):  # the buffer protocol has no format for times and dates
        return array.view(f"V{array.dtype.itemsize}")


def split_array(partitions: int, pieces: Iterable[tuple[int, Index, Any]]) -> _core.Rows:
    """The rows of pieces. Each piece has its partition, and its index in the chunk of that partition.

    Pieces may be views of any memory. It must not change before the rows are gathered, which copies each
    piece once. Raises ``ValueError`` for a partition that does not exist. Gathering raises
    ``OverflowError`` if a piece has 2 GiB or more (:mod:`treadle.shuffle._kinds` cuts it before).
    """
    numbers: list[int] = []
    rows: list[tuple[Index, Any, bytes]] = []
    kinds: dict[Any, bytes] = {}
    for partition, index, array in pieces:
        numbers.append(partition)
        if _is_plain(array):
            dtype = array.dtype
            kind = kinds.get(dtype)
            if kind is None:
                kind = kinds[dtype] = _kind(dtype)
            rows.append((index, _forward(array), kind))
        else:
            rows.append(((), None, _PICKLED + dumps((index, array))))
    column = _core.Pieces(rows)
    return _core.Rows(np.array(numbers, np.int64), partitions, "partition", [column])


def _pieces(piece: Piece) -> Iterable[tuple[Index, Any]]:
    """The indexes and arrays of a piece, as views of its memory."""
    _core.scan_rows([0], [piece.data])  # checks all lengths
    data = memoryview(piece.data).cast("B")
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        field = data[at + _ROW : at + length]
        end = _LENGTH + int.from_bytes(field[:_LENGTH], "little")
        head = bytes(field[_LENGTH:end])
        if head[:1] == _PLAIN:
            axes = head[1]
            index = tuple(map(int, np.frombuffer(head, "<u4", axes, 2)))
            shape = tuple(map(int, np.frombuffer(head, "<u8", axes, 2 + 4 * axes)))
            dtype = _dtype(head[2 + 12 * axes :])
            yield index, np.frombuffer(field[end:], dtype).reshape(shape)
        else:
            yield pickle.loads(head[1:])
        at += length


def assemble_array(pieces: Sequence[Piece]) -> Any:
    """The chunk that pieces make up. Raises ``ValueError`` if some are missing."""
    datas = [piece.data for piece in pieces]
    whole = _core.scan_chunk(datas)
    if whole is not None:
        shape, kind = whole
        chunk = np.empty(shape, _dtype(kind))
        _core.join_chunk(datas, chunk.reshape(-1).view(np.uint8), chunk.dtype.itemsize)
        return chunk
    arrays = {index: array for piece in pieces for index, array in _pieces(piece)}
    if not arrays:
        raise ValueError("a chunk has at least one piece, and none came")
    counts = [max(places) + 1 for places in zip(*arrays, strict=True)]
    if len(arrays) != np.prod(counts, dtype=int):
        raise ValueError(
            f"a chunk has {counts} pieces along its axes, and {len(arrays)} pieces came"
        )
    return _concatenated(arrays, counts)


def _concatenated(arrays: dict[Index, Any], counts: Sequence[int]) -> Any:
    """Concatenated by Dask's function, which supports arrays of other libraries."""
    from dask.array.core import concatenate3

    grid = np.empty(counts, object)
    for index, array in arrays.items():
        grid[index] = array
    return concatenate3(grid.tolist())
