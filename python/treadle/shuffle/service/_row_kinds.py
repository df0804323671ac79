"""What the rows of a shuffle of the stand-alone service are: what is written, as rows, and back.

| kind | rows |
| --- | --- |
| ``Fixed`` | elements of a NumPy array, all of one width |
| ``Opaque`` | bytes of any length |
| ``Batches`` | rows of Arrow's record batches |
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle import _core
from treadle.shuffle._dtypes import dtype_of, has_metadata, note_of, used_bytes
from treadle.shuffle._zero_nulls import emptied, zeroed
from treadle.shuffle.service._user_rows import offsets_and_data, plain_array, records

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Batches", "Fixed", "Kind", "Opaque", "kind_of", "kind_of_note"]

_NO_METADATA = "which is not carried: give a dtype without it"

# Rows of a map, how many there are, and their memory.
Pieces = Sequence[tuple[int, int, Any]]


class Kind(ABC):
    """What rows are. ``note`` says so to other processes."""

    width: int = 0
    """Bytes of a row; 0: they differ."""

    @property
    @abstractmethod
    def note(self) -> bytes:
        """What ``kind_of_note`` makes this kind of."""

    @abstractmethod
    def checked(self, data: Any) -> Any:
        """The rows as a chunk. Raises ``TypeError`` or ``ValueError`` for what is not carried whole."""

    @abstractmethod
    def count(self, chunk: Any) -> int:
        """How many rows there are."""

    @abstractmethod
    def joined(self, chunks: Sequence[Any]) -> Any:
        """All chunks together."""

    @abstractmethod
    def fields(self, data: Any) -> list[Any]:
        """The columns that ``_core.Rows`` takes."""

    @abstractmethod
    def assemble(self, pieces: Pieces) -> Any:
        """The rows of pieces, in their order."""


class Fixed(Kind):
    """Elements of NumPy arrays of one dtype, which may be structured or have a shape."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype.hasobject or self.dtype.itemsize == 0:
            raise TypeError(
                f"dtype {self.dtype}: rows have no objects, and at least one byte; write pickled "
                "objects as opaque records"
            )
        if has_metadata(self.dtype):
            raise TypeError(f"dtype {self.dtype} has metadata, {_NO_METADATA}")
        self.width = self.dtype.itemsize
        used = used_bytes(self.dtype)
        # Bytes of padding may be anything, and rows are compared by their bytes.
        self._mask = None if used.all() else np.where(used, 255, 0).astype(np.uint8)
        self._note = json.dumps({"kind": "fixed", **note_of(self.dtype)}).encode()

    @property
    def note(self) -> bytes:
        return self._note

    def checked(self, data: Any) -> Any:
        base, shape = self.dtype.subdtype or (self.dtype, ())
        array = plain_array(data, "rows")
        if array.dtype != base or array.shape[1:] != shape or array.ndim != 1 + len(shape):
            raise TypeError(
                f"rows of shape {array.shape} and dtype {array.dtype}: the shuffle's rows are "
                f"{self.dtype}"
            )
        if has_metadata(array.dtype):
            raise TypeError(f"rows of dtype {array.dtype} have metadata, {_NO_METADATA}")
        return np.ascontiguousarray(array)

    def count(self, chunk: Any) -> int:
        return len(chunk)

    def joined(self, chunks: Sequence[Any]) -> Any:
        base, shape = self.dtype.subdtype or (self.dtype, ())
        if len(chunks) == 1:
            return chunks[0]
        return np.concatenate(chunks) if chunks else np.empty((0, *shape), base)

    def fields(self, data: Any) -> list[Any]:
        data = np.ascontiguousarray(data).reshape(-1)
        if self._mask is not None:
            data = (data.view(np.uint8).reshape(-1, self.width) & self._mask).reshape(-1)
        return [data.view(f"V{self.width}")]

    def assemble(self, pieces: Pieces) -> Any:
        base, shape = self.dtype.subdtype or (self.dtype, ())
        all_bytes = sum(len(memory) for _, _, memory in pieces)
        out = np.empty(all_bytes, np.uint8)
        start = 0
        for _, _, memory in pieces:
            end = start + len(memory)
            out[start:end] = np.frombuffer(memory, np.uint8)
            start = end
        return out.view(base).reshape(-1, *shape) if all_bytes else np.empty((0, *shape), base)


def _bytes_fields(pieces: Pieces) -> tuple[Any, Any, Any]:
    """Offsets, data and nulls of variable rows with one field."""
    memories = [memory for _, rows, memory in pieces if rows]
    rows, lengths, _ = _core.scan_rows([0], memories)
    offsets, nulls = np.empty(rows + 1, np.int64), np.empty(rows, np.uint8)
    data = np.empty(lengths[0], np.uint8)
    _core.join_rows([0], memories, [(offsets, data, nulls)])
    return offsets, data, nulls


