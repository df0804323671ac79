"""What the client takes from distributed and Dask.

Only parts of them have types, and those of methods that are overridden are not meant to be relied
on: to the type checker all of this is of any type.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import dask
import distributed.client as _client
import distributed.utils as _utils
from dask._task_spec import convert_legacy_task as _convert_legacy_task
from distributed.core import clean_exception as _clean_exception
from distributed.protocol.pickle import dumps as _dumps
from distributed.scheduler import KilledWorker as _KilledWorker

ClientOfDistributed: Any = _client.Client
AsCompletedOfDistributed: Any = _client.as_completed
KilledWorker: Any = _KilledWorker

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
WorkerStartTimeoutError: Any = _client.WorkerStartTimeoutError  # type: ignore[attr-defined]
# The standard library's since Python 3.11.
TimeoutError: Any = _utils.TimeoutError  # type: ignore[attr-defined] # noqa: A001

clean_exception: Any = _clean_exception
convert_legacy_task: Any = _convert_legacy_task
default_client: Any = _client.default_client
del_global_client: Any = _client._del_global_client
dumps: Any = _dumps
futures_of: Any = _client.futures_of
get_annotations: Any = dask.get_annotations  # type: ignore[attr-defined]
get_global_client: Any = _client._get_global_client
#: What `distributed.client.security-loader` gives for an address, if it is configured.
security_loaded: Any = _client._maybe_call_security_loader
parse_timedelta: Any = _utils._parse_timedelta  # type: ignore[attr-defined]
wait_for: Any = _utils.wait_for
#: What ``distributed.wait`` hands to ``Client.sync``.
wait_of_distributed: Any = _client._wait
