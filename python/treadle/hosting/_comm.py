"""Treadle's transport between Dask's own clients, schedulers and workers.

A backend of :mod:`distributed.comm`: ``protocol="treadle-tcp"`` of a cluster, or addresses like
``treadle-tcp://host:port``. A message has the frames that distributed makes of it. They travel as one
object of :mod:`treadle.transfer`, over several sockets if that is faster. Both sides prove the secret
first, or their certificates.

distributed splits a large frame into several of 64 MiB, and joins them again where they come. These
travel as one buffer: it would copy parts that come in different buffers.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import weakref
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import accumulate, groupby
from typing import Any

import dask
from distributed import Security
from distributed.utils import nbytes

from treadle._compat.distributed import (
    BaseListener,
    BaseTCPBackend,
    Comm,
    CommClosedError,
    Connector,
    FatalCommClosedError,
    ensure_concrete_host,
    from_frames,
    merge_memoryviews,
    parse_host_port,
    to_frames,
    unparse_host_port,
)
from treadle.common._security import certificates_of
from treadle.transfer import HandshakeError, aio

__all__ = ["TcpBackend", "TlsBackend"]

logger = logging.getLogger(__name__)

_TCP, _TLS = "treadle-tcp://", "treadle-tls://"
# Smaller frames are copied into the stream: an own place among the buffers costs more.
_OWN_BUFFER = 4096
# As of distributed's own connections. It sends nothing by itself on an idle one; Treadle does.
_SILENCE = "distributed.comm.timeouts.tcp"


def _options(prefix: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a connection or listener: the certificates, or the secret.

    Raises
    ------
    ValueError
        Encryption is asked for with other means than Dask's configuration.
    RuntimeError
        Encryption is required, and the protocol has none.
    """
    silence = dask.utils.parse_timedelta(dask.config.get(_SILENCE))
    options: dict[str, Any] = {"timeout": silence}
    if prefix == _TLS:
        files = certificates_of(Security())
        if files is None:
            raise ValueError(
                f"{_TLS} needs certificates in Dask's configuration: distributed.comm.tls.ca-file, "
                "and cert and key of client, scheduler or worker"
            )
        return {**options, "tls": (files["ca"], files["certificate"], files["key"])}
    if arguments.get("require_encryption"):
        raise RuntimeError(
            f"encryption is required by Dask's configuration, and {_TCP} has none: use {_TLS}"
        )
    return options


def _native_address(prefix: str, host: str, port: int) -> str:
    scheme = "treadle+tls://" if prefix == _TLS else "treadle://"
    return f"{scheme}{unparse_host_port(host, port)}"


def _joined(frames: Sequence[Any]) -> tuple[list[bytes | list[int]], list[pickle.PickleBuffer]]:
    """Return what is sent of a message: small frames, or the lengths of those in the next buffer.

    Frames that follow each other in memory have a buffer together.
    """
    small: list[bytes | list[int]] = []
    buffers = []
    for memory, group in groupby(frames, _memory_of):
        together = list(group)
        if memory is None:
            small += map(bytes, together)
            continue
        try:
            runs = [(merge_memoryviews(together), together)]
        except (TypeError, ValueError):
            # They are other parts of the same memory.
            runs = [(frame, [frame]) for frame in together]
        for buffer, parts in runs:
            small.append([nbytes(part) for part in parts])
            buffers.append(pickle.PickleBuffer(buffer))
    return small, buffers


def _memory_of(frame: Any) -> int | None:
    """Return what is the same for frames that may be sent together; None: the frame is small."""
    if nbytes(frame) < _OWN_BUFFER:
        return None
    return id(frame.obj if isinstance(frame, memoryview) else frame)


def _split(small: Sequence[bytes | list[int]], buffers: Iterable[Any]) -> list[Any]:
    """Return the frames of what was sent."""
    large = iter(buffers)
    frames: list[Any] = []
    for one in small:
        if isinstance(one, bytes):
            # It can be written to, as over distributed's own connections.
            frames.append(bytearray(one))
            continue
        buffer = memoryview(next(large)).cast("B")
        ends = list(accumulate(one))
        frames += [buffer[end - length : end] for length, end in zip(one, ends, strict=True)]
    return frames


