"""A cast that was sent: what has arrived of it, and its messages, which are made when asked for."""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, overload

import ipyparallel
from ipyparallel import AsyncResult, error

from treadle._compat.ipyparallel import MessageFuture, finished_tracker
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
from treadle.views._flag import Flag

if TYPE_CHECKING:
    from treadle.views._engines import Engines

__all__ = ["Cast", "CastResult", "Names"]


# Bytes of a cast without results, and of an engine that it is for.
_SIZE = 1 << 10
_SIZE_OF_ENGINE = 64
# The frames of a result that is nothing.
_NOTHING = (b"",)
# When an engine began and ended, in seconds; not a number: nobody has said.
_TIMES = struct.Struct("<2d")


class _Arrival:
    """The last that comes of engines: the same of each of them."""

    __slots__ = ("_engines", "_places", "_times", "frames", "kind", "received")

    def __init__(
        self, engines: Sequence[int], kind: str, frames: Sequence[Any], times: bytes
    ) -> None:
        self.kind = kind
        self.frames = frames
        self.received = datetime.now(timezone.utc)
        self._engines = engines
        self._times = times
        self._places: dict[int, int] | None = None

    @property
    def is_nothing(self) -> bool:
        """Whether it is the result of a call that returned nothing, and put nothing out."""
        return self.frames is _NOTHING

    def times(self, engine: int) -> Times | None:
        """When one of the engines began and ended."""
        if not self._times:
            return None
        if self._places is None:
            self._places = {engine: place for place, engine in enumerate(self._engines)}
        began, ended = _TIMES.unpack_from(self._times, self._places[engine] * _TIMES.size)
        return None if math.isnan(began) else (began, ended)


class Names(Sequence[str]):
    """The ids of a cast's messages, one for each engine."""

    __slots__ = ("_engines", "_prefix")

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

    # Thousands are kept of those that are finished.
    __slots__ = (
        "_arrivals",
        "_client",
        "_label",
        "_listeners",
        "_lock",
        "_messages",
        "_results",
        "_submitted",
        "_without",
        "engines",
        "names",
        "number",
        "request",
        "size",
    )

    def __init__(
        self,
        client: Engines,
        number: int,
        engines: list[int],
        request: str,
        label: Any,
        submitted: datetime,
    ) -> None:
        self._client = client
        self.number = number
        #: Other casts have this list, too.
        self.engines = engines
        self.request = request
        self._label = label
        self._submitted = submitted
        #: The ids of its messages.
        self.names = Names(f"{client._prefix}_{number}_", self.engines)
        self._lock = threading.RLock()
        self._arrivals: dict[int, _Arrival] = {}
        self._messages: dict[int, MessageFuture] = {}
        self._results: dict[int, Any] = {}
        # How many engines have nothing as their result.
        self._without = 0
        #: Bytes that it takes, about: those of the results are added as they come.
        self.size = _SIZE + _SIZE_OF_ENGINE * len(self.engines)
        self._listeners: Sequence[Callable[[], None]] = ()

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
        self, engines: Sequence[int], kind: str, frames: Sequence[Any], times: bytes
    ) -> None:
        """Take what engines sent: the same of each of them.

        ``times`` is when they began and ended, two doubles for each; empty if nobody knows.

        A call that a signal handler has interrupted is made again: what it left is made up for.
        """
        if kind == "output":
            with self._lock:
                for engine in engines:
                    if engine not in self._arrivals:
                        put_out(self.message(engine), frames)
            return
        is_call = kind == "finished" and self.request != "execute_request"
        if is_call and is_nothing(frames):
            frames = _NOTHING
        if engines == self.engines:
            # Casts are kept: one list is enough.
            engines = self.engines
        arrival = _Arrival(engines, kind, frames, times)
        with self._lock:
            arrivals = self._arrivals
            fresh = engines
            if arrivals:
                fresh = [engine for engine in engines if engine not in arrivals]
            if fresh:
                arrivals.update(dict.fromkeys(fresh, arrival))
                if arrival.is_nothing:
                    self._without += len(fresh)
                else:
                    self.size += size_of(frames)
        if self.finished:
            self._client.ended(self)
        if self._messages:
            for engine in fresh or engines:
                if engine in self._messages:
                    self._settle(engine)
        if self.finished:
            self._tell()

    def _tell(self) -> None:
        """Call the listeners. One is taken off when it was called: it may be interrupted."""
        while listeners := self._listeners:
            listeners[0]()
            with self._lock:
                left = (one for one in self._listeners if one is not listeners[0])
                self._listeners = tuple(left)

    def when_finished(self, listener: Callable[[], None]) -> None:
        """Have a function called once nothing more comes: now if that is so."""
        with self._lock:
            if not self.finished:
                self._listeners = (*self._listeners, listener)
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
                result = finish(message, arrival.frames, arrival.times(engine), arrival.received)
            result = self._results.setdefault(engine, result)
        self._client.resolve(message, result)

    def result(self, engine: int) -> Any:
        """Return the result of an engine that has arrived: an exception if the call failed."""
        with self._lock:
            arrival = self._arrivals[engine]
            if arrival.is_nothing:
                return None
            if engine not in self._results:
                if arrival.kind != "finished" or self.request == "execute_request":
                    self.message(engine)
                else:
                    where = {"engine_id": engine, "engine_uuid": self._client._engines[engine]}
                    self._results[engine] = result_of(self.name(engine), where, arrival.frames)
            return self._results[engine]

    def is_without_results(self) -> bool:
        """Whether all engines have succeeded, and all results are nothing."""
        return self._without == len(self.engines)

    def results(self) -> list[Any]:
        """Return the results of all engines, once all have arrived; see :meth:`result`."""
        if self.is_without_results():
            return [None] * len(self.engines)
        return [self.result(engine) for engine in self.engines]


# What was cast is nobody's but the transport's.
_SENT = Flag()
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
        self._ready_event = Flag()
        self._output_event = Flag()
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
            # Somebody has cancelled it; or an interrupt came before this was through.
            self._finalize_result(self)
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
