"""Arrays of other libraries that are sent alone: as NumPy views their memory, with the name of the library.

So they can be received into an array. Within other objects, tensors of torch are buffers of the pickle
(:mod:`treadle.pickling._tensors`), and arrays of other libraries are what these make of them.
"""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

import numpy as np

from treadle import _core
from treadle.pickling._tensors import (
    dtype_named,
    imported,
    is_plain,
    name_of,
    refuse_elsewhere,
    tensor_class,
)
from treadle.transfer import _dtypes

__all__ = ["encode", "make", "view_of"]

# Device of DLPack: the memory of the CPU.
_CPU = 1
_TORCH = "torch"

View = tuple["np.ndarray[Any, Any]", bytes | None]


def encode(obj: Any) -> View | None:
    """Return the array that views the memory of an array, and the name of its library and type.

    Without a name it arrives as an array of NumPy. None: it is none, or is pickled.
    """
    cls = type(obj)
    tensor = tensor_class()
    if tensor is not None and issubclass(cls, tensor):
        return _of_torch(obj) if cls is tensor and is_plain(obj) else None
    if isinstance(obj, np.ndarray) or not _is_exporter(cls):
        return None
    # A weak type, of jax, is kept by its own pickle alone.
    if obj.__dlpack_device__()[0] != _CPU or getattr(obj, "weak_type", False):
        return None
    try:
        array = np.from_dlpack(obj)
    except (BufferError, RuntimeError, TypeError):
        # NumPy does not have its type.
        return None
    name = _dtypes.name_of(array.dtype)
    library = _library_of(obj)
    if (
        library is None
        or name is None
        or not (array.flags.c_contiguous or array.flags.f_contiguous)
    ):
        return array, None
    return array, _dtypes.of_library(library, name)


def _of_torch(tensor: Any) -> View | None:
    """Return the view of a tensor; None for one that is pickled: its steps or its gradient are kept then."""
    if tensor.requires_grad:
        return None
    is_fortran = (
        tensor.ndim > 1 and not tensor.is_contiguous() and _reversed(tensor).is_contiguous()
    )
    if not is_fortran and not tensor.is_contiguous():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        if sum((length - 1) * step for length, step in steps) < tensor.numel():
            return None
        tensor = tensor.contiguous()
    name = _name_of(tensor)
    return _view(tensor, name, "F" if is_fortran else "C"), name


def _reversed(tensor: Any) -> Any:
    return tensor.permute(*reversed(range(tensor.ndim)))


def _name_of(tensor: Any) -> bytes:
    return _dtypes.of_library(_TORCH, f"{name_of(tensor.dtype)} {tensor.element_size()}".encode())


def _view(tensor: Any, name: bytes, order: Any) -> np.ndarray[Any, Any]:
    shape, dtype = tuple(tensor.shape), _dtypes.dtype_of(name)
    if not tensor.numel():
        return np.empty(shape, dtype)
    memory: Any = _core.ForeignMemory(tensor, tensor.data_ptr(), tensor.numel() * dtype.itemsize)
    return np.ndarray(shape, dtype, memory, order=order)


def make(name: bytes, memory: Any, shape: tuple[int, ...], is_fortran: bool) -> Any:
    """Return the array of the library and type of this name that views ``memory``.

    Raises
    ------
    ImportError
        The library is not here.
    """
    library, of_library = _dtypes.parts_of(name)
    if library != _TORCH:
        array: Any = np.ndarray(
            shape, _dtypes.dtype_of(name), memory, order="F" if is_fortran else "C"
        )
        return _namespace(library).from_dlpack(array)
    dtype = dtype_named(of_library.decode().partition(" ")[0])
    torch, count = imported(), math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    tensor = torch.frombuffer(memory, dtype=dtype, count=count)
    return _reversed(tensor.view(shape[::-1])) if is_fortran else tensor.view(shape)


def view_of(target: Any) -> np.ndarray[Any, Any]:
    """Return an array that views the memory of what shall be received into.

    Raises
    ------
    TypeError
        It has none that NumPy can view.
    ValueError
        Nothing may be written to it.
    """
    cls = type(target)
    tensor = tensor_class()
    if tensor is None or not issubclass(cls, tensor):
        if not _is_exporter(cls):
            raise TypeError(f"recv_into needs an array of NumPy or a tensor, not {cls.__name__}")
        return np.from_dlpack(target)
    refuse_elsewhere(target)
    if target.requires_grad:
        raise ValueError(
            "recv_into was given a tensor that requires a gradient: give tensor.detach()"
        )
    if not is_plain(target):
        raise TypeError("recv_into needs a dense torch.Tensor in the memory of the CPU")
    if target.is_contiguous():
        return _view(target, _name_of(target), "C")
    if _reversed(target).is_contiguous():
        return _view(target, _name_of(target), "F")
    raise ValueError(
        "recv_into needs a tensor that is contiguous in C or Fortran order: receive into a new one, and copy"
    )


def _is_exporter(cls: type) -> bool:
    return hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__")


def _library_of(obj: Any) -> str | None:
    """Return the module that makes an array like this one from another (the array API standard), by its name."""
    namespace: Any = getattr(obj, "__array_namespace__", lambda: None)()
    name = getattr(namespace, "__name__", None)
    is_found = name and sys.modules.get(name) is namespace and hasattr(namespace, "from_dlpack")
    return name if is_found else None


def _namespace(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ImportError(
            f"an array of {library} arrived, which this process cannot import ({error}): install it, receive "
            "into an array of NumPy (recv_into), or send arrays of NumPy",
            name=library,
        ) from error
