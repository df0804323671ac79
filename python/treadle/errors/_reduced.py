"""How an exception is pickled, with what it was raised from.

One whose class says how (``__reduce__``, ``copyreg``) is made as it says. Any other is made without its
class's own ``__init__`` and ``__new__``, since what they take is not known, and gets what the original
has: arguments, attributes, slots, and the fields of Python's own classes (``SyntaxError.text``). What may
refer to the exception again comes after it is made, so that such circles can be pickled.
"""

from __future__ import annotations

import builtins
import copyreg
from collections.abc import Callable
from functools import lru_cache
from types import TracebackType
from typing import Any, NamedTuple

__all__ = ["Careful", "bare", "reduce", "remade", "traceback_of"]

# Of a class that was made by a ``class`` statement or a call.
_MADE = 1 << 9

# Before Python 3.11 there are none.
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())


def traceback_of(exception: BaseException) -> TracebackType | None:
    """Return the traceback; a class may have an attribute of this name."""
    base: Any = BaseException
    found: TracebackType | None = base.__traceback__.__get__(exception)
    return found


def reduce(exception: BaseException, careful: Careful | None = None) -> tuple[Any, ...]:
    """Return how to make it again, as ``__reduce_ex__`` does; ``careful``: without what cannot be pickled."""
    base: Any = BaseException
    links = (
        base.__cause__.__get__(exception),
        traceback_of(exception),
        base.__context__.__get__(exception),
        base.__suppress_context__.__get__(exception),
    )
    if careful is not None:
        links = careful.links(links)
    reducer = _reducer_of(type(exception))
    if reducer is not None and (careful is None or careful.takes(exception)):
        reduced = reducer(exception)
        if not isinstance(reduced, tuple):
            raise TypeError(f"what {type(exception)} is reduced to is no tuple")
        function, arguments, state, items, pairs, setter = (*reduced, *(None,) * 4)[:6]
        return function, arguments, (state, setter, links), items, pairs, _finish_as_said
    return _reduce_natively(exception, careful, links)


def bare(exception: BaseException, text: Callable[[Any], str]) -> tuple[Any, ...]:
    """Return how to make one of its class with its arguments as text, and nothing else."""
    args: Any = exception.args
    args = tuple(arg if isinstance(arg, str) else text(arg) for arg in args)
    return _bare(exception, args, text)


def remade(
    exception: BaseException, args: tuple[Any, ...], text: Callable[[Any], str]
) -> BaseException:
    """Return one of its class with other arguments, and nothing else."""
    make, new, state, _, _, finish = _bare(exception, args, text)
    made: BaseException = make(*new)
    finish(made, state)
    return made


def _bare(
    exception: BaseException, args: tuple[Any, ...], text: Callable[[Any], str]
) -> tuple[Any, ...]:
    new: tuple[Any, ...] = ()
    if isinstance(exception, _GROUP):
        new = (exception.message, [Exception(text(one)) for one in exception.exceptions])
    return _make, (type(exception), new), (args, {}, {}, {}, None, None), None, None, _finish


