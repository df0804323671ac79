"""What can go wrong with a transfer, besides ``TimeoutError`` and ``ValueError``."""

from __future__ import annotations

__all__ = [
    "ConnectionClosed",
    "ConnectionEnded",
    "CorruptData",
    "HandshakeError",
    "TransferCancelled",
    "TransferError",
    "TransferRefused",
]


class TransferError(OSError):
    """A transfer, or a connection, failed."""


class HandshakeError(TransferError, ConnectionError):
    """No connection came about: one side does not trust the other, or nobody listens there.

    In the second case its ``errno`` is ``ECONNREFUSED``.
    """


class ConnectionEnded(TransferError, ConnectionError):
    """The connection is over: the peer's process or host, or the network, went away."""


class ConnectionClosed(ConnectionEnded, EOFError):
    """The connection, or the listener, was closed in order."""


class TransferCancelled(TransferError):
    """The transfer was given up by its sender: this side. The receiver sees nothing of it."""


class TransferRefused(TransferError):
    """The receiver did not take the object."""


class CorruptData(TransferError):
    """An object's bytes were damaged on the way, or do not make sense."""
