"""What the tests of `treadle._core.Connection` share: states, handlers, functions for tasks.

States are simple objects here: what `treadle.Client` makes of them is tested elsewhere.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from client_support import SOON
from treadle import _core


class State:
    """Notes what it is told."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.status = "pending"
        self.type: Any = None
        self.exception: BaseException | None = None
        self.told: list[Any] = []

    def _note(self, status: str, *details: Any) -> None:
        self.status = status
        self.told.append((status, *details) if details else status)

    def finish(self, type: Any = None) -> None:  # noqa: A002
        self.type = type
        self._note("finished")

    def native_failed(self, kind: str, key: Any, payload: Any) -> None:
        self.exception = RuntimeError(kind, key)
        self._note("error", kind, key, payload)

    def native_cancelled(self, reason: str | None, message: str | None) -> None:
        self._note("cancelled", reason, message)

    def lose(self) -> None:
        self._note("lost")

    def retry(self) -> None:
        self._note("pending")

    def done(self) -> bool:
        return self.status not in ("pending", "lost")


_tickets = itertools.count()


class Handlers:
    """Notes what it is told."""

    current_client: ContextVar[None] = ContextVar("current_client")

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_call(self, *call: Any) -> None:
        self.told.append(("call", *call))

    def client(self) -> None:
        """The client that is the current one while a value is unpickled."""

    def on_stuck(self, *stuck: Any) -> None:
        self.told.append(("stuck", *stuck))

    def on_restarted(self) -> None:
        self.told.append("restarted")

    def on_closed(self, reason: str) -> None:
        self.told.append(("closed", reason))


def inc(x: Any) -> Any:
    return x + 1


def boom(text: str) -> None:
    raise ValueError(text)


def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


Connect = Callable[..., Any]


def until(connection: Any, *states: Any) -> None:
    assert connection.wait(lambda: all(state.done() for state in states), SOON)


def answer(connection: Any, *call: Any) -> tuple[Any, Any]:
    answers: list[tuple[Any, Any]] = []
    connection.call(*call, lambda *one: answers.append(one))
    assert connection.wait(lambda: bool(answers), SOON)
    return answers[0]


def fetched(connection: Any, keys: list[Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    results: list[Any] = []
    connection.fetch(next(_tickets), keys, lambda *one: results.append(one))
    assert connection.wait(lambda: bool(results), SOON)
    values, errors = results[0]
    # Who waits for a value decodes it, not the thread that received it.
    for key, value in list(values.items()):
        if isinstance(value, _core.Undecoded):
            try:
                values[key] = connection.decode(key, value)
            except Exception as error:
                del values[key]
                errors[key] = error
    return values, errors


def run(connection: Any, function: Any, *args: Any, key: Any = None, **options: Any) -> State:
    state = State(key if key is not None else connection.call_key(function, args, {}))
    connection.submit_call(state.key, state, function, args, {}, options or None)
    until(connection, state)
    return state