class Careful:
    """Finds out what can be pickled, and unpickled again.

    Parameters
    ----------
    dumps
        Pickles a value, with exceptions in it reduced carefully; raises whatever it may.
    loads
        Unpickles it.
    text
        Describes a value that cannot be pickled.
    """

    def __init__(
        self,
        dumps: Callable[[Any, Careful], bytes],
        loads: Callable[[bytes], Any],
        text: Callable[[Any], str],
    ) -> None:
        self._dumps = dumps
        self._loads = loads
        self._text = text
        # By identity; the values are kept, so that identities are not used again.
        self._known: dict[int, tuple[Any, bool]] = {}
        self._whole: dict[int, tuple[Any, bool]] = {}
        self._described: dict[int, tuple[Any, Exception]] = {}

    def travels(self, value: Any) -> bool:
        """Whether a value can be pickled; while that is being found out: yes."""
        return self._found(self._known, value)

    def takes(self, exception: BaseException) -> bool:
        """Whether it can be made as its class says."""
        return self._found(self._whole, exception)

    def _found(self, known: dict[int, tuple[Any, bool]], value: Any) -> bool:
        if (found := known.get(id(value))) is not None:
            return found[1]
        known[id(value)] = value, True
        try:
            self._loads(self._dumps(value, self))
        except BaseException:
            # Methods of its class are called, which may raise anything.
            known[id(value)] = value, False
        return known[id(value)][1]

    def kept(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return those that can be pickled."""
        return {name: value for name, value in values.items() if self.travels(value)}

    def described(self, value: Any) -> Any:
        """Return a value, or what it says if it cannot be pickled."""
        return value if self.travels(value) else self._text(value)

    def links(self, links: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what an exception was raised from; what cannot be pickled at all is described."""
        return tuple(
            self._describe(one) if isinstance(one, BaseException) and not self.travels(one) else one
            for one in links
        )

    def _describe(self, exception: BaseException) -> Exception:
        found = self._described.get(id(exception))
        if found is None:
            found = exception, Exception(self._text(exception))
            self._described[id(exception)] = found
        return found[1]


def _reducer_of(kind: Any) -> Callable[[Any], Any] | None:
    """Return how a class wants its exceptions to be reduced; None: as Python's own are."""
    listed = copyreg.dispatch_table.get(kind)
    # distributed has tblib list all classes.
    if listed is not None and not listed.__module__.startswith("tblib."):
        return listed
    return _about(kind).reducer


class _About(NamedTuple):
    """What is the same for all exceptions of a class."""

    #: The class that is not written in Python which it is derived from.
    native: Any
    #: The descriptors of native fields.
    fields: dict[str, Any]
    slots: tuple[str, ...]
    #: How it says that its exceptions are reduced, if it does.
    reducer: Callable[[Any], Any] | None
    sets_state: bool


@lru_cache(256)
def _about(kind: type[BaseException]) -> _About:
    native = next(
        one for one in kind.__mro__ if issubclass(one, BaseException) and not one.__flags__ & _MADE
    )
    reducer: Callable[[Any], Any] | None = None
    if _is_written(kind, "__reduce_ex__"):
        reducer = _reduce_ex
    elif _is_written(kind, "__reduce__"):
        reducer = _reduce_plainly
    slots = tuple(copyreg._slotnames(kind))  # type: ignore[attr-defined]
    return _About(native, _fields(native), slots, reducer, _is_written(kind, "__setstate__"))


def _is_written(kind: type, name: str) -> bool:
    """Whether a method of a class is written in Python."""
    definer = next(one for one in kind.__mro__ if name in vars(one))
    return bool(definer.__flags__ & _MADE)


def _reduce_ex(exception: BaseException) -> Any:
    return exception.__reduce_ex__(5)


def _reduce_plainly(exception: BaseException) -> Any:
    return exception.__reduce__()


def _fields(native: type[BaseException]) -> dict[str, Any]:
    """Return the descriptors of what a class has in native fields of its own."""
    found: dict[str, Any] = {}
    if issubclass(native, _GROUP):
        # It is made with them.
        return found
    for one in native.__mro__[: native.__mro__.index(BaseException)]:
        for name, descriptor in vars(one).items():
            if hasattr(descriptor, "__set__") and not name.startswith("__"):
                found.setdefault(name, descriptor)
    if issubclass(native, AttributeError):
        # Python does not pickle what has no such attribute either: it may be anything.
        found.pop("obj", None)
    return found


def _reduce_natively(
    exception: BaseException, careful: Careful | None, links: tuple[Any, ...]
) -> tuple[Any, ...]:
    kind: Any = type(exception)
    about = _about(kind)
    args = exception.args
    new: tuple[Any, ...] = ()
    if isinstance(exception, _GROUP):
        new = exception.message, list(exception.exceptions)
    elif isinstance(exception, OSError):
        # It reads what it is made with, and sets its fields only then.
        new = OSError.__reduce__(exception)[1]  # type: ignore[assignment]
    attributes = dict(vars(exception))
    fields = {}
    for name, descriptor in about.fields.items():
        try:
            value = descriptor.__get__(exception)
        except AttributeError:
            continue
        if value is not None:
            fields[name] = value
    slots = {}
    for name in about.slots:
        try:
            slots[name] = object.__getattribute__(exception, name)
        except AttributeError:
            continue
    if careful is not None:
        args = tuple(map(careful.described, args))
        attributes, fields, slots = map(careful.kept, (attributes, fields, slots))
        if isinstance(exception, _GROUP):
            new = new[0], list(careful.links(tuple(new[1])))
        else:
            new = tuple(map(careful.described, new))
    # By pickle, `__setstate__` is given these, and not called without.
    given = None
    if attributes and about.sets_state:
        given = attributes
    state = args, fields, attributes, slots, given, links
    return _make, (kind, new), state, None, None, _finish


def _make(kind: Any, new: tuple[Any, ...]) -> BaseException:
    made: BaseException = _about(kind).native.__new__(kind, *new)
    return made


def _finish(made: BaseException, state: tuple[Any, ...]) -> None:
    args, fields, attributes, slots, given, links = state
    kind: Any = type(made)
    descriptors = _about(kind).fields
    for name, value in fields.items():
        try:
            descriptors[name].__set__(made, value)
        except (AttributeError, TypeError):
            # It cannot be written to: it was made with it.
            continue
    # Not as attributes, which the class may forbid to set.
    base: Any = BaseException
    base.args.__set__(made, args)
    for name, value in slots.items():
        object.__setattr__(made, name, value)
    if given is None or not _has_set(made, given):
        vars(made).update(attributes)
    _link(made, links)


def _has_set(made: Any, given: dict[str, Any]) -> bool:
    try:
        made.__setstate__(given)
    except Exception:
        # It misses what could not be pickled.
        return False
    return True


def _finish_as_said(made: Any, state: tuple[Any, ...]) -> None:
    given, setter, links = state
    if setter is not None:
        setter(made, given)
    elif given is not None:
        made.__setstate__(given)
    _link(made, links)


def _link(made: BaseException, links: tuple[Any, ...] | None) -> None:
    if links is None:
        return
    base: Any = BaseException
    cause, traceback, context, suppressed = links
    base.__cause__.__set__(made, cause)
    base.__traceback__.__set__(made, traceback)
    base.__context__.__set__(made, context)
    base.__suppress_context__.__set__(made, suppressed)
