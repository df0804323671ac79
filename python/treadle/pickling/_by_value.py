"""Pickles with all that a script defines in them: other processes do not have it.

``cloudpickle`` pickles functions and classes of ``__main__`` by value. Some other things that a script
makes have a name only, in its pickles: functions that ``functools.lru_cache`` has wrapped, new types,
curried functions. And some hold what nobody can pickle, without need: locks and weak references. These
are made anew where they arrive.
"""

from __future__ import annotations

import functools
import gc
import pickle
import sys
import typing
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any, TypeAlias

import cloudpickle

from treadle import _core
from treadle.pickling import _lossless
from treadle.pickling._lossless import PLAIN
from treadle.pickling._mp_main import SCRIPT, pickle_spawned_by_value
from treadle.pickling._script import reduce_own
from treadle.pickling._tensors import Parts

__all__ = ["ByValue", "Pickler", "dumps", "dumps_apart", "dumps_as_needed"]

_Base: Any = cloudpickle.Pickler
_Reduced: TypeAlias = "tuple[Any, ...] | None"


class Pickler(_Base):  # type: ignore[misc]
    """``cloudpickle.Pickler``, with what else a script defines by value."""

    # Whether what a worker has of a script is the script's own in other processes.
    _names_own = True
    parts: Parts | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        pickle_spawned_by_value()
        super().__init__(*args, **options)

    def dump(self, obj: Any) -> Any:
        with _core.Pickling():
            return super().dump(obj)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        reduced: _Reduced = None
        if (reduce := _REDUCERS.get(kind)) is not None:
            reduced = reduce(obj)
        elif kind.__name__ == "curry" and kind.__module__ in _CURRYING:
            reduced = _reduce_curried(obj)
        elif self._names_own and (kind is FunctionType or issubclass(kind, type)):
            reduced = reduce_own(obj, _dumps_alone)
        elif (whole := _lossless.reduce(obj, self.parts)) is not NotImplemented:
            reduced = whole
        return super().reducer_override(obj) if reduced is None else reduced


class _Alone(Pickler):
    _names_own = False


def dumps(
    value: Any,
    protocol: int = 5,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
    parts: Parts | None = None,
) -> bytes:
    """Return a pickle with what the script defines by value; ``parts``: of the memory of tensors.

    Raises
    ------
    Exception
        Whatever pickling raises.
    """
    try:
        return _lossless.dumps_by(Pickler, value, protocol, buffer_callback, parts)
    except Exception:
        if "distributed" in sys.modules:
            # Buffers that were called back are of no use, and do no harm.
            with suppress(Exception):
                return _lossless.dumps_by(_of_families(), value, protocol, parts=parts)
        raise


def dumps_as_needed(value: Any) -> bytes:
    """Return what ``pickle`` makes of all of a value; by value, if that cannot, or names something of a script.

    What :mod:`cloudpickle` is told to pickle by value is so, too.

    Raises
    ------
    Exception
        Whatever pickling raises.
    """
    if type(value) in PLAIN:
        return pickle.dumps(value, protocol=5)
    return _dumps_as_needed(value)


