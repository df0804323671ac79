"""What distributed has and Treadle does not serve."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

__all__ = ["UnservedError", "is_public", "not_followed"]


class UnservedError(NotImplementedError, AttributeError):
    """An attribute of distributed's that is not served; to ``hasattr`` it is not there."""


def not_followed(what: str) -> UnservedError:
    """Return the error of what is known only while the steps of tasks are followed."""
    return UnservedError(
        f"{what} is kept only while steps of tasks are followed: set treadle.scheduler.steps in Dask's "
        "configuration where the scheduler starts, use distributed.span, or register a SchedulerPlugin "
        "with transition"
    )


def is_public(kind: type, name: str) -> bool:
    """Whether objects of a class of distributed have a public attribute of this name."""
    return not name.startswith("_") and name in _names_of(kind)


@lru_cache
def _names_of(kind: type) -> frozenset[str]:
    """Return the names of attributes: of the class, and those that its methods set."""
    names = set(dir(kind))
    for one in kind.__mro__:
        if not one.__module__.startswith("distributed"):
            continue
        names.update(vars(one).get("__annotations__", ()))
        for method in vars(one).values():
            if isinstance(method, FunctionType):
                names.update(_set_by(method.__code__))
    return frozenset(names)


def _set_by(code: CodeType) -> Iterator[str]:
    """Yield the names of the attributes that a method sets of its object."""
    if not code.co_varnames:
        return
    self = code.co_varnames[0]
    before: Any = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_ATTR":
            # From Python 3.13 on, one instruction may load two variables.
            loaded = before[-1] if isinstance(before, tuple) and before else before
            if loaded == self:
                yield instruction.argval
        before = instruction.argval
