"""Calls of other nodes. Somebody waits for their answers, in an event loop or in a thread, or nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from treadle.common._calls import error_of
from treadle.common._loop import call_in

__all__ = ["Calling", "ask", "ask_now", "called_back", "notify"]


class Calling(Protocol):
    """What calls other nodes: the connection of a client or of the sidecar, a worker."""

    def call(
        self, node: str, operation: str, argument: Any, done: Callable[[Any, Any], None]
    ) -> None:
        """Call a node; ``done`` gets the answer and None, or None and the error, in any thread."""


class Waiting(Calling, Protocol):
    """A connection, which a thread can wait on."""

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Process messages until ``done()``; return whether it is."""


async def called_back(
    begin: Callable[[Callable[..., None]], Awaitable[None] | None],
) -> tuple[Any, ...]:
    """Begin something with a callback, and return what that is called with, in any thread."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[Any, ...]] = loop.create_future()

    def done(*told: Any) -> None:
        # Nobody waits any more where it is done: the task was cancelled.
        call_in(loop, lambda: None if answer.done() else answer.set_result(told))

    begun = begin(done)
    if begun is not None:
        await begun
    return await answer


async def ask(connection: Calling, node: str, operation: str, argument: Any) -> Any:
    """Call a node and return its answer, as it is.

    Raises
    ------
    OSError
        There is no such node, or no more.
    Exception
        What the other side raised.
    """
    return _result(
        *await called_back(lambda done: connection.call(node, operation, argument, done))
    )


def ask_now(
    connection: Waiting, operation: str, argument: Any, timeout: float, node: str = ""
) -> Any:
    """Ask the scheduler, or another node, in a thread, and return its answer as it is.

    Raises
    ------
    TimeoutError
        It has not answered within so many seconds.
    Exception
        What :func:`ask` raises.
    """
    answers: list[tuple[Any, Any]] = []
    connection.call(node, operation, argument, lambda *answer: answers.append(answer))
    if not connection.wait(lambda: bool(answers), timeout):
        raise TimeoutError(f"the scheduler has not answered {operation!r} within {timeout:g} s")
    return _result(*answers[0])


def notify(connection: Calling, node: str, operation: str, argument: Any) -> None:
    """Call a node, in any thread; nobody waits for the answer."""
    connection.call(node, operation, argument, _ignore)


def _ignore(_result: Any, _error: Any) -> None:
    pass


def _result(result: Any, error: Any) -> Any:
    if error is not None:
        raise error_of(error)
    return result
