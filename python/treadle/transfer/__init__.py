"""Objects between processes, at the speed of the network or of memory.

>>> from treadle import transfer
>>> listener = transfer.listen("127.0.0.1:0")  # doctest: +SKIP
>>> listener.address  # doctest: +SKIP
'treadle://127.0.0.1:41234'
>>> connection = listener.accept()  # doctest: +SKIP
>>> array = connection.recv()  # doctest: +SKIP

and in another process

>>> connection = transfer.connect("127.0.0.1:41234")  # doctest: +SKIP
>>> connection.send(np.zeros(100_000_000))  # doctest: +SKIP

:mod:`treadle.transfer.aio` is the same for :mod:`asyncio`. Nothing that a peer sends is unpickled
before it has proved that it knows the secret or has a certificate; one that has may run any code
here, as is the nature of pickle.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from pathlib import Path

from treadle import _core

if not hasattr(_core, "transfer_connect"):
    raise ImportError("treadle.transfer needs Linux: it stands on epoll, eventfd and memfd")

from treadle._core import Listener, Transfer
from treadle._core import TransferConnection as Connection
from treadle.transfer._errors import (
    ConnectionClosed,
    ConnectionEnded,
    CorruptData,
    HandshakeError,
    TransferCancelled,
    TransferError,
    TransferRefused,
)
from treadle.transfer._options import Tls, complete, settings

__all__ = [
    "Connection",
    "ConnectionClosed",
    "ConnectionEnded",
    "CorruptData",
    "HandshakeError",
    "Listener",
    "Transfer",
    "TransferCancelled",
    "TransferError",
    "TransferRefused",
    "connect",
    "listen",
]

atexit.register(_core.transfer_close_all)


def listen(
    address: str = "127.0.0.1:0",
    *,
    tls: Tls = None,
    secret: bytes | str | Path | None = None,
    insecure: bool = False,
    contact: str | Sequence[str] = (),
    stripes: int | None = None,
    max_stripes: int = 16,
    shared_memory: bool = True,
    prefetch: int = 1 << 20,
    timeout: float = 30.0,
    max_object: int | None = None,
) -> Listener:
    """Listen for connections.

    Parameters
    ----------
    address
        ``host:port``, ``treadle://host:port``, or ``treadle+tls://host:port``; port 0 takes a free
        one. ``Listener.address`` says which.
    contact
        Other addresses that clients connect to and that lead here: of a forwarded port, a container's
        or a service's. Without TLS, whoever connected to any other address is refused: somebody in
        between could change what passes.
    tls, secret, insecure, stripes, max_stripes, shared_memory, prefetch, timeout, max_object
        See :func:`connect`.

    Raises
    ------
    ValueError
        The address or an option is at fault; also for an address beyond this machine without TLS.
    TransferError
        The port is taken, or the like (``errno`` says).
    """
    return _core.transfer_listen(
        complete(address, tls),
        settings(
            {
                "tls": tls,
                "secret": secret,
                "insecure": insecure,
                "contact": contact,
                "stripes": stripes,
                "max_stripes": max_stripes,
                "shared_memory": shared_memory,
                "prefetch": prefetch,
                "timeout": timeout,
                "max_object": max_object,
            }
        ),
    )


def connect(
    address: str,
    *,
    tls: Tls = None,
    secret: bytes | str | Path | None = None,
    insecure: bool = False,
    stripes: int | None = None,
    max_stripes: int = 16,
    shared_memory: bool = True,
    prefetch: int = 1 << 20,
    timeout: float = 30.0,
    max_object: int | None = None,
    connect_timeout: float = 30.0,
) -> Connection:
    """Connect to a listener.

    Parameters
    ----------
    address
        As ``Listener.address`` says it; without a scheme, ``tls`` decides.
    tls
        Certificates: the prefix of files that ``treadle certs`` made (``"treadle-certs/node"``),
        ``(CA, certificate, key)`` as paths or PEM text, or a ``distributed.Security``.
    secret
        What both sides must know, 16 bytes at least: bytes or a string are the secret itself, a
        ``pathlib.Path`` is the file that holds it. By default it is the user's own, in a file that
        is made when it is needed, or, with TLS, none.
    insecure
        Allow addresses beyond this machine without TLS. The secret is proved all the same.
    stripes
        How many data connections to send on. By default as many as raise the measured rate.
    max_stripes
        At most so many by default.
    shared_memory
        Pass arrays created in shared memory (:func:`treadle.empty`) to peers of this host
        without copying them.
    prefetch
        So many bytes may arrive before they are asked for.
    timeout
        Seconds of silence after which the peer is gone.
    max_object
        The largest object to receive, in bytes; a peer that sends a larger one is cut off.
    connect_timeout
        Seconds that connecting may take, name resolution excluded.

    Raises
    ------
    ValueError
        The address or an option is at fault; also for an address beyond this machine without TLS.
    HandshakeError
        Nobody listens there, or one side does not trust the other.
    TimeoutError
        It took too long.
    """
    return _core.transfer_connect(
        complete(address, tls),
        settings(
            {
                "tls": tls,
                "secret": secret,
                "insecure": insecure,
                "stripes": stripes,
                "max_stripes": max_stripes,
                "shared_memory": shared_memory,
                "prefetch": prefetch,
                "timeout": timeout,
                "max_object": max_object,
                "connect_timeout": connect_timeout,
            }
        ),
    )