class Opaque(Kind):
    """Bytes of any length: a sequence of ``bytes``, or a pair of offsets and data."""

    @property
    def note(self) -> bytes:
        return json.dumps({"kind": "opaque"}).encode()

    def checked(self, data: Any) -> Any:
        return offsets_and_data(data) if _is_pair(data) else records(data)

    def count(self, chunk: Any) -> int:
        return len(chunk[0]) - 1

    def joined(self, chunks: Sequence[Any]) -> Any:
        if len(chunks) == 1:
            return chunks[0]
        lengths = [np.diff(offsets) for offsets, _ in chunks]
        offsets = np.zeros(1 + sum(map(len, lengths)), np.int64)
        if lengths:
            np.cumsum(np.concatenate(lengths), out=offsets[1:])
        return offsets, b"".join(data[at[0] : at[-1]] for at, data in chunks)

    def fields(self, data: Any) -> list[Any]:
        return [(*data, None)]

    def assemble(self, pieces: Pieces) -> list[bytes]:
        offsets, data, _ = _bytes_fields(pieces)
        memory, ends = data.tobytes(), offsets.tolist()
        return [memory[ends[at] : ends[at + 1]] for at in range(len(ends) - 1)]


def _is_pair(data: Any) -> bool:
    """Whether these are offsets and data, and no tuple of records."""
    is_pair = isinstance(data, tuple) and len(data) == 2
    return is_pair and not isinstance(data[0], bytes | bytearray | memoryview)


