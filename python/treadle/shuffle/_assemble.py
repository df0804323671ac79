"""Makes a partition from the pieces of all maps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from treadle import _core
from treadle.shuffle._common_plan import Agreed
from treadle.shuffle._piece import Piece
from treadle.shuffle._reconcile import reconcile
from treadle.shuffle._schema import Schema, is_same_name


class _Segment:
    """Successive pieces whose rows have the same schema."""

    def __init__(self, agreed: Agreed, note: bytes, least: int | None) -> None:
        self.note = note
        self.schema = Schema.from_note(note) if note else agreed.schema
        self.least = least
        self.pieces: list[Any] = []

    def columns(self) -> list[Any]:
        """The arrays of all columns, then those of the levels of the index.

        Columns with the same NumPy dtype are rows of one array, as in a block of pandas.
        """
        widths = self.schema.widths
        rows, sizes, _ = _core.scan_rows(widths, self.pieces, self.least)
        lengths = iter(sizes)
        blocks = self._blocks(rows)
        targets: list[list[Any]] = []
        for column in self.schema.all:
            fields: list[Any] = []
            for width, dtype in zip(column.widths, column.types, strict=True):
                if column.kind == "plain":
                    fields.append(next(blocks[dtype]))
                elif width:
                    fields.append(np.empty(rows, dtype))
                else:
                    offsets, nulls = np.empty(rows + 1, np.int64), np.empty(rows, np.uint8)
                    fields.append((offsets, np.empty(next(lengths), np.uint8), nulls))
            targets.append(fields)
        flat = [_writable(field) for fields in targets for field in fields]
        _core.join_rows(widths, self.pieces, flat, self.least)
        pairs = zip(self.schema.all, targets, strict=True)
        return [column.values(fields) for column, fields in pairs]

    def _blocks(self, rows: int) -> dict[Any, Any]:
        counts: dict[Any, int] = {}
        for column in self.schema.columns:
            if column.kind == "plain":
                counts[column.dtype] = counts.get(column.dtype, 0) + 1
        for column in self.schema.levels:
            if column.kind == "plain":
                counts.setdefault(column.dtype, 0)
        blocks = {dtype: iter(np.empty((n, rows), dtype)) for dtype, n in counts.items()}
        # Levels of the index are not in a block.
        return {dtype: _then_single(block, rows, dtype) for dtype, block in blocks.items()}


def _then_single(block: Iterable[Any], rows: int, dtype: Any) -> Any:
    yield from block
    while True:
        yield np.empty(rows, dtype)


def _writable(field: Any) -> Any:
    """The field as a type that the buffer protocol supports."""
    is_time = isinstance(field, np.ndarray) and field.dtype.kind in "mM"
    return field.view("i8") if is_time else field


def _segments(agreed: Agreed, pieces: Sequence[Piece]) -> list[_Segment]:
    """The pieces, in segments of one schema each."""
    pieces = [piece for piece in pieces if piece.rows]
    datas = [memoryview(piece.data) for piece in pieces]
    width = agreed.width
    is_fixed = [
        width > 0 and data.nbytes == piece.rows * width
        for piece, data in zip(pieces, datas, strict=True)
    ]
    variable = [at for at, fixed in enumerate(is_fixed) if not fixed]
    _, _, found = _core.scan_rows([], [datas[at] for at in variable], 0)
    notes = {variable[at]: bytes(datas[variable[at]][start:end]) for at, start, end in found}
    segments: list[_Segment] = []
    note = b""
    for at, piece in enumerate(pieces):
        # A note also holds for the later pieces of its map.
        if at in notes or is_fixed[at] or piece.map != pieces[at - 1].map:
            note = notes.get(at, b"")
        if not segments or segments[-1].note != note:
            segments.append(_Segment(agreed, note, agreed.least if note else None))
        segments[-1].pieces.append(datas[at])
    return segments


def _frame(arrays: Sequence[Any], index: pd.Index[Any], columns: pd.Index[Any]) -> pd.DataFrame:
    """A frame of arrays, without copying. Arrays that are rows of one array are one block."""
    try:
        from pandas.api import internals  # type: ignore[attr-defined]
    except ImportError:  # pandas 2: a block a column
        frame = pd.DataFrame(dict(enumerate(arrays)), index=index, copy=False)
        frame.columns = columns
        return frame
    blocks: list[tuple[Any, Any]] = []
    by_base: dict[int, list[int]] = {}
    for place, array in enumerate(arrays):
        base = array.base if isinstance(array, np.ndarray) else None
        if base is not None and base.ndim == 2:
            by_base.setdefault(id(base), []).append(place)
        elif isinstance(array, np.ndarray):
            blocks.append((array.reshape(1, -1), np.array([place])))
        else:
            blocks.append((array, np.array([place])))
    for places in by_base.values():
        base = arrays[places[0]].base
        if len(places) == len(base):
            blocks.append((base, np.array(places)))
        else:  # some of its columns were converted
            blocks += [(arrays[at].reshape(1, -1), np.array([at])) for at in places]
    made: pd.DataFrame = internals.create_dataframe_from_blocks(blocks, index, columns)
    return made


def _index(
    agreed: Agreed, parts: Sequence[Sequence[Any]], names: Sequence[Sequence[Any]]
) -> pd.Index[Any]:
    """The index of parts, each of which has the arrays of its levels and their names.

    As :func:`pandas.concat` makes it: a level has a name if all parts agree on it. If parts have different
    numbers of levels, rows are named by values or tuples.
    """
    if len(set(map(len, parts))) > 1:
        whole = np.concatenate([_tuples(part) for part in parts])
        return pd.Index(whole, dtype=object, tupleize_cols=False)
    arrays = [
        ours[0] if len(ours) == 1 else reconcile(ours, None) for ours in zip(*parts, strict=True)
    ]
    common = [
        first if all(is_same_name(first, other) for other in others) else None
        for first, *others in zip(*names, strict=True)
    ]
    has_levels = isinstance(agreed.meta.index, pd.MultiIndex)
    if len(arrays) > 1 or (has_levels and agreed.meta.index.nlevels == 1):
        # pandas makes text of arrays of objects that are text.
        level_arrays = [pd.Index(array, dtype=array.dtype) for array in arrays]
        return pd.MultiIndex.from_arrays(level_arrays, names=common)
    index: pd.Index[Any] = pd.Index(arrays[0], dtype=arrays[0].dtype, name=common[0])
    return index


def _tuples(part: Sequence[Any]) -> np.ndarray[Any, Any]:
    """What names the rows of a part: values, or tuples where its index has several levels."""
    index = (
        pd.MultiIndex.from_arrays(part) if len(part) > 1 else pd.Index(part[0], dtype=part[0].dtype)
    )
    return index.to_numpy(object)


def assemble(agreed: Agreed, pieces: Sequence[Piece]) -> pd.DataFrame:
    """The frame of all pieces, which are in the order of their maps and, for one map, of its batches.

    Types are those of Dask's own shuffle: the common type of the meta and the maps. The index is that of the
    maps. The class is that of the meta. Without rows, the result is the meta. Raises ``ValueError`` for damaged pieces.
    """
    segments = _segments(agreed, pieces)
    if not segments:
        return agreed.empty.copy()
    parts = [segment.columns() for segment in segments]
    count = len(agreed.kept)
    arrays = [part[:count] for part in parts]
    is_agreed = len(segments) == 1 and segments[0].schema is agreed.schema
    columns = arrays[0]
    if not is_agreed:
        dtypes = [column.dtype for column in agreed.schema.columns]
        columns = [reconcile(ours, dtype) for *ours, dtype in zip(*arrays, dtypes, strict=True)]
    names = [segment.schema.names or agreed.schema.names or () for segment in segments]
    index = _index(agreed, [part[count:] for part in parts], names)
    return _of_class(agreed.empty, _frame(columns, index, agreed.empty.columns))


def _of_class(meta: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """The frame as the class of the meta, which a partition without rows has, too."""
    if type(meta) is pd.DataFrame:
        return frame
    constructor: Any = meta._constructor
    made: pd.DataFrame = constructor(frame).__finalize__(meta)
    return made
