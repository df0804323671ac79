"""What the client takes from distributed and Dask.

Only parts of them have types, and those of methods that are overridden are not meant to be relied
on: to the type checker all of this is of any type.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import dask
import distributed.client as _client
import distributed.utils as _utils

ClientOfDistributed: Any = _client.Client
AsCompletedOfDistributed: Any = _client.as_completed

if TYPE_CHECKING:
    # What instances have beyond what their subclasses here define.
    class FutureOfDistributed:
        __slots__ = ("key",)
        key: Hashable
        _cb_executor: ThreadPoolExecutor | None
        _cb_executor_pid: int | None
        _counter: Iterator[int]
        _state: Any
        _uid: str

        @property
        def status(self) -> str | None: ...
        async def _exception(self) -> Any: ...
        async def _traceback(self) -> Any: ...
        def _verify_initialized(self) -> None: ...

    class FutureStateOfDistributed:
        __slots__ = ("key", "status", "type")
        key: Hashable
        status: str
        type: Any
else:
    FutureOfDistributed = _client.Future
    FutureStateOfDistributed = _client.FutureState

CancelledFuturesGroup: Any = _client.CancelledFuturesGroup
ClosedClientError: Any = _client.ClosedClientError
FutureCancelledError: Any = _client.FutureCancelledError
FuturesCancelledError: Any = _client.FuturesCancelledError
# The standard library's since Python 3.11.
TimeoutError: Any = _utils.TimeoutError  # type: ignore[attr-defined] # noqa: A001

default_client: Any = _client.default_client
futures_of: Any = _client.futures_of
get_annotations: Any = dask.get_annotations  # type: ignore[attr-defined]
wait_for: Any = _utils.wait_for

_Method = TypeVar("_Method", bound=Callable[..., Any])


def documented(method: _Method) -> _Method:
    """Add what distributed says of the parameters of a client's method to what is said here."""
    theirs = inspect.cleandoc(getattr(ClientOfDistributed, method.__name__).__doc__ or "")
    _, heading, rest = theirs.partition("Parameters\n---")
    method.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\n{heading}{rest}"
    return method
