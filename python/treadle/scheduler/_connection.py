"""What the sidecar needs of its connection to the scheduler, ``treadle._core.Connection``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol

__all__ = ["Connection", "Handlers"]


class Handlers(Protocol):
    """What a connection calls, from ``process`` and ``wait``."""

    def on_call(self, id: int, node: str, operation: str, argument: Any) -> None:  # noqa: A002
        """Another node wants an answer."""

    def on_stuck(self, keys: list[Hashable], reason: str) -> None:
        """Nothing moves."""

    def on_restarted(self) -> None:
        """The scheduler dropped everything."""

    def on_closed(self, reason: str) -> None:
        """The connection ended."""


class Connection(Protocol):
    """A connection of the role "sidecar"."""

    @property
    def address(self) -> str:
        """The scheduler's address."""

    @property
    def cluster(self) -> str | None:
        """The id of the cluster."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while :meth:`process` has something to do."""

    def process(self) -> int:
        """Apply what has come."""

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Process until ``done()``; return whether it is."""

    def watch(self, key: Hashable, state: Any) -> None:
        """Want a key; the state is told how it stands."""

    def release(self, keys: Iterable[Hashable]) -> None:
        """Want keys no more."""

    def flush(self) -> None:
        """Tell the scheduler now what was released."""

    def call(
        self,
        node: str,
        operation: str,
        argument: Any,
        done: Callable[[Any, BaseException | None], None],
    ) -> None:
        """Call another node."""

    def answer(self, id: int, result: Any, error: Any = None) -> None:  # noqa: A002
        """Answer a call."""

    def close(self, timeout: float = 5.0) -> None:
        """End the connection."""
