"""What an asynchronous client is told before it is connected."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dask.utils import funcname

from treadle import _core
from treadle.pickling._tokens import tokenize

__all__ = ["Early"]

logger = logging.getLogger("treadle.client")


if TYPE_CHECKING:
    # To the type checker it is one: nobody is to ask which of the two there is.
    _Base = _core.Connection
else:
    _Base = object


class Early(_Base):
    """Takes the place of a connection until there is one, which then does what was asked of this.

    ``client = Client(…, asynchronous=True)`` may be used before it is awaited. A coroutine that began
    then goes on with this when there is a connection: from then on this does what the connection does.

    Parameters
    ----------
    address
        Of the scheduler, where that is known already.
    """

    closed = None

    def __init__(self, address: str = "") -> None:
        self._address = address
        self._calls: deque[tuple[str, tuple[Any, ...], dict[str, Any]]] = deque()
        self._connection: _core.Connection | None = None
        self._is_over = False
        # Whether there is a connection by now. Reentrant: a signal handler may ask something, too.
        self._lock = threading.RLock()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and self._connection is not None:
            return getattr(self._connection, name)
        return super().__getattribute__(name)

    @property
    def address(self) -> str:
        """Of the scheduler, or empty."""
        return self._address

    def losses(self) -> int:
        """Return how often a value was lost: never yet."""
        return 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._do(name, args, kwargs)

        return call

    def _do(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have something done: later, or at once if there is a connection by now."""
        with self._lock:
            if self._connection is None and not self._is_over:
                self._calls.append((name, args, kwargs))
                return None
        if self._connection is not None:
            return getattr(self._connection, name)(*args, **kwargs)
        _give_up(name, args)
        return None

    def call_key(
        self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> str:
        """Return a key of a call, as distributed makes it."""
        return f"{funcname(function)}-{tokenize(function, kwargs or {}, *args)}"

    def call_keys(
        self,
        function: Any,
        arguments: Iterable[tuple[Any, ...]],
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Return keys of calls, as distributed makes them."""
        token = tokenize(function, kwargs or {})
        return [f"{funcname(function)}-{tokenize(token, *args)}" for args in arguments]

    def collect(self, released: Any, futures: Any, ended: Any, why: Any) -> None:
        """Do what a connection does with states of futures that are no more."""
        while released:
            state = released.popleft()
            state.refs -= 1
            if state.refs <= 0 and futures.get(state.key) is state:
                self.forget([state.key], futures, ended, why)

    def forget(self, keys: Iterable[Any], futures: Any, ended: Any, why: Any) -> None:
        """Let go of keys, as a connection does."""
        for key in keys:
            state = futures.pop(key, None)
            if state is not None:
                self._do("release", ([key],), {})
                state.over = why
                ended.append((state, why))

    def is_inline(self, _key: Any) -> bool:
        """Nothing is here yet."""
        return False

    def inline(self, keys: list[Any], _into: dict[Any, Any]) -> list[Any]:
        """Return the keys whose values are not here: all."""
        return keys

    def step_aside(self) -> None:
        """Do nothing: nobody processes anything."""

    def close(self, _timeout: float = 0.0) -> None:
        """Forget everything, and tell those who wait for an answer."""
        with self._lock:
            self._is_over = True
            calls, self._calls = self._calls, deque()
        for name, args, _ in calls:
            _give_up(name, args)

    def replay(self, connection: _core.Connection) -> None:
        """Have the connection do what was asked, in order, and from now on all that is asked."""
        while True:
            with self._lock:
                if not self._calls:
                    self._connection = connection
                    return
                name, args, kwargs = self._calls.popleft()
            try:
                getattr(connection, name)(*args, **kwargs)
            except Exception as error:
                _report(name, args, error)


def _give_up(name: str, args: tuple[Any, ...]) -> None:
    """Tell who waits for an answer that there will be no connection."""
    if name == "call":
        _report(name, args, OSError("the client was closed before it was connected"))


def _report(name: str, args: tuple[Any, ...], error: Exception) -> None:
    """Tell who waits for an answer, or have the futures of a submission say what is wrong."""
    if name == "call":
        args[3](None, error)
        return
    position = {"submit_call": 1, "submit_calls": 1, "submit": 2, "put": 1}.get(name)
    if position is None:
        logger.error("What was asked before the connection was there cannot be done: %s", error)
        return
    states = args[position]
    for state in states if isinstance(states, (list, tuple)) else [states]:
        state.set_error(error, error.__traceback__)
