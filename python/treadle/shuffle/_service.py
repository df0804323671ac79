"""The stand-alone shuffle service for direct use: rows that no worker holds, in two copies."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle import _core
from treadle._security import named
from treadle.shuffle._compression import NONE, chosen, noted, of_note
from treadle.shuffle._records import Kind, kind_of, kind_of_note
from treadle.shuffle._service_errors import Again, NoRoom, RowsLost, ShuffleError

if TYPE_CHECKING:
    from treadle._cli import Child
    from treadle.shuffle._history import Shuffles
    from treadle.shuffle._keeper import Keeper

__all__ = ["Reader", "Receipt", "Service", "Shuffle", "Writer", "attempts"]

_NOTHING = np.empty(0, np.int64)

# Seconds between two attempts after something was lost: the first pause, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
# Seconds that an error may wait to learn its cause.
_STATE = 5.0


@dataclass(frozen=True)
class Receipt:
    """What one run of a map has written. :meth:`Shuffle.commit` takes those that count.

    It can be pickled, and sent to the process that commits.
    """

    map: int
    rows: int
    nbytes: int
    data: bytes
    """What the servers compare their rows with."""


class Service:
    """A connection to a shuffle service, or a small service of this machine.

    Parameters
    ----------
    address
        The address of ``treadle shuffle-master``. Without it, a service begins with this object and ends
        with it: the master in this process, and servers in processes of their own.
    servers
        Without ``address``: how many servers to start. Each one is a failure domain.
    memory_limit, local_directory
        Without ``address``: bytes of rows that each server keeps in memory, and where it writes others.
    application
        Shuffles are kept as long as some process of their application is connected, and for a minute after
        that. Processes that share shuffles have the same number. By default a random one.
    priority
        How much of a server the application gets while several want more than it can do, compared to the
        priorities of the others: with 3, three times as much as with 1. At least 1, which is the default.
        It counts for the shuffles that are registered by this object.
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
        The master cannot be reached.
    ValueError
        ``priority`` is no number from 1 to 2³² - 1; there is no such ``compression``.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        servers: int = 2,
        memory_limit: int = 1 << 30,
        local_directory: str | os.PathLike[str] | None = None,
        application: int | None = None,
        priority: int = 1,
        compression: str | None = None,
        secret: bytes | str | Path | None = None,
        certificates: str | os.PathLike[str] | Mapping[str, str] | None = None,
        insecure: bool = False,
        timeout: float = 60.0,
    ) -> None:
        if not 1 <= priority < 1 << 32:
            raise ValueError(f"priority={priority}: give a number from 1 to 2³² - 1")
        self.timeout = timeout
        self.priority = priority
        self.compression = chosen(compression)
        self.application = secrets.randbits(63) if application is None else application
        self._connection: dict[str, Any] = {
            "secret": secret,
            "certificates": named(certificates),
            "insecure": insecure,
        }
        self._master: Any = None
        self._keeper: Keeper | None = None
        self._servers: list[Child] = []
        self._native: Any = None
        try:
            if address is None:
                from treadle.shuffle._keeper import Keeper

                self._master = _core.ShuffleMaster(**self._connection)
                self._keeper = Keeper.of(self._master, None)
                address = self._master.address
                self._start(address, servers, memory_limit, local_directory)
            self.address = address
            self._native = _core.ShuffleMember(
                address,
                name=f"{socket.gethostname()}-{os.getpid()}",
                application=self.application,
                priority=priority,
                timeout=timeout,
                **self._connection,
            )
        except BaseException:
            self.close()
            raise

    def _start(
        self, address: str, count: int, memory: int, directory: str | os.PathLike[str] | None
    ) -> None:
        if self._connection != {"secret": None, "certificates": None, "insecure": False}:
            raise ValueError(
                "a service of this machine uses the user's own secret: without an address, give "
                "neither secret= nor certificates= nor insecure="
            )
        from treadle._cli import Child

        options = ["--memory-limit", str(memory), "--http", "none", "--supervised"]
        if directory is not None:
            options += ["--local-directory", os.fspath(directory)]
        for number in range(count):
            name = f"server-{number}"
            child = Child("shuffle-server", address, "--name", name, "--domain", name, *options)
            self._servers.append(child)

    def shuffle(
        self,
        maps: int,
        partitions: int,
        rows: Any = bytes,
        *,
        copies: int = 2,
        compression: str | None = None,
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
        name
            For people.
        """
        kind, compression = kind_of(rows), chosen(compression, self.compression)
        name = name or f"shuffle-{secrets.token_hex(4)}"
        limit = self._limit(timeout)
        note = noted(kind.note, compression)
        number, domains = self._native.register(
            name, maps, partitions, copies, note, limit, [], None
        )
        if domains < copies and copies > 1:
            warnings.warn(
                f"shuffle {name} asks for {copies} copies, and the servers are in {domains} failure "
                "domain(s): each row has as many copies as there are domains. Start servers with "
                "another --domain",
                stacklevel=2,
            )
        return Shuffle(self, number, name, maps, partitions, kind, compression)

    def attach(self, number: int, *, timeout: float | None = None) -> Shuffle:
        """Return a shuffle that another process has registered, by :attr:`Shuffle.number`."""
        said = self._native.about(number, self._limit(timeout))
        name, maps, partitions, _, note, _, _ = said
        kind, compression = kind_of_note(note), of_note(note)
        return Shuffle(self, number, name, maps, partitions, kind, compression)

    def state(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the servers and shuffles of the service."""
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
        self._native.drain(server, self._limit(timeout))

    def stats(self) -> dict[str, int]:
        """Return counts of what this process has pushed and read, in bytes and pieces.

        ``uncompressed`` and ``compressed`` are the bytes of the rows that were written here, before and after
        compression. ``slept`` counts its requests that an overloaded server told to pause.
        """
        counts: dict[str, int] = self._native.stats()
        return counts

    def close(self) -> None:
        """Leave the service. One that began with this object ends."""
        if self._native is not None:
            self._native.close()
        for server in self._servers:
            server.end()
        self._servers.clear()
        if self._keeper is not None:
            self._keeper.close()
        if self._master is not None:
            self._master.close()

    def _full(self) -> NoRoom | None:
        """Return what to raise if no server has room."""
        servers: list[dict[str, Any]] = []
        with suppress(ShuffleError, OSError):
            servers = self.state(timeout=_STATE)["servers"]
        if not servers or any(server["weight"] for server in servers):
            return None
        names = ", ".join(sorted(server["name"] for server in servers))
        return NoRoom(
            f"no shuffle server has room ({names}): add servers, or make room on their disks"
        )

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


class Shuffle:
    """A shuffle of a :class:`Service`.

    It is written map by map, then committed, then read partition by partition. A process that has not
    registered it gets it from :meth:`Service.attach`.

    Attributes
    ----------
    number
        Its number in the service, never used again.
    generation
        What the last commit returned; readers in other processes need it. ``None`` before a commit.
    compression
        How its rows are compressed.
    """

    def __init__(
        self,
        service: Service,
        number: int,
        name: str,
        maps: int,
        partitions: int,
        kind: Kind,
        compression: str = NONE,
    ) -> None:
        self.service = service
        self.number = number
        self.name = name
        self.maps = maps
        self.partitions = partitions
        self.kind = kind
        self.compression = compression
        self.generation: int | None = None

    def writer(self, map: int, *, again: bool = False) -> Writer:  # noqa: A002
        """Return a writer of a map. With ``again`` the map may have run before: only what is not there is pushed."""
        return Writer(self, map, again=again)

    def write(
        self,
        map: int,  # noqa: A002
        rows: Any,
        partitions: Any = None,
        *,
        hashes: Any = None,
        again: bool = False,
        timeout: float | None = None,
    ) -> Receipt:
        """Write all rows of a map, and wait until all copies have them."""
        writer = self.writer(map, again=again)
        writer.write(rows, partitions, hashes=hashes)
        return writer.finish(timeout=timeout)

    def commit(self, receipts: Iterable[Receipt], *, timeout: float | None = None) -> int:
        """Have the servers compare their rows with the receipts of all maps, one for each.

        Which attempt of a map counts is the caller's choice: that of the receipt. Rows of other attempts are
        dropped.

        Returns
        -------
        int
            The generation, which :class:`Reader` takes.

        Raises
        ------
        RowsLost
            All copies of some rows are lost: write its ``maps`` again, and commit with their new receipts.
        DamagedRows
            Rows are not those that were written, although they were made again.
        ValueError
            A map has no receipt, or two.
        TimeoutError
            The servers have not answered in time.
        """
        datas = [receipt.data for receipt in receipts]
        with self._named("commit"):
            try:
                self.generation = self._commit(datas, self.service._limit(timeout))
            except Again as error:
                raise self._lost(str(error)) from None
        return self.generation

    def reader(self, generation: int | None = None) -> Reader:
        """Return a reader of what was committed, here or, with ``generation``, elsewhere."""
        generation = self.generation if generation is None else generation
        if generation is None:
            raise ShuffleError(f"shuffle {self.name} is not committed: commit the receipts first")
        return Reader(self, generation)

    def lost(self, *, timeout: float | None = None) -> list[int]:
        """Return the maps that must run again, since all copies of some of their rows are lost."""
        return self._again(timeout)[0]

    def close(self, *, timeout: float | None = None) -> None:
        """End the shuffle: the servers drop its rows."""
        with self._named("end"):
            self.service._native.finish(self.number, self.service._limit(timeout))

    # For a `worker` the calling thread runs a task of it: they end with that, by ``Reschedule``.

    def _push(
        self,
        number: int,
        rows: _core.Rows,
        again: bool,
        limit: float,
        worker: _core.Worker | None = None,
    ) -> Receipt:
        """Push the rows of a map; push again what is lost meanwhile."""
        compression = None if self.compression == NONE else self.compression
        for left, is_again in attempts(limit):
            try:
                data, count, nbytes = self.service._native.transfer(
                    self.number, number, rows, again or is_again, left, worker, compression
                )
            except Again:
                # It raises if the shuffle has ended.
                self._again(left)
                continue
            return Receipt(number, count, nbytes, data)
        raise AssertionError("attempts end with an error")

    def _commit(
        self, receipts: Sequence[bytes], limit: float, worker: _core.Worker | None = None
    ) -> int:
        generation: int = self.service._native.commit(
            self.number, self.maps, receipts, limit, worker
        )
        return generation

    def _pieces(
        self,
        generation: int,
        partition: int,
        width: int,
        maps: tuple[int, int] | None,
        limit: float,
        worker: _core.Worker | None = None,
    ) -> list[tuple[int, int, _core.RowMemory]]:
        """Read the pieces of a partition; read again what is lost meanwhile, unless no copy is left."""
        for left, _ in attempts(limit):
            try:
                pieces: list[tuple[int, int, _core.RowMemory]] = self.service._native.read(
                    self.number, generation, partition, width, maps, left, worker
                )
            except Again as error:
                if self.lost(timeout=left):
                    raise self._lost(str(error)) from None
                continue
            return pieces
        raise AssertionError("attempts end with an error")

    def _again(self, timeout: float | None) -> tuple[list[int], bool]:
        with self._named("state"):
            said = self.service._native.about(self.number, self.service._limit(timeout))
        ranges, differs = said[5], said[6]
        maps = [at for start, end in ranges for at in range(start, min(end, self.maps))]
        return maps, differs

    def _lost(self, reason: str) -> RowsLost:
        maps, differs = self._again(None)
        return RowsLost(
            f"shuffle {self.name}: {reason}. Write maps {_ranges(maps)} again, and commit",
            maps,
            differs,
        )

    def _named(self, what: str) -> _Named:
        return _Named(f"shuffle {self.name}, {what}")

    def __enter__(self) -> Shuffle:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ShuffleError, OSError):
            self.close()

    def __repr__(self) -> str:
        return (
            f"<Shuffle {self.name}: {self.maps} maps, {self.partitions} partitions, "
            f"number {self.number}>"
        )


