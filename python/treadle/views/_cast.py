"""A cast that was sent: what has arrived of it, and its messages, which are made when asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import ipyparallel
from ipyparallel import AsyncResult, error
from ipyparallel.client.asyncresult import finished_tracker
from ipyparallel.client.futures import MessageFuture

from treadle.views._arrivals import (
    Times,
    finish,
    is_nothing,
    lose,
    put_out,
    refuse,
    result_of,
    size_of,
    succeeded,
)

if TYPE_CHECKING:
    from treadle.views._engines import Engines

__all__ = ["Cast", "CastResult", "Names"]


class _Arrival(NamedTuple):
    """The last that comes of an engine."""

    kind: str
    frames: Sequence[Any]
    received: datetime


class Names(Sequence[str]):
    """The ids of a cast's messages, one for each engine."""

    def __init__(self, prefix: str, engines: Sequence[int]) -> None:
        self._prefix = prefix
        self._engines = engines

    def of(self, engine: int) -> str:
        """Return the id of the message to an engine."""
        return f"{self._prefix}{engine}"

    def __len__(self) -> int:
        return len(self._engines)

    def __iter__(self) -> Iterator[str]:
        return map(self.of, self._engines)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return list(self)[index]


class Cast:
    """What was sent to engines in one go.

    ipyparallel has a message for each engine, with futures and metadata. Here these are made for
    those who ask; until then an engine costs an entry in a dictionary.
    """

    def __init__(
        self,
        client: Engines,
        number: int,
        engines: Sequence[int],
        request: str,
        label: Any,
        submitted: datetime,
    ) -> None:
        self._client = client
        self.number = number
        self.engines = list(engines)
        self.request = request
        self._label = label
        self._submitted = submitted
        #: The ids of its messages.
        self.names = Names(f"{client._prefix}_{number}_", self.engines)
        self._lock = threading.RLock()
        self._arrivals: dict[int, _Arrival] = {}
        self._times: dict[int, Times | None] = {}
        self._messages: dict[int, MessageFuture] = {}
        self._results: dict[int, Any] = {}
        # Engines whose result is nothing: what they sent together is looked at once.
        self._without: set[int] = set()
        #: Bytes of the results.
        self.size = 0
        self._listeners: list[Callable[[], None]] = []

    def name(self, engine: int) -> str:
        """Return the id of the message to an engine."""
        return self.names.of(engine)

    def awaits(self, name: object) -> bool:
        """Whether the message of this id is one of its own, and not answered."""
        return not self.finished and any(self.name(engine) == name for engine in self.waiting())

    @property
    def finished(self) -> bool:
        """Whether nothing more comes."""
        return len(self._arrivals) == len(self.engines)

    def waiting(self) -> list[int]:
        """Return the engines whose result has not come."""
        return [engine for engine in self.engines if engine not in self._arrivals]

    def succeeded(self, engine: int) -> bool | None:
        """Whether the call succeeded at an engine; ``None``: it has not ended."""
        arrival = self._arrivals.get(engine)
        if arrival is None:
            return None
        return arrival.kind == "finished" and succeeded(arrival.frames)

    # what arrives

    def arrive(
        self,
        engines: Sequence[int],
        kind: str,
        frames: Sequence[Any],
        times: Sequence[Times | None],
    ) -> None:
        """Take what engines sent: the same of each of them."""
        if kind == "output":
            with self._lock:
                for engine in engines:
                    if engine not in self._arrivals:
                        put_out(self.message(engine), frames)
            return
        arrival = _Arrival(kind, frames, datetime.now(timezone.utc))
        with self._lock:
            whens = zip(engines, times, strict=True)
            if self._arrivals:
                fresh = {engine: when for engine, when in whens if engine not in self._arrivals}
            else:
                fresh = dict(whens)
            self._times |= fresh
            self._arrivals |= dict.fromkeys(fresh, arrival)
            self.size += size_of(frames)
            if kind == "finished" and self.request != "execute_request" and is_nothing(frames):
                self._without.update(fresh)
            listeners: list[Callable[[], None]] = []
            if self.finished:
                listeners, self._listeners = self._listeners, []
        if self.finished:
            self._client.ended(self)
        for engine in fresh:
            if engine in self._messages:
                self._settle(engine)
        for listener in listeners:
            listener()

    def when_finished(self, listener: Callable[[], None]) -> None:
        """Have a function called once nothing more comes: now if that is so."""
        with self._lock:
            if not self.finished:
                self._listeners.append(listener)
                return
        listener()

    # messages

    def message(self, engine: int) -> MessageFuture:
        """Return the future of the message to an engine."""
        with self._lock:
            message = self._messages.get(engine)
            if message is not None:
                return message
            message = self._client.new_message(self.name(engine), self.request, self._label)
            message.output.metadata.update(
                submitted=self._submitted,
                engine_id=engine,
                engine_uuid=self._client._engines[engine],
            )
            self._messages[engine] = message
            if engine in self._arrivals:
                self._settle(engine)
            return message

    def messages(self) -> list[MessageFuture]:
        """Return the futures of all messages."""
        return [self.message(engine) for engine in self.engines]

    def _settle(self, engine: int) -> None:
        with self._lock:
            message, arrival = self._messages[engine], self._arrivals[engine]
            if message.done():
                return
            if arrival.kind in ("lost", "refused"):
                failed = lose if arrival.kind == "lost" else refuse
                result = failed(message, bytes(arrival.frames[0]).decode(), arrival.received)
            else:
                result = finish(message, arrival.frames, self._times[engine], arrival.received)
            result = self._results.setdefault(engine, result)
        self._client.resolve(message, result)

    def result(self, engine: int) -> Any:
        """Return the result of an engine that has arrived: an exception if the call failed."""
        with self._lock:
            if engine in self._without:
                return None
            if engine not in self._results:
                arrival = self._arrivals[engine]
                if arrival.kind != "finished" or self.request == "execute_request":
                    self.message(engine)
                else:
                    where = {"engine_id": engine, "engine_uuid": self._client._engines[engine]}
                    self._results[engine] = result_of(self.name(engine), where, arrival.frames)
            return self._results[engine]

    def is_without_results(self) -> bool:
        """Whether all engines have succeeded, and all results are nothing."""
        return len(self._without) == len(self.engines)

    def results(self) -> list[Any]:
        """Return the results of all engines, once all have arrived; see :meth:`result`."""
        if self.is_without_results():
            return [None] * len(self.engines)
        return [self.result(engine) for engine in self.engines]


