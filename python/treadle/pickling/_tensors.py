"""Tensors of torch in pickles: as buffers that view their memory.

What torch itself makes of a tensor (``_rebuild_tensor_v2``) takes six copies, and all of the storage that a slice is
of. Here a tensor is the bytes between its first and its last element. Tensors of one pickle whose memory overlaps
share it where they arrive: the later one refers to the earlier one, if that has all of it. If it has not, the object is
pickled once more, with the whole storages of these.
"""

from __future__ import annotations

import pickle
import sys
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from treadle import _core

__all__ = ["Parts", "dtype_named", "imported", "is_plain", "name_of", "refuse_elsewhere"]

# The second knows which storages are shared. More are needed for objects that pickle other tensors each time.
_MOST_ATTEMPTS = 4

_NAMES: dict[Any, str] = {}


def name_of(dtype: Any) -> str:
    """Return what a dtype is called in torch."""
    name = _NAMES.get(dtype)
    if name is None:
        name = _NAMES[dtype] = str(dtype).removeprefix("torch.")
    return name


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is nothing but elements in the CPU's memory, and whether it requires a gradient.

    ``tensor`` is a ``torch.Tensor``, and of no subclass.
    """
    return bool(
        tensor.is_cpu
        and tensor.layout is sys.modules["torch"].strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor._backward_hooks
        and not tensor.__dict__
        and not tensor._is_zerotensor()
        and (getattr(tensor, "has_names", None) is None or not tensor.has_names())
    )


class _Part:
    """Bytes that are one buffer of the pickle."""

    __slots__ = ("end", "holder", "is_copy", "owner", "start")

    def __init__(self, start: int, end: int, owner: Any, is_copy: bool = False) -> None:
        self.start = start
        self.end = end
        self.owner = owner
        self.is_copy = is_copy
        #: Which object of the pickle has them.
        self.holder: Any = None

    @property
    def buffer(self) -> pickle.PickleBuffer:
        return _buffer(self.owner, self.start, self.end)


class Parts:
    """The memory of the tensors that are in one pickle.

    Parameters
    ----------
    cpu_only
        Tensors of devices are refused. Otherwise torch's own way is taken.
    again
        Called before the object is pickled once more: what the first attempt has yielded is of no use.
    """

    def __init__(self, cpu_only: bool = False, again: Callable[[], None] | None = None) -> None:
        self._cpu_only = cpu_only
        self._again = again
        # Disjoint, in order.
        self._parts: list[_Part] = []
        self._starts: list[int] = []
        # Whole storages, which are parts as soon as something in them comes. Their owners keep them: nobody else
        # gets their memory meanwhile.
        self._whole: list[_Part] = []
        self._overlapping: list[Any] = []
        self._attempts = 1

    def begin(self) -> None:
        """Nothing is pickled yet."""
        self._parts.clear()
        self._starts.clear()
        self._overlapping.clear()

    def is_to_repeat(self) -> bool:
        """Whether the object has to be pickled once more, as more of it is shared than was known.

        Raises
        ------
        ValueError
            That does not help.
        """
        if not self._overlapping:
            return False
        if self._attempts == _MOST_ATTEMPTS:
            raise ValueError(
                "tensors that share memory without sharing it by elements of one size cannot be sent "
                "together: send clones of them"
            )
        self._attempts += 1
        self._whole = _whole_storages([*self._overlapping, *(part.owner for part in self._whole)])
        if self._again is not None:
            self._again()
        return True

    def reduce(self, obj: Any) -> Any:
        """Return how to pickle a tensor or a storage; ``NotImplemented`` for what torch pickles, or is neither.

        Raises
        ------
        TypeError
            Its memory is that of a device, and this is refused.
        """
        torch: Any = sys.modules.get("torch")
        of_tensors = getattr(torch, "Tensor", None)
        # torch may be about to be imported. Before 2.0, its storages have other names.
        if not hasattr(of_tensors, "untyped_storage"):
            return NotImplemented
        kind = type(obj)
        if kind is of_tensors:
            if is_plain(obj):
                return self._tensor(obj)
        elif kind is torch.UntypedStorage:
            return self._storage(obj, None)
        elif kind is torch.storage.TypedStorage:
            return self._storage(obj._untyped_storage, name_of(obj.dtype))
        elif not issubclass(kind, of_tensors):
            return NotImplemented
        self._check_place(obj)
        return NotImplemented

    def _check_place(self, obj: Any) -> None:
        if self._cpu_only:
            refuse_elsewhere(obj)

    def _tensor(self, tensor: Any) -> Any:
        shape, stride = tuple(tensor.shape), tensor.stride()
        count, size = tensor.numel(), tensor.element_size()
        name, needs_grad = name_of(tensor.dtype), tensor.requires_grad
        if not count:
            return _empty, (name, shape, stride, needs_grad)
        is_dense = tensor.is_contiguous()
        span = count
        if not is_dense:
            span = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        start = tensor.data_ptr()
        # With what lies between its elements it would be larger.
        part = self._part(start, start + span * size, size, tensor, is_copy=span > count)
        if part.is_copy:
            tensor = tensor.detach().contiguous()
            start = tensor.data_ptr()
            return _dense, (_buffer(tensor, start, start + count * size), name, shape, needs_grad)
        source = part.holder
        if source is None:
            part.holder = tensor
            source = part.buffer
            if is_dense and part.end - part.start == count * size:
                return _dense, (source, name, shape, needs_grad)
        return _strided, (source, name, shape, stride, (start - part.start) // size, needs_grad)

    def _storage(self, storage: Any, name: str | None) -> Any:
        length = storage.nbytes()
        if storage.device.type != "cpu" or not length:
            self._check_place(storage)
            return NotImplemented
        start = storage.data_ptr()
        part = self._part(start, start + length, 1, storage)
        if part.end - part.start > length:
            self._overlapping.append(storage)
        source = part.holder
        if source is None:
            part.holder = storage
            source = part.buffer
        return _storage, (source, name)

    def _part(self, start: int, end: int, size: int, owner: Any, is_copy: bool = False) -> _Part:
        """Return the part that has these bytes, of elements of some size."""
        at = bisect_right(self._starts, start)
        last = self._parts[at - 1] if at else None
        if last is not None and start < last.end:
            if end <= last.end and not last.is_copy and (start - last.start) % size == 0:
                return last
        elif at == len(self._starts) or end <= self._starts[at]:
            part = _Part(start, end, owner, is_copy)
            for whole in self._whole:
                if whole.start <= start < whole.end:
                    part = _Part(whole.start, whole.end, whole.owner)
                    if (start - part.start) % size:
                        self._overlapping.append(owner)
            at = bisect_right(self._starts, part.start)
            self._parts.insert(at, part)
            self._starts.insert(at, part.start)
            return part
        # The pickle is of no use any more. It goes on, to know what else overlaps.
        self._overlapping.append(owner)
        self._overlapping += (other.owner for other in self._parts if other.start < end and start < other.end)
        return _Part(start, end, owner)


def _buffer(owner: Any, start: int, end: int) -> pickle.PickleBuffer:
    return pickle.PickleBuffer(_core.ForeignMemory(owner, start, end - start))


def _whole_storages(owners: list[Any]) -> list[_Part]:
    """Return the storages of owners of parts; those that overlap are one."""
    found: list[_Part] = []
    storages: list[Any] = []
    for owner in owners:
        if isinstance(owner, list):
            storages += owner
        else:
            storages.append(owner.untyped_storage() if hasattr(owner, "numel") else owner)
    for storage in sorted(storages, key=lambda storage: storage.data_ptr()):
        start = storage.data_ptr()
        end = start + storage.nbytes()
        if found and start < found[-1].end:
            found[-1].end = max(end, found[-1].end)
            found[-1].owner.append(storage)
        else:
            found.append(_Part(start, end, [storage]))
    return found


def refuse_elsewhere(obj: Any) -> None:
    """Refuse a tensor or storage whose elements are in the memory of a device.

    Raises
    ------
    TypeError
        They are.
    """
    if obj.device.type not in ("cpu", "meta"):
        kind = type(obj).__name__
        raise TypeError(f"a {kind} on {obj.device} cannot be sent: send what its method .cpu() returns")


# What pickles have. These names stay: workers of the next release read them.


def _dense(memory: Any, name: str, shape: tuple[int, ...], needs_grad: bool) -> Any:
    dtype = dtype_named(name)
    tensor = sys.modules["torch"].frombuffer(memory, dtype=dtype)
    if len(shape) != 1:
        tensor = tensor.view(shape)
    return tensor.requires_grad_() if needs_grad else tensor


def _strided(
    source: Any,
    name: str,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    needs_grad: bool,
) -> Any:
    dtype = dtype_named(name)
    tensor = sys.modules["torch"].empty(0, dtype=dtype)
    tensor.set_(_untyped(source), offset, shape, stride)
    return tensor.requires_grad_() if needs_grad else tensor


def _empty(name: str, shape: tuple[int, ...], stride: tuple[int, ...], needs_grad: bool) -> Any:
    dtype = dtype_named(name)
    tensor = sys.modules["torch"].empty_strided(shape, stride, dtype=dtype)
    return tensor.requires_grad_() if needs_grad else tensor


def _storage(source: Any, name: str | None) -> Any:
    storage = _untyped(source)
    if name is None:
        return storage
    kind = sys.modules["torch"].storage.TypedStorage
    return kind(wrap_storage=storage, dtype=dtype_named(name), _internal=True)


def _untyped(source: Any) -> Any:
    """Return the storage of a tensor, of another storage, or in a buffer."""
    torch = imported()
    if isinstance(source, torch.Tensor):
        return source.untyped_storage()
    if isinstance(source, torch.storage.TypedStorage):
        return source._untyped_storage
    if isinstance(source, torch.UntypedStorage):
        return source
    return torch.frombuffer(source, dtype=torch.uint8).untyped_storage()


def dtype_named(name: str) -> Any:
    """Return the dtype of torch with this name.

    Raises
    ------
    ImportError
        There is no torch here, or it has no such dtype.
    """
    torch = imported()
    try:
        return getattr(torch, name)
    except AttributeError:
        raise ImportError(
            f"a tensor of torch.{name} arrived, which torch {torch.__version__} of this process does not have: "
            "use the release of the sender",
            name="torch",
        ) from None


def imported() -> Any:
    """Import torch, for a tensor that has arrived.

    Raises
    ------
    ImportError
        It cannot be.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        return torch
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ImportError(
            f"a tensor of torch arrived, and this process cannot import torch ({error}): install it, receive "
            "into an array of NumPy (recv_into), or send arrays (tensor.numpy())",
            name="torch",
        ) from error
    return torch