class TransferComm(Comm):  # type: ignore[misc]
    """A connection of distributed's."""

    def __init__(
        self, connection: aio.Connection, local: str, peer: str, deserialize: bool = True
    ) -> None:
        super().__init__(deserialize=deserialize)
        self._connection = connection
        self._local_addr = local
        self._peer_addr = peer
        self._closed = False
        self._finalizer = weakref.finalize(self, connection.abort)
        self._finalizer.atexit = False

    @property
    def local_address(self) -> str:
        return self._local_addr

    @property
    def peer_address(self) -> str:
        return self._peer_addr

    async def read(self, deserializers: Any = None) -> Any:
        try:
            small, buffers = await self._connection.recv()
        except OSError as error:
            self.abort()
            raise CommClosedError(f"in {self!r}: {error}") from error
        except BaseException:
            # As with distributed's own connections, nobody can go on with it.
            self.abort()
            raise
        try:
            return await from_frames(
                _split(small, buffers),
                deserialize=self.deserialize,
                deserializers=deserializers,
                allow_offload=self.allow_offload,
            )
        except EOFError as error:
            self.abort()
            raise CommClosedError("aborted stream on truncated data") from error

    async def write(
        self,
        msg: Any,
        serializers: Any = None,
        on_error: str = "message",
    ) -> int:
        if self._closed:
            raise CommClosedError(f"{self!r} is closed")
        frames = await to_frames(
            msg,
            allow_offload=self.allow_offload,
            serializers=serializers,
            on_error=on_error,
            context={
                "sender": self.local_info,
                "recipient": self.remote_info,
                **self.handshake_options,
            },
        )
        try:
            await self._connection.send(_joined(frames))
        except OSError as error:
            self.abort()
            raise CommClosedError(f"in {self!r}: {error}") from error
        except BaseException:
            self.abort()
            raise
        return sum(map(nbytes, frames))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._finalizer.detach()
            await self._connection.close()

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            self._finalizer.detach()
            self._connection.abort()

    def closed(self) -> bool:
        return self._closed or self._connection.closed


class TransferConnector(Connector):  # type: ignore[misc]
    """Connects to listeners of the same protocol."""

    def __init__(self, prefix: str, backend: BaseTCPBackend) -> None:
        self.prefix = prefix
        self._backend = backend

    async def connect(self, address: str, deserialize: bool = True, **arguments: Any) -> Comm:
        options = _options(self.prefix, arguments)
        native = _native_address(self.prefix, *parse_host_port(address))
        try:
            connection = await aio.connect(native, **options)
        except HandshakeError as error:
            if error.errno is not None:
                # Nobody listens there yet.
                raise
            raise FatalCommClosedError(f"{self.prefix}{address}: {error}") from error
        # Of a port of one's own nobody asks.
        own = f"{self.prefix}{self._backend.get_local_address_for(address)}:0"
        return TransferComm(connection, own, self.prefix + address, deserialize)


class TransferListener(BaseListener):  # type: ignore[misc]
    """Accepts connections."""

    def __init__(
        self,
        prefix: str,
        address: str,
        comm_handler: Callable[[Comm], Coroutine[Any, Any, None]],
        deserialize: bool = True,
        allow_offload: bool = True,
        default_host: str | None = None,
        default_port: int = 0,
        **arguments: Any,
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self._host, self._port = parse_host_port(address, default_port)
        self._default_host = default_host
        self._handler = comm_handler
        self._deserialize = deserialize
        self._allow_offload = allow_offload
        self._options = _options(prefix, arguments)
        self._listener: aio.Listener | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._handled: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        host = self._host or "0.0.0.0"
        native = _native_address(self.prefix, host, self._port)
        self._listener = await aio.listen(native, **self._options)
        _, self._port = parse_host_port(self._listener.address.rpartition("://")[2])
        self._host = host
        self._accepting = asyncio.ensure_future(self._accept(self._listener))

    async def _accept(self, listener: aio.Listener) -> None:
        async for connection in listener:
            handled = asyncio.ensure_future(self._handle(connection))
            self._handled.add(handled)
            handled.add_done_callback(self._handled.discard)

    async def _handle(self, connection: aio.Connection) -> None:
        peer = self.prefix + self._peer(connection.address)
        comm = TransferComm(connection, self.contact_address, peer, self._deserialize)
        comm.allow_offload = self._allow_offload
        if self._listener is None:
            comm.abort()
            return
        try:
            await self.on_connection(comm)
        except CommClosedError:
            logger.info("Connection from %s closed before handshake completed", peer)
            return
        await self._handler(comm)

    def _peer(self, address: str) -> str:
        """The host of a peer. One on this host has come by a Unix socket, whose address has none."""
        scheme, _, place = address.rpartition("://")
        if scheme:
            return place
        host = ensure_concrete_host(self._host, default_host=self._default_host)
        return f"{unparse_host_port(host, None)}:0"

    def stop(self) -> asyncio.Future[None] | None:
        listener, self._listener = self._listener, None
        return None if listener is None else asyncio.ensure_future(listener.close())

    def get_host_port(self) -> tuple[str, int]:
        return self._host, self._port

    @property
    def listen_address(self) -> str:
        return f"{self.prefix}{unparse_host_port(self._host, self._port)}"

    @property
    def contact_address(self) -> str:
        host = ensure_concrete_host(self._host, default_host=self._default_host)
        return f"{self.prefix}{unparse_host_port(host, self._port)}"


class TcpBackend(BaseTCPBackend):  # type: ignore[misc]
    """``treadle-tcp://``: on this machine."""

    prefix = _TCP

    def get_connector(self) -> Connector:
        return TransferConnector(self.prefix, self)

    def get_listener(self, loc: str, handle_comm: Any, deserialize: bool, **arguments: Any) -> Any:
        return TransferListener(self.prefix, loc, handle_comm, deserialize, **arguments)


class TlsBackend(TcpBackend):
    """``treadle-tls://``: with the certificates of Dask's configuration."""

    prefix = _TLS
