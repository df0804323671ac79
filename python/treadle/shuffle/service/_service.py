"""The stand-alone shuffle service for direct use: rows that no worker holds, in two copies."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from treadle import _core
from treadle.common._certificates import named
from treadle.common._memory_limit import memory_limit_of
from treadle.common._numbers import integer
from treadle.common._own_address import reachable
from treadle.common._secret import kept
from treadle.shuffle._compression import chosen, noted, of_note
from treadle.shuffle.service._errors import Elsewhere, ShuffleError
from treadle.shuffle.service._registries import is_registry, keeps_masters, master_of

if TYPE_CHECKING:
    from treadle.common._command_process import Child
    from treadle.shuffle._history import Shuffles
    from treadle.shuffle.service._journal_writer import Keeper
    from treadle.shuffle.service._shuffle import Shuffle

__all__ = ["Service"]

# Maps of a shuffle, and its partitions.
_MOST = 2**20

# Seconds between two attempts to find the master of an application: at first, and at most.
_PAUSE, _LONGEST_PAUSE = 0.1, 1.0

# Of this machine.
_MOST_SERVERS = 1024


def _stored(address: str | None, remote: str | None, storage: str) -> list[str]:
    """Return the options of servers that say where rows go."""
    if storage not in ("local", "remote"):
        raise ValueError(f"storage={storage!r}: say 'local' or 'remote'")
    if remote is None:
        if storage == "remote":
            raise ValueError("storage='remote' needs remote=: the URL of a store")
        return []
    if address is not None:
        raise ValueError(
            "remote= is for the servers that this object starts: with an address, give --remote to "
            "treadle shuffle-server"
        )
    return ["--remote", remote, "--storage", storage]


class Service:
    """A connection to a shuffle service, or a small service of this machine.

    Parameters
    ----------
    address
        The address of ``treadle shuffle-master``, which knows the servers, or the URL of another registry that does:
        ``zk://host/path``, ``etcd://host/prefix``, ``static:host:port`` or ``static:/file``. Without it, a service
        begins with this object and ends with it: the master in this process, and servers in processes of their own.
    own_master
        With ``address``: whether the master of this application is in this process. Its shuffles end with
        this object, and with nothing else: neither with other applications nor with the process at ``address``.
        If a process of the same ``application`` has the master already, that one is used. With ``False``
        the process at ``address`` is the master: shuffles outlive this process, and end with that one. A registry
        by URL is none.
    servers
        Without ``address``: how many servers to start. Each one is a failure domain.
    memory_limit, local_directory
        Without ``address``: what each server may take of memory (bytes, ``"2GiB"``, a share of the machine's
        memory such as 0.5, or 0 for no limit), and where it writes further rows.
    remote, storage
        Without ``address``: the URL of a store for rows that ``local_directory`` does not take, and where rows go
        first, ``"local"`` or ``"remote"``, as ``--remote`` and ``--storage`` of ``treadle shuffle-server``.
    application
        Processes that share shuffles have the same number; by default a random one. A static list of servers does
        not know which application has a master: there each object has its own. Without a master of its
        own, an application keeps its shuffles as long as some process of it is connected, and for a minute
        after that.
    priority
        How much of a server the application gets while several want more than it can do, compared to the
        priorities of the others: with 3, three times as much as with 1. At least 1, which is the default; more
        than 1,000 counts as 1,000. It counts for the shuffles that are registered by this object.
    compression
        How rows are compressed by those who write them: ``"lz4"``, ``"zstd"`` or ``"none"``. By default what
        ``treadle.shuffle.compression`` of Dask's configuration says, and none without that. It counts for the
        shuffles that are registered by this object.
    secret, certificates, insecure
        As those of :class:`treadle.Client`.
    timeout
        How long a call may take, in seconds, unless it is given another limit. By default 60.

    Raises
    ------
    OSError
        The master or the registry cannot be reached, or refuses.
    ValueError
        The URL, or the registry's credentials in the environment, cannot be used; ``own_master`` or ``application``
        cannot be with this registry; ``priority`` is no number from 1 to 2³² - 1, ``application`` none from 0 to
        2⁶⁴ - 1, or ``servers`` none from 1 on; there is no such ``compression``, ``memory_limit`` or ``storage``; or
        ``remote`` is given with ``address``, whose servers have their own.
    """

    #: Whether other processes may have the same application.
    _is_shared = True

    def __init__(
        self,
        address: str | None = None,
        *,
        servers: int = 2,
        memory_limit: Any = 1 << 30,
        local_directory: str | os.PathLike[str] | None = None,
        remote: str | None = None,
        storage: str = "local",
        own_master: bool = True,
        application: int | None = None,
        priority: int = 1,
        compression: str | None = None,
        secret: bytes | str | Path | None = None,
        certificates: str | os.PathLike[str] | Mapping[str, str] | None = None,
        insecure: bool = False,
        timeout: float = 60.0,
    ) -> None:
        self.timeout = timeout
        self.priority = integer("priority", priority, 1, 2**32 - 1)
        self.compression = chosen(compression)
        self.application = secrets.randbits(63)
        if application is not None:
            self.application = integer("application", application, 0, 2**64 - 1)
        self._connection: dict[str, Any] = {
            "secret": kept(secret),
            "certificates": named(certificates),
            "insecure": insecure,
        }
        stored = _stored(address, remote, storage)
        self._master: Any = None
        self._keeper: Keeper | None = None
        self._servers: list[Child] = []
        self._native: Any = None
        self._process = os.getpid()
        self._others: dict[str, Any] = {}
        self._named = f"{socket.gethostname()}-{os.getpid()}"
        try:
            if address is None:
                count = integer("servers", servers, 1, _MOST_SERVERS)
                limit = memory_limit_of(memory_limit, "memory_limit", 0.5)
                from treadle.shuffle.service._journal_writer import Keeper

                self._master = _core.ShuffleMaster(**self._connection)
                self._keeper = Keeper.of(self._master, None)
                address = self._master.address
                self._start(address, count, limit, local_directory, stored)
                self._master_address: str = address
                self._native = self._connect(address)
            elif own_master:
                if application is not None:
                    self._refuse_sharing(address)
                self._master_address = self._join(address)
                if is_registry(address):
                    self._keep_journal()
            elif is_registry(address):
                raise ValueError(
                    f"own_master=False needs the address of `treadle shuffle-master`: {address} has servers, and is no "
                    "master"
                )
            else:
                self._master_address = address
                self._native = self._connect(address)
            self.address: str = address
        except BaseException:
            self.close()
            raise

    def _keep_journal(self) -> None:
        """Keep the records of a master of this process, where nobody else does."""
        from treadle.shuffle.service._journal_writer import Keeper

        if self._master is not None:
            self._keeper = Keeper.of(self._master, None)

    def _refuse_sharing(self, registry: str) -> None:
        if self._is_shared and is_registry(registry) and not keeps_masters(registry):
            raise ValueError(
                f"application={self.application}: {registry} is a list of servers, and does not know which application "
                "has a master. Leave application= out, or use `treadle shuffle-master`, ZooKeeper or etcd"
            )

    def _join(self, registry: str) -> str:
        """Connect to the master of this application, a new one where it has none; return its address."""
        until = time.monotonic() + self.timeout
        pause = _PAUSE
        while True:
            address = self._own(registry)
            try:
                self._native = self._connect(address)
            except OSError:
                # A master that has just ended: the registry does not know it yet.
                if self._master is not None or time.monotonic() > until:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                return address

    def _own(self, registry: str) -> str:
        """Start the master of this application; return its address, or that of the one that it has."""
        try:
            self._master = _core.ShuffleMaster(
                reachable(registry),
                registry=registry,
                name=self._named,
                application=self.application,
                patience=self.timeout,
                **self._connection,
            )
        except Elsewhere as error:
            return str(error)
        address: str = self._master.address
        return address

    def _connect(self, address: str) -> Any:
        return _core.ShuffleMember(
            address,
            name=self._named,
            application=self.application,
            priority=self.priority,
            timeout=self.timeout,
            **self._connection,
        )

    def _renew(self) -> None:
        """Connect to the master again."""
        self._native.close()
        self._native = self._connect(self._master_address)

    def _native_of(self, number: int, limit: float) -> Any:
        """Return the connection to the master of a shuffle."""
        if number >> 32 == self._native.master:
            return self._native
        if is_registry(self.address):
            return self._other(master_of(self.address, number, limit))
        registry = self._other(self.address)
        address = registry.master_of(number, limit)
        return registry if address is None else self._other(address)

    def _other(self, address: str) -> Any:
        """Return the connection to another master."""
        if address == self._master_address:
            return self._native
        other = self._others.get(address)
        if other is None or other.over is not None:
            other = self._others[address] = self._connect(address)
        return other

    def _start(
        self,
        address: str,
        count: int,
        memory: int,
        directory: str | os.PathLike[str] | None,
        stored: list[str],
    ) -> None:
        if self._connection != {"secret": None, "certificates": None, "insecure": False}:
            raise ValueError(
                "a service of this machine uses the user's own secret: without an address, give "
                "neither secret= nor certificates= nor insecure="
            )
        from treadle.common._command_process import CannotStart, Child

        # Without a unit, 1 would be a share.
        options = ["--memory-limit", f"{memory}B", "--http", "none", "--supervised"]
        if directory is not None:
            options += ["--local-directory", os.fspath(directory)]
        options += stored
        for number in range(count):
            name = f"server-{number}"
            try:
                child = Child("shuffle-server", address, "--name", name, "--domain", name, *options)
            except CannotStart as error:
                raise ShuffleError(f"a shuffle server cannot be started: {error.said}") from None
            self._servers.append(child)

    def shuffle(
        self,
        maps: int,
        partitions: int,
        rows: Any = bytes,
        *,
        copies: int = 2,
        compression: str | None = None,
        expected_bytes: int | None = None,
        name: str = "",
        timeout: float | None = None,
    ) -> Shuffle:
        """Register a shuffle.

        Parameters
        ----------
        maps, partitions
            How many inputs and outputs it has. They are numbered from 0.
        rows
            What rows are: ``bytes``, which is the default, for opaque records; a NumPy dtype, or what makes
            one; or a ``pyarrow.Schema``.
        copies
            At how many servers, in different failure domains, each row is: 1 or 2. If all servers are in
            one domain, there is one copy, and a warning says so.
        compression
            ``"lz4"``, ``"zstd"`` or ``"none"``; by default that of the service.
        expected_bytes
            How much will be written, about: a small shuffle is at few servers. By default twice what the last
            shuffle with this name, of as many maps and partitions, had; or nobody knows.
        name
            For people.
        """
        maps, partitions = (
            integer("maps", maps, 1, _MOST),
            integer("partitions", partitions, 1, _MOST),
        )
        copies = integer("copies", copies, 1, 2)
        expected = 0
        if expected_bytes is not None:
            # 0 is what nobody knows.
            expected = max(1, integer("expected_bytes", expected_bytes, 0, 2**63 - 1))
        # Operators drain servers, and have no NumPy.
        from treadle.shuffle.service._row_kinds import kind_of
        from treadle.shuffle.service._shuffle import Shuffle

        kind, compression = kind_of(rows), chosen(compression, self.compression)
        name = name or f"shuffle-{secrets.token_hex(4)}"
        limit = self._limit(timeout)
        note = noted(kind.note, compression)
        number, domains = self._native.register(
            name, maps, partitions, copies, note, limit, [], None, expected
        )
        if not domains:
            warnings.warn(
                f"there are no shuffle servers yet: the maps of shuffle {name} wait for them. Start "
                "`treadle shuffle-server`",
                stacklevel=2,
            )
        elif domains < copies:
            warnings.warn(
                f"shuffle {name} asks for {copies} copies, and the servers are in one failure domain: "
                "each row has one copy. Start servers with another --domain",
                stacklevel=2,
            )
        return Shuffle(self, number, name, maps, partitions, kind, compression)

    def attach(self, number: int, *, timeout: float | None = None) -> Shuffle:
        """Return a shuffle that another process has registered, by :attr:`Shuffle.number`."""
        number = integer("number", number, 0, 2**64 - 1)
        limit = self._limit(timeout)
        native = self._native_of(number, limit)
        about = native.about(number, limit)
        from treadle.shuffle.service._row_kinds import kind_of_note
        from treadle.shuffle.service._shuffle import Shuffle

        kind, compression = kind_of_note(about.note), of_note(about.note)
        return Shuffle(
            self,
            number,
            about.name,
            about.maps,
            about.partitions,
            kind,
            compression,
            member=native,
            committed=about.committed or 0,
        )

    def state(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the servers of the service, and the shuffles of this application's master.

        ``registry`` says whether the list of servers is ``current``, and ``why`` not, if it is a registry by URL.
        """
        state: dict[str, Any] = json.loads(self._native.state(self._limit(timeout)))
        return state

    def records(self, *, timeout: float | None = None) -> Shuffles:
        """Return the records of the shuffles that run, and of the latest that have ended.

        ``kind`` is ``service``, and ``client`` names the process that registered the shuffle. The journal
        has earlier ones, see ``treadle shuffle history``. A service that begins with this object has a
        journal where ``treadle.shuffle.journal`` of Dask's configuration names a file.
        """
        from treadle.shuffle._history import ShuffleRecord, Shuffles

        told = json.loads(self._native.records(self._limit(timeout)))
        return Shuffles(map(ShuffleRecord.of, told))

    def drain(self, server: str, *, timeout: float | None = None) -> None:
        """Ask the server of this name to leave: what it holds is copied to others first."""
        # Any master can: the server asks its other masters.
        at = self._native if is_registry(self.address) else self._other(self.address)
        at.drain(server, self._limit(timeout))

    def stats(self) -> dict[str, int]:
        """Return counts of what this process has pushed and read, in bytes and pieces.

        ``uncompressed`` and ``compressed`` are the bytes of the rows that were written here, before and after
        compression. ``slept`` counts its requests that an overloaded server told to pause.
        """
        counts: dict[str, int] = self._native.stats()
        return counts

    def close(self) -> None:
        """Leave the service. One that began with this object ends.

        In a forked child this does nothing: the connection is its parent's.
        """
        if os.getpid() != self._process:
            return
        for native in (*self._others.values(), self._native):
            if native is not None:
                native.close()
        for server in self._servers:
            server.end()
        self._servers.clear()
        if self._keeper is not None:
            self._keeper.close()
        if self._master is not None:
            self._master.close()

    def _limit(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout

    def __enter__(self) -> Service:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Service at {self.address}>"
