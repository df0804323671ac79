"""What whoever supervises workers says to the scheduler."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from treadle import _core

__all__ = ["tell"]

# Seconds for the scheduler to answer: workers hand their values over meanwhile.
_PATIENCE = 60.0


def tell(
    address: str,
    operation: str,
    argument: Mapping[str, Any],
    *,
    credentials: Mapping[str, Any],
    name: str,
    timeout: float = 10.0,
) -> Any:
    """Ask the scheduler at an address, by a connection for this alone, and return its answer.

    ``timeout`` is for the connection, in seconds; an answer may take a minute.

    Raises
    ------
    OSError
        The scheduler refuses, or does not answer in time.
    """
    connection = _core.Connection(
        address,
        f"Supervisor-{name}-{secrets.token_hex(4)}",
        _Silent(),
        timeout=timeout,
        **credentials,
    )
    answered: list[Any] = []
    try:
        connection.call("", operation, argument, lambda *answer: answered.append(answer))
        if not connection.wait(lambda: bool(answered), max(timeout, _PATIENCE)):
            raise TimeoutError(f"the scheduler does not answer {operation!r}")
    finally:
        connection.close()
    answer, error = answered[0]
    if error is not None:
        raise OSError(f"{operation}: {error}")
    return answer


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
