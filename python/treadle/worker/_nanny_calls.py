"""What whoever supervises workers says to the scheduler."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from treadle import _core

__all__ = ["RefusedError", "connect", "tell"]

# Seconds for the scheduler to answer.
_PATIENCE = 60.0

# How the names of these connections begin.
_SUPERVISOR = "Supervisor-"


class RefusedError(OSError):
    """The other side refuses: ``error`` is what it answered."""

    def __init__(self, operation: str, error: Any) -> None:
        super().__init__(f"{operation}: {error}")
        self.error = error


def tell(
    address: str,
    operation: str,
    argument: Any,
    *,
    node: str = "",
    credentials: Mapping[str, Any],
    name: str,
    timeout: float = 10.0,
    patience: float | None = _PATIENCE,
) -> Any:
    """Ask the scheduler at an address, or another node there, and return the answer.

    There is a connection for this alone.

    ``timeout`` is for the connection, in seconds, and ``patience`` for the answer; None: however long it
    takes.

    Raises
    ------
    OSError
        The scheduler refuses, or does not answer in time.
    """
    connection = connect(address, name, credentials, timeout)
    answered: list[Any] = []
    try:
        connection.call(node, operation, argument, lambda *answer: answered.append(answer))
        limit = None if patience is None else max(timeout, patience)
        if not connection.wait(lambda: bool(answered), limit):
            raise TimeoutError(f"the scheduler does not answer {operation!r}")
    finally:
        connection.close()
    answer, error = answered[0]
    if error is not None:
        raise RefusedError(operation, error)
    return answer


def connect(
    address: str, name: str, credentials: Mapping[str, Any], timeout: float
) -> _core.Connection:
    """Return a connection that only makes calls."""
    who = f"{_SUPERVISOR}{name}-{secrets.token_hex(4)}"
    return _core.Connection(address, who, _Silent(), timeout=timeout, **credentials)


def is_supervisor(client: str) -> bool:
    """Return whether a connection, given by its name, is one of :func:`connect`."""
    return client.startswith(_SUPERVISOR)


class _Silent:
    """Handlers of a connection that only makes a call."""

    def on_call(self, id: int, node: str, operation: str, argument: Any) -> None:  # noqa: A002
        """Leave it unanswered."""

    def on_stuck(self, keys: list[Any], reason: str) -> None:
        """Do nothing."""

    def on_restarted(self) -> None:
        """Do nothing."""

    def on_closed(self, reason: str) -> None:
        """Do nothing."""
