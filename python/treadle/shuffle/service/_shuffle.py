"""A shuffle of the stand-alone service: written, committed, and read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from treadle.common._numbers import integer
from treadle.shuffle._compression import NONE
from treadle.shuffle.service._errors import MapsFailed, RowsLost, ShuffleError
from treadle.shuffle.service._reader import Reader
from treadle.shuffle.service._row_kinds import Kind
from treadle.shuffle.service._writer import Receipt, Writer

if TYPE_CHECKING:
    from treadle import _core
    from treadle.shuffle.service._service import Service

__all__ = ["Shuffle"]


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
        *,
        member: _core.ShuffleMember | None = None,
        committed: int = 0,
    ) -> None:
        self.service = service
        # The connection to the master that has it.
        member = service._native if member is None else member
        self._native: _core.ServiceShuffle = member.shuffle(number, name, maps, committed)
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

    def write_all(
        self,
        maps: Iterable[tuple[int, Any, Any]],
        *,
        again: bool = False,
        timeout: float | None = None,
    ) -> list[Receipt]:
        """Write the rows of several maps together, and wait until all copies have them.

        Small maps take less time than with a call of :meth:`write` for each. The rows of all are in memory at once.

        Parameters
        ----------
        maps
            For each map its number, its rows, and their partitions.

        Returns
        -------
        list of Receipt
            In the order of the maps.

        Raises
        ------
        MapsFailed
            Some maps were not written; it has the receipts of the others.
        TypeError, ValueError
            As :meth:`Writer.write`. Nothing is written then.
        """
        limit = self.service._limit(timeout)
        rows: dict[int, _core.Rows] = {}
        for number, values, partitions in maps:
            writer = self.writer(number)
            if writer.map in rows:
                raise ValueError(f"shuffle {self.name}: map {writer.map} is there twice")
            writer.write(values, partitions)
            rows[writer.map] = writer._joined()
        compression = None if self.compression == NONE else self.compression
        outcomes = self._native.transfer_all(list(rows.items()), again, limit, compression)
        receipts: dict[int, Receipt] = {}
        errors: dict[int, Exception] = {}
        for number, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, Exception):
                errors[number] = outcome
            else:
                data, count, nbytes = outcome
                receipts[number] = Receipt(number, count, nbytes, data)
        if errors:
            number, error = next(iter(errors.items()))
            raise MapsFailed(
                f"shuffle {self.name}: {len(errors)} of {len(rows)} maps were not written, such as map "
                f"{number}: {error}. The receipts of the others are in `receipts`",
                receipts,
                errors,
            ) from error
        return list(receipts.values())

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
            self.generation = self._commit(datas, self.service._limit(timeout))
        return self.generation

    def reader(self, generation: int | None = None) -> Reader:
        """Return a reader of what was committed, here or, with ``generation``, elsewhere."""
        generation = self.generation if generation is None else generation
        if generation is None:
            raise ShuffleError(f"shuffle {self.name} is not committed: commit the receipts first")
        generation = integer("generation", generation, 1, 2**32 - 1)
        return Reader(self, generation)

    def lost(self, *, timeout: float | None = None) -> list[int]:
        """Return the maps that must run again, since all copies of some of their rows are lost."""
        return self._native.lost(self.service._limit(timeout))

    def close(self, *, timeout: float | None = None) -> None:
        """End the shuffle: the servers drop its rows."""
        self._native.finish(self.service._limit(timeout))

    # For a `worker` the calling thread runs a task of it: they end with that, by ``Reschedule``.

    def _push(
        self,
        number: int,
        rows: _core.Rows,
        again: bool,
        limit: float,
        worker: _core.Worker | None = None,
    ) -> Receipt:
        compression = None if self.compression == NONE else self.compression
        data, count, nbytes = self._native.transfer(number, rows, again, limit, worker, compression)
        return Receipt(number, count, nbytes, data)

    def _commit(
        self, receipts: Sequence[bytes], limit: float, worker: _core.Worker | None = None
    ) -> int:
        return self._native.commit(receipts, limit, worker)

    def _pieces(
        self,
        generation: int,
        partition: int,
        width: int,
        maps: tuple[int, int] | None,
        limit: float,
        worker: _core.Worker | None = None,
    ) -> list[tuple[int, int, _core.RowMemory]]:
        return self._native.read(generation, partition, width, maps, limit, worker)

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
        if error is None or isinstance(error, RowsLost) or not error.args:
            return
        text = str(error)
        is_ours = isinstance(
            error, (ShuffleError, TimeoutError, ConnectionError, ValueError, TypeError)
        )
        if is_ours and self._what not in text:
            error.args = (f"{self._what}: {text}",)