class Batches(Kind):
    """Rows of Arrow's record batches: columns of a fixed width, text and binary values."""

    def __init__(self, schema: pa.Schema) -> None:
        import pyarrow as pa
        import pyarrow.types as types

        if not isinstance(schema, pa.Schema):
            raise TypeError(
                f"rows={schema!r}: give a pyarrow.Schema, such as pyarrow.schema([('name', pyarrow.int64())])"
            )
        if not len(schema):
            raise TypeError("the schema has no columns: rows of a shuffle have at least one")
        self._pa = pa
        self.schema = schema
        for field in schema:
            kind = field.type
            is_fixed = types.is_primitive(kind) or types.is_boolean(kind) or types.is_decimal(kind)
            is_fixed = is_fixed or (types.is_fixed_size_binary(kind) and kind.byte_width > 0)
            if not is_fixed and not self._is_bytes(kind):
                raise TypeError(
                    f"column {field.name!r} of type {kind}: the service takes numbers, times, booleans, "
                    "decimals, text and binary values, of at least one byte if they have a fixed width; "
                    "write others as opaque records"
                )

    @property
    def note(self) -> bytes:
        head = json.dumps({"kind": "arrow"}).encode()
        return head + b"\n" + bytes(self.schema.serialize())

    def _is_bytes(self, kind: Any) -> bool:
        types = self._pa.types
        return bool(
            types.is_string(kind)
            or types.is_large_string(kind)
            or types.is_binary(kind)
            or types.is_large_binary(kind)
            or types.is_string_view(kind)
            or types.is_binary_view(kind)
        )

    def _large(self, kind: Any) -> Any:
        types = self._pa.types
        tests = (types.is_string, types.is_large_string, types.is_string_view)
        is_text = any(test(kind) for test in tests)
        return self._pa.large_string() if is_text else self._pa.large_binary()

    def _bytes_of(self, kind: Any) -> int:
        return 1 if self._pa.types.is_boolean(kind) else kind.bit_width // 8

    @property
    def _widths(self) -> list[int]:
        widths = []
        for field in self.schema:
            is_bytes = self._is_bytes(field.type)
            # A value of bytes says itself whether it is null.
            widths += [0] if is_bytes else [self._bytes_of(field.type), 1]
        return widths

    @property
    def width(self) -> int:  # type: ignore[override]
        """Bytes of a row; 0: they differ."""
        return 0 if 0 in self._widths else sum(self._widths)

    def checked(self, data: Any) -> Any:
        if not isinstance(data, self._pa.RecordBatch):
            raise TypeError(
                f"rows of type {type(data).__name__}: give a pyarrow.RecordBatch, as "
                "table.to_batches() has them"
            )
        if data.schema != self.schema:
            raise TypeError(
                f"a batch has the schema\n{data.schema}\nand the shuffle has\n{self.schema}"
            )
        if not _has_metadata_of(data.schema, self.schema):
            raise TypeError(
                "the metadata of a batch's schema, or of a field, are not those of the shuffle's schema, "
                "with which rows are read: give the batch as batch.cast(schema), with that schema"
            )
        return data

    def count(self, chunk: Any) -> int:
        return int(chunk.num_rows)

    def joined(self, chunks: Sequence[Any]) -> Any:
        pa = self._pa
        if len(chunks) == 1:
            return chunks[0]
        # Offsets of 32 bits do not reach beyond 2 GiB of text: batches stay apart then.
        large = [
            field.with_type(self._large(field.type)) if self._is_bytes(field.type) else field
            for field in self.schema
        ]
        table = pa.Table.from_batches(chunks, self.schema).cast(pa.schema(large))
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], self.schema)

    def fields(self, data: Any) -> list[Any]:
        fields: list[Any] = []
        for column in data.columns:
            if self._is_bytes(column.type):
                fields.append(self._of_bytes(column.cast(self._large(column.type))))
                continue
            width = self._bytes_of(column.type)
            if self._pa.types.is_boolean(column.type):
                column = column.cast(self._pa.uint8())
            memory = column.buffers()[1]
            values = np.zeros(len(column) * width, np.uint8)
            if memory is not None and len(column):
                start = column.offset * width
                values = np.frombuffer(memory, np.uint8)[start : start + len(column) * width]
            nulls = self._nulls(column)
            if nulls is None:
                is_null = np.zeros(len(column), np.uint8)
            else:
                values, is_null = zeroed(values, width, nulls), nulls
            fields += [values.view(f"V{width}"), is_null]
        return fields

    def _nulls(self, column: Any) -> Any:
        if not column.null_count:
            return None
        return column.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)

    def _of_bytes(self, column: Any) -> Any:
        column = emptied(column)
        _, offsets, data = column.buffers()
        ends = np.zeros(1, np.int64)
        if offsets is not None and offsets.size:
            ends = np.frombuffer(offsets, np.int64)[column.offset :][: len(column) + 1]
        nothing = np.empty(0, np.uint8)
        return ends, nothing if data is None else data, self._nulls(column)

    def assemble(self, pieces: Pieces) -> Any:
        pa = self._pa
        widths = self._widths
        memories = [memory for _, rows, memory in pieces if rows]
        rows, lengths, _ = _core.scan_rows(widths, memories)
        sizes = iter(lengths)
        targets: list[Any] = []
        for width in widths:
            if width:
                targets.append(np.empty(rows, f"V{width}"))
            else:
                offsets, nulls = np.empty(rows + 1, np.int64), np.empty(rows, np.uint8)
                targets.append((offsets, np.empty(next(sizes), np.uint8), nulls))
        _core.join_rows(widths, memories, targets)
        arrays, found = [], iter(targets)
        for field in self.schema:
            kind = field.type
            if self._is_bytes(kind):
                offsets, data, nulls = next(found)
                buffers = [self._validity(nulls), pa.py_buffer(offsets), pa.py_buffer(data)]
                array = pa.Array.from_buffers(self._large(kind), rows, buffers)
            else:
                values, nulls = next(found), next(found).view(np.uint8)
                stored = pa.uint8() if pa.types.is_boolean(kind) else kind
                memory = pa.py_buffer(values.view(np.uint8))
                array = pa.Array.from_buffers(stored, rows, [self._validity(nulls), memory])
            arrays.append(array if array.type == kind else array.cast(kind))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _validity(self, nulls: Any) -> Any:
        if not nulls.any():
            return None
        return self._pa.py_buffer(np.packbits(nulls == 0, bitorder="little"))


def _has_metadata_of(schema: pa.Schema, agreed: pa.Schema) -> bool:
    """Whether a schema has no metadata that the agreed one, which is equal otherwise, has not."""
    pairs = [(schema, agreed), *zip(schema, agreed, strict=True)]
    return all(not one.metadata or one.metadata == other.metadata for one, other in pairs)


def kind_of(rows: Any) -> Kind:
    """Return what ``rows`` means: ``bytes``, an Arrow schema, or a NumPy dtype."""
    if rows is bytes:
        return Opaque()
    if type(rows).__module__.partition(".")[0] == "pyarrow":
        return Batches(rows)
    return Fixed(rows)


def kind_of_note(note: bytes) -> Kind:
    """Return the kind that wrote this note."""
    head, _, rest = note.partition(b"\n")
    said = json.loads(head)
    if said["kind"] == "opaque":
        return Opaque()
    if said["kind"] == "arrow":
        import pyarrow as pa

        return Batches(pa.ipc.read_schema(pa.py_buffer(rest)))
    return Fixed(dtype_of(said))
