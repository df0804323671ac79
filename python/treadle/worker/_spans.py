"""A function that runs in the span of ``distributed.span`` in which it was submitted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import dask

__all__ = ["in_span"]


def in_span(function: Callable[..., Any], span: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function that calls another with ``dask.get_annotations()["span"]``.

    What it submits in turn belongs to the same span. Coroutine functions and classes are returned as
    they are.
    """
    if isinstance(function, type) or inspect.iscoroutinefunction(function):
        return function
    return _InSpan(function, span)


class _InSpan:
    __slots__ = ("__wrapped__", "span")

    def __init__(self, function: Callable[..., Any], span: Mapping[str, Any]) -> None:
        self.__wrapped__ = function
        self.span = span

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with dask.annotate(span=self.span):  # type: ignore[attr-defined]
            return self.__wrapped__(*args, **kwargs)

    @property
    def __name__(self) -> str:
        return getattr(self.__wrapped__, "__name__", type(self.__wrapped__).__name__)
