"""Tensors of torch in pickles: as buffers that view their memory.

What torch itself makes of a tensor (``_rebuild_tensor_v2``) takes six copies, and all of the storage that a slice is
of. Here a tensor is the bytes between its first and its last element. Tensors of one pickle whose memory overlaps
share it where they arrive: the later one refers to the earlier one, if they have the same bytes. If they have not, the
object is pickled once more, with the whole storages of these.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

from treadle import _core

__all__ = [
    "Parts",
    "dtype_named",
    "imported",
    "is_plain",
    "name_of",
    "refuse_elsewhere",
    "tensor_class",
]

# The second knows which storages are shared. More are needed for objects that pickle other tensors each time.
_MOST_ATTEMPTS = 4

# What dtypes are called in torch; of those whose elements mean more than their bytes, nothing.
_NAMES: dict[Any, str] = {}

# Dispatch keys tell whether a tensor is plain, but for its attributes, in a fifth of the time. These do.
_PLAIN_KEYS: set[int] = set()


def tensor_class() -> Any:
    """Return ``torch.Tensor``; None where torch is not imported, or older than 2.0: its storages have other names."""
    # torch may be about to be imported.
    tensors = getattr(sys.modules.get("torch"), "Tensor", None)
    return tensors if hasattr(tensors, "untyped_storage") else None


def name_of(dtype: Any) -> str:
    """Return what a dtype is called in torch; ``""`` for one that is quantised."""
    name = _NAMES.get(dtype)
    if name is None:
        name = str(dtype).removeprefix("torch.")
        name = _NAMES[dtype] = "" if name.startswith("q") else name
    return name


def is_plain(tensor: Any) -> bool:
    """Whether a tensor is nothing but elements in the CPU's memory, and whether it requires a gradient.

    ``tensor`` is a ``torch.Tensor``, and of no subclass.
    """
    if tensor.__dict__ or tensor._backward_hooks:
        return False
    torch: Any = sys.modules["torch"]
    try:
        keys = torch._C._dispatch_keys(tensor).raw_repr()
    except AttributeError:
        keys = None
    if keys in _PLAIN_KEYS:
        return True
    is_plain = bool(
        tensor.is_cpu
        and tensor.layout is torch.strided
        and name_of(tensor.dtype)
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor._is_zerotensor()
        and not (hasattr(tensor, "has_names") and tensor.has_names())
    )
    if is_plain and keys is not None:
        _PLAIN_KEYS.add(keys)
    return is_plain


class _Part:
    """Bytes that are one buffer of the pickle."""

    __slots__ = ("end", "holder", "is_copy", "owner", "start")

    def __init__(
        self, start: int, end: int, owner: Any, holder: Any = None, is_copy: bool = False
    ) -> None:
        self.start = start
        self.end = end
        self.owner = owner
        #: Which object of the pickle has them.
        self.holder = holder
        self.is_copy = is_copy


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
        self._tensors: Any = None
        # By their first bytes.
        self._parts: dict[int, _Part] = {}
        # What begins where a part begins, and is none.
        self._others: list[_Part] = []
        # Storages that are parts as a whole, in order. Their owners keep them: nobody else gets their memory.
        self._whole: list[_Part] = []
        self._attempts = 0

    def begin(self) -> bool:
        """Nothing is pickled yet. Returns whether :meth:`reduce` has anything to do."""
        self._parts.clear()
        self._others.clear()
        self._attempts += 1
        self._tensors = tensor_class()
        return self._tensors is not None

    def is_to_repeat(self) -> bool:
        """Whether the object has to be pickled once more, as more of it is shared than was known.

        Raises
        ------
        ValueError
            That does not help.
        """
        if not self._parts:
            return False
        overlapping = self._overlapping()
        if not overlapping:
            return False
        if self._attempts >= _MOST_ATTEMPTS:
            raise ValueError(
                "tensors that share memory without sharing it by elements of one size cannot be sent "
                "together: send clones of them"
            )
        self._whole = _whole_storages([part.owner for part in (*overlapping, *self._whole)])
        if self._again is not None:
            self._again()
        return True

    def _overlapping(self) -> list[_Part]:
        found = list(self._others)
        last: _Part | None = None
        for _, part in sorted(self._parts.items()):
            if last is not None and part.start < last.end:
                found += (last, part)
            if last is None or part.end > last.end:
                last = part
        found += [self._parts[other.start] for other in self._others if other.start in self._parts]
        return found

    def reduce(self, obj: Any) -> Any:
        """Return how to pickle a tensor or a storage; ``NotImplemented`` for what torch pickles, or is neither.

        Raises
        ------
        TypeError
            Its memory is that of a device, and this is refused.
        """
        kind = type(obj)
        if kind is self._tensors:
            if is_plain(obj):
                return self._tensor(obj)
        elif not issubclass(kind, self._tensors):
            torch: Any = sys.modules["torch"]
            if kind is torch.UntypedStorage:
                return self._storage(obj, None)
            if kind is torch.storage.TypedStorage:
                return self._storage(obj._untyped_storage, name_of(obj.dtype))
            return NotImplemented
        if self._cpu_only:
            refuse_elsewhere(obj)
        return NotImplemented

    def _tensor(self, tensor: Any) -> Any:
        name, shape, needs_grad = name_of(tensor.dtype), tuple(tensor.shape), tensor.requires_grad
        start, length = tensor.data_ptr(), tensor.nbytes
        if not length:
            return _empty, (name, shape, tensor.stride(), needs_grad)
        is_dense = tensor.is_contiguous()
        if is_dense and start not in self._parts and not self._whole:
            self._parts[start] = _Part(start, start + length, tensor, tensor)
            return _dense, (_buffer(tensor, start, length), name, shape, needs_grad)
        stride, size, span = tensor.stride(), tensor.element_size(), length
        if not is_dense:
            span = size + sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) * size
        # With what lies between its elements it would be larger.
        part = self._part(start, start + span, size, tensor, is_copy=span > length)
        if part.is_copy:
            tensor = tensor.detach().contiguous()
            return _dense, (_buffer(tensor, tensor.data_ptr(), length), name, shape, needs_grad)
        source = self._source(part, tensor)
        return _strided, (source, name, shape, stride, (start - part.start) // size, needs_grad)

    def _storage(self, storage: Any, name: str | None) -> Any:
        length = storage.nbytes()
        if storage.device.type != "cpu" or not length or name == "":
            if self._cpu_only:
                refuse_elsewhere(storage)
            return NotImplemented
        start = storage.data_ptr()
        part = self._part(start, start + length, 1, storage)
        if part.end - part.start > length:
            self._others.append(part)
        return _storage, (self._source(part, storage), name)

    def _source(self, part: _Part, holder: Any) -> Any:
        """Return the object of the pickle that has a part, or, for the first one, its buffer."""
        if part.holder is not None:
            return part.holder
        part.holder = holder
        return _buffer(part.owner, part.start, part.end - part.start)

    def _part(self, start: int, end: int, size: int, owner: Any, is_copy: bool = False) -> _Part:
        """Return the part that has these bytes, of elements of some size."""
        for whole in self._whole:
            if whole.start <= start < whole.end:
                part = self._parts.get(whole.start)
                if part is None:
                    part = self._parts[whole.start] = _Part(whole.start, whole.end, whole.owner)
                if (start - part.start) % size:
                    self._others.append(part)
                return part
        part = self._parts.get(start)
        if part is None:
            part = self._parts[start] = _Part(start, end, owner, is_copy=is_copy)
        elif part.end != end or part.is_copy:
            # The pickle is of no use any more. It goes on, to know what else overlaps.
            part = _Part(start, end, owner)
            self._others.append(part)
        return part


def _buffer(owner: Any, start: int, length: int) -> pickle.PickleBuffer:
    return pickle.PickleBuffer(_core.ForeignMemory(owner, start, length))


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
        raise TypeError(
            f"a {kind} on {obj.device} cannot be sent: send what its method .cpu() returns"
        )


# What pickles have. These names stay: workers of the next release read them.


def _dense(memory: Any, name: str, shape: tuple[int, ...], needs_grad: bool) -> Any:
    torch = sys.modules.get("torch") or imported()
    tensor = torch.frombuffer(memory, dtype=getattr(torch, name, None) or dtype_named(name))
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
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(
            f"a tensor of torch arrived, and this process cannot import torch ({error}): install it, receive "
            "into an array of NumPy (recv_into), or send arrays (tensor.numpy())",
            name="torch",
        ) from error
