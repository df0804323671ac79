"""NumPy arrays in memory that other processes of this host can map instead of copying."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from treadle import _core

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["empty", "empty_like", "is_shared", "shared_arrays", "zeros"]

Shape = SupportsIndex | Sequence[SupportsIndex]
Order = Literal["C", "F"]

# Below, an array is cheaper to copy than to map: crates/common/memory, `SMALLEST`.
_SMALLEST = 64 << 10


@contextmanager
def shared_arrays(threshold: int = 1 << 20) -> Iterator[None]:
    """Let NumPy create its arrays in shared memory inside a ``with`` block.

    Sent to another process of this host, such an array is mapped there and not copied; whoever
    writes to it later, there or here, writes to a copy of the page. Everything else about it is as
    usual, and it may outlive the block.

    It applies to the current context (:mod:`contextvars`): to this thread, to tasks of
    :mod:`asyncio` that are created inside, and to the tasks of a graph that is computed inside.
    Blocks can be nested.

    Each array that is shared has its pages in place from the start, and takes a descriptor. Where
    memory is short, or a quarter of the open files that are allowed are arrays, further ones are
    private as usual; so are those that grow beyond the threshold by ``resize``. On systems other
    than Linux all are.

    Parameters
    ----------
    threshold
        Arrays of at least so many bytes are shared; 65,536 at least.

    Raises
    ------
    ValueError
        The threshold is too low.
    ImportError
        NumPy is missing, or older than 1.22.

    Examples
    --------
    >>> with treadle.shared_arrays():  # doctest: +SKIP
    ...     x = np.random.random(10_000_000) * 2
    """
    previous = share_arrays(threshold)
    try:
        yield
    finally:
        _core.set_memory_handler(previous)


def share_arrays(threshold: int = 1 << 20) -> object:
    """Do what :func:`shared_arrays` does from now on; returns NumPy's memory handler until now."""
    return _core.set_memory_handler(_handler(threshold))


def empty(shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C") -> npt.NDArray[Any]:
    """:func:`numpy.empty` in shared memory, from 64 KiB on. See :func:`shared_arrays`."""
    with shared_arrays(_SMALLEST):
        import numpy as np

        return np.empty(shape, dtype, order)


def zeros(shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C") -> npt.NDArray[Any]:
    """:func:`numpy.zeros` in shared memory, from 64 KiB on. See :func:`shared_arrays`."""
    with shared_arrays(_SMALLEST):
        import numpy as np

        return np.zeros(shape, dtype, order)


def empty_like(prototype: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """:func:`numpy.empty_like` in shared memory, from 64 KiB on. See :func:`shared_arrays`."""
    with shared_arrays(_SMALLEST):
        import numpy as np

        return np.empty_like(prototype, dtype)


def is_shared(array: np.ndarray[Any, Any]) -> bool:
    """Whether all of the array's elements are in shared memory of this process."""
    if array.size == 0:
        return False
    start: int = array.__array_interface__["data"][0]
    low = high = 0
    for length, stride in zip(array.shape, array.strides, strict=True):
        reach = (length - 1) * stride
        low += min(reach, 0)
        high += max(reach, 0)
    return _core.is_shared_memory(start + low, high - low + array.itemsize)


@lru_cache(maxsize=8)
def _handler(threshold: int) -> object:
    return _core.shared_memory_handler(threshold)
