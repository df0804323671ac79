"""From objects to frames and back, beyond what is done natively (``crates/python/binding``, ``transfer``)."""

from __future__ import annotations

import pickle
from typing import Any

from treadle.pickling import _by_value, _lossless
from treadle.pickling._lossless import PLAIN

__all__ = ["decode", "encode"]

# crates/python/binding, `encode.rs`
_PICKLE = 0
_MEMORYVIEW = 4
_TENSOR = 5

# Smaller buffers stay in the stream of pickle: a frame of their own costs more than the copy.
_SMALLEST = 512
# `MAX_FRAMES` of crates/transfer/core, but for the stream, and for what messages of a cluster put before it.
_MAX_BUFFERS = (1 << 16) - 16

Encoded = tuple[int, bytes, list[Any]]


def encode(obj: Any, as_array: bool) -> Any:
    """Return ``(kind, first frame, buffers)``, or a NumPy array to send instead.

    ``as_array``: an array of another library is sent so that it can be received into an array, and tensors of
    devices are refused. Otherwise these libraries pickle them.
    """
    if isinstance(obj, memoryview):
        return _encode_memoryview(obj)
    if type(obj).__module__ == "pyarrow.lib":
        obj = _compact(obj)
    elif as_array and hasattr(type(obj), "__dlpack__"):
        from treadle.transfer import _tensors

        viewed = _tensors.encode(obj)
        if viewed is not None:
            array, name = viewed
            return array if name is None else (_TENSOR, name, [array])
    return _pickle(obj, as_array)


def decode(kind: int, frames: list[Any]) -> Any:
    """Return the object that consists of received frames."""
    if kind == _MEMORYVIEW:
        return _lossless.view_of(frames[1], *pickle.loads(frames[0]))
    raise TypeError(
        f"an object of kind {kind} arrived, which this version of Treadle does not know: "
        "run the same version on both sides"
    )


def _is_plain(obj: Any) -> bool:
    """Whether it is a plain value, or a container of some: most small objects are.

    Their pickles are whole, have no buffers, and name nothing of a script.
    """
    kind = type(obj)
    if kind is tuple or kind is list:
        return PLAIN.issuperset(map(type, obj))
    if kind is dict:
        return PLAIN.issuperset(map(type, obj.values())) and PLAIN.issuperset(map(type, obj))
    return kind in PLAIN


def _pickle(obj: Any, cpu_only: bool) -> Encoded:
    if _is_plain(obj):
        return _PICKLE, pickle.dumps(obj, protocol=5), []
    stream, buffers = _by_value.dumps_apart(obj, _SMALLEST, _MAX_BUFFERS, cpu_only=cpu_only)
    return _PICKLE, stream, buffers


def _encode_memoryview(view: memoryview) -> Encoded:
    data = view if view.c_contiguous else view.tobytes()
    return _MEMORYVIEW, pickle.dumps(_lossless.layout_of(view), protocol=5), [data]


def _compact(obj: Any) -> Any:
    """Return Arrow data without what is left of the memory that it is a slice of.

    Pickled, a slice takes the whole memory with it.
    """
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

    if not isinstance(obj, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)):
        return obj
    if obj.get_total_buffer_size() <= 2 * obj.nbytes + (1 << 16):
        return obj
    if isinstance(obj, pa.Array):
        return _compact(pa.record_batch([obj], [""])).column(0)
    if isinstance(obj, pa.ChunkedArray):
        return _compact(pa.table([obj], [""])).column(0)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, obj.schema) as stream:
        stream.write(obj)
    with pa.ipc.open_stream(sink.getvalue()) as reader:
        is_batch = isinstance(obj, pa.RecordBatch)
        compact = reader.read_next_batch() if is_batch else reader.read_all()
    # Extension types that are not registered do not come back from a stream; pickled they do.
    return compact if compact.schema == obj.schema else obj