def dumps_apart(
    value: Any, least: int, most: int, *, cpu_only: bool = False
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Return the pickle of :func:`dumps_as_needed` without its long buffers, and these.

    Parameters
    ----------
    least
        Bytes of the shortest buffer that stays out of the pickle.
    most
        How many stay out at most.
    cpu_only
        Tensors in the memory of a device are refused.

    Raises
    ------
    Exception
        Whatever pickling raises.
    """
    apart = _core.Apart(least, most)
    buffers = apart.buffers
    return _dumps_as_needed(value, apart, Parts(cpu_only, buffers.clear), buffers.clear), buffers


def _dumps_as_needed(
    value: Any,
    buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
    parts: Parts | None = None,
    again: Callable[[], None] = lambda: None,
) -> bytes:
    with suppress(Exception), _core.Pickling():
        pickled = _lossless.dumps(value, 5, buffer_callback, parts)
        if SCRIPT not in pickled and not cloudpickle.list_registry_pickle_by_value():
            return pickled
    again()
    return dumps(value, 5, buffer_callback, parts)


class ByValue:
    """Something that any pickler pickles as :func:`dumps_as_needed` does; unpickled, it is itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (dumps_as_needed(self.value),)


def _dumps_alone(value: Any) -> bytes:
    return _lossless.dumps_by(_Alone, value)


def _of_families() -> Any:
    """Return a pickler that knows objects of ``h5py`` and ``netCDF4``, too, as distributed does."""
    from treadle._compat.distributed import DaskPickler

    class Families(Pickler):
        def reducer_override(self, obj: Any) -> Any:
            reduced = super().reducer_override(obj)
            if reduced is NotImplemented:
                reduced = DaskPickler.reducer_override(self, obj)
            return reduced

    return Families


def _is_of_script(obj: Any) -> bool:
    """Whether other processes do not find an object by its own name, or shall not."""
    name = getattr(obj, "__module__", None)
    if not name or name in ("__main__", "__mp_main__"):
        return True
    registered = cloudpickle.list_registry_pickle_by_value()
    if any(f"{name}.".startswith(f"{module}.") for module in registered):
        return True
    found: Any = sys.modules.get(name)
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not obj


def _reduce_cached(cached: Any) -> _Reduced:
    function = vars(cached).get("__wrapped__")
    parameters = vars(cached).get("cache_parameters")
    # It need not be what is called: `functools.wraps` may have put another one there.
    is_called = any(part is function for part in gc.get_referents(cached))
    if function is None or parameters is None or not is_called or not _is_of_script(cached):
        return None
    more = {
        name: value
        for name, value in vars(cached).items()
        if name not in ("__wrapped__", "cache_parameters")
        and getattr(function, name, cached) is not value
    }
    return _make_cached, (function, *parameters().values()), more or None


def _make_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _reduce_property(cached: functools.cached_property[Any]) -> _Reduced:
    more = {name: value for name, value in vars(cached).items() if name != "lock"}
    return functools.cached_property, (cached.func,), more


def _reduce_weak(mapping: Any) -> _Reduced:
    return type(mapping), (), None, None, iter(list(mapping.items()))


def _reduce_new_type(new: Any) -> _Reduced:
    if not _is_of_script(new):
        return None
    return _make_new_type, (new.__qualname__, new.__module__, new.__supertype__)


def _make_new_type(name: str, module: str, supertype: Any) -> Any:
    make: Any = typing.NewType
    made = make(name, supertype)
    made.__module__ = module
    return made


def _reduce_parameters(parameters: Any) -> _Reduced:
    """Reduce ``typing.ParamSpec`` and ``typing.TypeVarTuple``; cloudpickle does it for ``TypeVar``."""
    found = getattr(sys.modules.get(parameters.__module__), parameters.__name__, None)
    if found is parameters and parameters.__module__ not in ("__main__", "__mp_main__"):
        return None
    options = {
        name: value
        for name in ("bound", "covariant", "contravariant")
        if (value := getattr(parameters, f"__{name}__", None))
    }
    kind: Any = type(parameters)
    return functools.partial(kind, parameters.__name__, **options), ()


#: Where `curry` is from.
_CURRYING = ("toolz.functoolz", "cytoolz.functoolz")


def _reduce_curried(curried: Any) -> _Reduced:
    if not _is_of_script(curried.func):
        return None
    kind, _, args, kwargs, attributes, _ = curried.__reduce__()[1]
    return _make_curried, (kind, curried.func, args, kwargs), dict(attributes)


def _make_curried(kind: Any, function: Any, args: Any, kwargs: Any) -> Any:
    return kind(function, *args, **(kwargs or {}))


_REDUCERS: dict[type, Callable[[Any], _Reduced]] = {
    type(functools.lru_cache(len)): _reduce_cached,
    weakref.WeakKeyDictionary: _reduce_weak,
    weakref.WeakValueDictionary: _reduce_weak,
    typing.NewType: _reduce_new_type,
}
if sys.version_info < (3, 12):
    # It has a lock.
    _REDUCERS[functools.cached_property] = _reduce_property
for _name in ("ParamSpec", "TypeVarTuple"):
    if hasattr(typing, _name):
        _REDUCERS[getattr(typing, _name)] = _reduce_parameters
