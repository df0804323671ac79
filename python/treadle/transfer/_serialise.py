"""From objects to frames and back, beyond what is done natively (``crates/python``, ``transfer``)."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import cloudpickle

from treadle._spawned import SCRIPT, pickle_spawned_by_value

__all__ = ["decode", "encode"]

# crates/python, `encode.rs`
_PICKLE = 0
_MEMORYVIEW = 4

# Smaller buffers stay in the stream of pickle: a frame of their own costs more than the copy.
_SMALLEST = 512
# `MAX_FRAMES` of crates/transfer, but for the stream, and for what messages of a cluster put before it.
_MAX_BUFFERS = (1 << 16) - 16
# Device of DLPack: the memory of the CPU.
_CPU = 1

Encoded = tuple[int, bytes, list[Any]]


def encode(obj: Any, as_array: bool) -> Any:
    """Return ``(kind, first frame, buffers)``, or a NumPy array to send instead.

    ``as_array``: a tensor of another library is sent as an array. It stays what it is otherwise.
    """
    if isinstance(obj, memoryview):
        return _encode_memoryview(obj)
    if type(obj).__module__ == "pyarrow.lib":
        obj = _compact(obj)
    elif as_array and _is_foreign_tensor(obj):
        import numpy as np

        return np.from_dlpack(obj)
    return _pickle(obj)


def decode(kind: int, frames: list[Any]) -> Any:
    """Return the object that consists of received frames."""
    if kind == _MEMORYVIEW:
        layout, shape = pickle.loads(frames[0])
        view = memoryview(frames[1])
        return view.cast(layout, shape) if view.nbytes else view
    raise TypeError(
        f"an object of kind {kind} arrived, which this version of Treadle does not know: "
        "run the same version on both sides"
    )


def _pickle(obj: Any) -> Encoded:
    buffers: list[pickle.PickleBuffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Whether the buffer goes into the stream."""
        if len(buffers) >= _MAX_BUFFERS:
            return True
        with memoryview(buffer) as view:
            if view.nbytes < _SMALLEST or not view.contiguous:
                return True
        buffers.append(buffer)
        return False

    try:
        stream = pickle.dumps(obj, protocol=5, buffer_callback=keep)
        by_value = SCRIPT in stream
    except (AttributeError, pickle.PicklingError, TypeError):
        # Lambdas, local classes, modules, …
        by_value = True
    if by_value:
        # What is defined in this process's script does not exist in the other's.
        buffers.clear()
        pickle_spawned_by_value()
        stream = cloudpickle.dumps(obj, protocol=5, buffer_callback=keep)
    return _PICKLE, stream, buffers


def _encode_memoryview(view: memoryview) -> Encoded:
    shape = list(view.shape or ())
    layout = view.format
    if len(layout) != 1 or 0 in shape:
        # Elements that `cast` does not know become bytes.
        layout, shape = "B", [view.nbytes]
    data = view if view.c_contiguous else view.tobytes()
    return _MEMORYVIEW, pickle.dumps((layout, shape), protocol=5), [data]


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


def _is_foreign_tensor(obj: Any) -> bool:
    """Whether the object is a tensor in the CPU's memory, and not NumPy's."""
    cls = type(obj)
    if not hasattr(cls, "__dlpack__") or not hasattr(cls, "__dlpack_device__"):
        return False
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(obj, numpy.ndarray):
        return False
    return bool(obj.__dlpack_device__()[0] == _CPU)