class Writer:
    """Writes the rows of one run of a map.

    Rows are kept here until :meth:`finish`, which sorts them by partition into one piece of memory and
    pushes them. So a map's rows must fit into memory twice; how many partitions there are does not matter.
    """

    def __init__(self, shuffle: Shuffle, map: int, *, again: bool = False) -> None:  # noqa: A002
        if not 0 <= map < shuffle.maps:
            raise ValueError(f"map {map}: shuffle {shuffle.name} has maps 0 to {shuffle.maps - 1}")
        self.shuffle = shuffle
        self.map = map
        self.again = again
        self._chunks: list[Any] = []
        self._partitions: list[Any] = []

    def write(self, rows: Any, partitions: Any = None, *, hashes: Any = None) -> None:
        """Add rows, each with its partition, or with a hash of its key that says it (modulo).

        Parameters
        ----------
        rows
            What the shuffle's rows are: a sequence of ``bytes`` or a pair of offsets and data, a NumPy array,
            or a ``pyarrow.RecordBatch``. It must not change before :meth:`finish`.
        partitions
            Integers, or one for all rows.
        hashes
            Unsigned integers.
        """
        if (partitions is None) == (hashes is None):
            raise TypeError("give partitions= or hashes=, and not both")
        count = self.shuffle.kind.count(rows)
        if hashes is not None:
            numbers = np.asarray(hashes, np.uint64) % np.uint64(self.shuffle.partitions)
            numbers = numbers.astype(np.uint32)
        elif np.ndim(partitions) == 0:
            numbers = np.full(count, partitions, np.int64)
        else:
            numbers = np.asarray(partitions)
        if len(numbers) != count:
            raise ValueError(f"{count} rows have {len(numbers)} partitions")
        self._chunks.append(rows)
        self._partitions.append(numbers)

    def finish(self, *, timeout: float | None = None) -> Receipt:
        """Push the rows, and wait until all copies have them in memory.

        Servers that are full make this wait. What is lost meanwhile is pushed again.

        Raises
        ------
        TimeoutError
            Not all servers have the rows in time.
        NoRoom
            A server has no room, neither in memory nor on its disks; or no server has any.
        ShuffleError
            The shuffle has ended.
        ValueError
            A partition does not exist.
        """
        shuffle = self.shuffle
        numbers = self._partitions
        limit = shuffle.service._limit(timeout)
        with shuffle._named(f"map {self.map}"):
            joined = numbers[0] if len(numbers) == 1 else np.concatenate(numbers or [_NOTHING])
            joined = np.ascontiguousarray(joined)
            fields = shuffle.kind.fields(shuffle.kind.joined(self._chunks))
            rows = _core.Rows(joined, shuffle.partitions, "partitions", fields)
            try:
                receipt = shuffle._push(self.map, rows, self.again, limit)
            except TimeoutError:
                if (full := shuffle.service._full()) is not None:
                    raise full from None
                raise
        self._chunks.clear()
        self._partitions.clear()
        return receipt