# What was cast is nobody's but the transport's.
_SENT = threading.Event()
_SENT.set()


class CastResult(AsyncResult):  # type: ignore[misc]
    """The ``AsyncResult`` of a cast."""

    def __init__(self, client: Engines, cast: Cast, name: str, single: bool) -> None:
        Future.__init__(self)
        self._client = client
        self._cast = cast
        self._fname = name
        self._targets = cast.engines
        self._single_result = single
        self._return_exceptions = False
        self._chunk_sizes: dict[str, int] = {}
        self.owner = True
        self._ready = self._output_ready = False
        self._success: bool | None = None
        self._ready_event = threading.Event()
        self._output_event = threading.Event()
        self._sent_event = _SENT
        self._tracker = finished_tracker
        self.add_done_callback(self._finalize_result)
        cast.when_finished(self._complete)

    @property
    def msg_ids(self) -> list[str]:
        """The ids of the messages, one for each engine."""
        return list(self._cast.names)

    @property
    def _children(self) -> list[MessageFuture]:
        return self._cast.messages()

    @property
    def _metadata(self) -> list[Any]:
        return [message.output.metadata for message in self._children]

    def _complete(self) -> None:
        results = self._cast.results()
        self._raw_results = results
        self._output_ready = True
        self._output_event.set()
        if self.done():
            # Somebody has cancelled it.
            return
        try:
            if self._single_result:
                (result,) = results
                if isinstance(result, Exception):
                    raise result
            elif not self._cast.is_without_results():
                error.collect_exceptions(results, self._fname)
        except Exception as problem:
            self._success = False
            self.set_exception(problem)
        else:
            self._success = True
            self.set_result(self._reconstruct_result(results))

    def _finalize_result(self, _future: Any) -> None:
        # Of a cast there are results by message only if somebody asked for its messages.
        if self.owner and (results := self._client.results):
            for name in self.msg_ids:
                results.pop(name, None)
        self._ready = True
        self._ready_event.set()

    def ready(self) -> bool:
        """Whether all results have come."""
        return self._ready

    def wait(self, timeout: float | None = -1, return_when: Any = None) -> Any:
        """Wait for the results; see ``ipyparallel.AsyncResult.wait``."""
        if return_when is not None:
            return super().wait(timeout, return_when)
        if not self._ready:
            limit = None if timeout is None or timeout < 0 else timeout
            self._client.wait_until(self._ready_event, limit)
        return self._ready

    @property
    def progress(self) -> int:
        """How many engines are through."""
        return len(self._cast.engines) - len(self._cast.waiting())

    def cancel(self) -> bool:
        """Have the call not run where it has not begun, and forget what it returns elsewhere."""
        if not super().cancel():
            return False
        self._client.abort(self)
        return True

    @classmethod
    def join(cls, *results: Any) -> Any:
        """Return one result of several."""
        return ipyparallel.AsyncResult.join(*results)