class Reader:
    """Reads partitions of a shuffle that was committed."""

    def __init__(self, shuffle: Shuffle, generation: int) -> None:
        self.shuffle = shuffle
        self.generation = generation

    def read(
        self,
        partition: int,
        maps: tuple[int, int] | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Return the rows of a partition, in the order of their maps.

        All rows of the receipts that were committed come, each one once and as it was written, or an error.

        Parameters
        ----------
        maps
            The first map, and the one after the last, where several readers share a partition.

        Returns
        -------
        list of bytes, numpy.ndarray or pyarrow.RecordBatch
            As the shuffle's rows are.

        Raises
        ------
        RowsLost
            All copies of some rows are lost.
        DamagedRows
            No copy has the rows as they were written. The message names server and partition.
        TimeoutError
            They have not come in time.
        """
        shuffle = self.shuffle
        if not 0 <= partition < shuffle.partitions:
            raise ValueError(
                f"partition {partition}: shuffle {shuffle.name} has {shuffle.partitions}, from 0 on"
            )
        with shuffle._named(f"partition {partition}"):
            limit = shuffle.service._limit(timeout)
            width = shuffle.kind.width
            pieces = shuffle._pieces(self.generation, partition, width, maps, limit)
            return shuffle.kind.assemble(pieces)

    def __iter__(self) -> Iterator[Any]:
        """Read all partitions, one after another."""
        return (self.read(partition) for partition in range(self.shuffle.partitions))


class _Named:
    """Makes errors begin with what they are about."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, (RowsLost, Again)) or not error.args:
            return
        text = str(error)
        is_ours = isinstance(
            error, (ShuffleError, TimeoutError, ConnectionError, ValueError, TypeError)
        )
        if is_ours and self._what not in text:
            error.args = (f"{self._what}: {text}",)


def attempts(limit: float) -> Iterator[tuple[float, bool]]:
    """Yield the seconds that are left, and whether this is another attempt, until the time has passed."""
    until = time.monotonic() + limit
    pause, is_again = _FIRST_PAUSE, False
    while True:
        left = until - time.monotonic()
        if left <= 0 and is_again:
            raise TimeoutError(
                f"not done within {limit:g} s: servers were lost, or cannot be reached from here"
            )
        yield max(left, 0.0), is_again
        time.sleep(min(pause, max(until - time.monotonic(), 0.0)))
        pause, is_again = min(2 * pause, _LONGEST_PAUSE), True


def _ranges(maps: Sequence[int]) -> str:
    """Numbers for people, such as ``0-3, 7``."""
    if not maps:
        return "that are lost"
    parts: list[list[int]] = []
    for number in maps:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    shown = ["-".join(map(str, part)) for part in parts[:8]]
    return ", ".join(shown) + (" and more" if len(parts) > 8 else "")
