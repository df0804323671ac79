"""A shuffle of the stand-alone service: written, committed, read, and tried again where something is lost."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from treadle.common._numbers import integer
from treadle.shuffle._compression import NONE
from treadle.shuffle.service._errors import Again, RowsLost, ShuffleError, Superseded
from treadle.shuffle.service._reader import Reader
from treadle.shuffle.service._row_kinds import Kind
from treadle.shuffle.service._writer import Receipt, Writer

if TYPE_CHECKING:
    from treadle import _core
    from treadle.shuffle.service._service import Service

__all__ = ["Shuffle"]

# Seconds between two attempts after something was lost: the first pause, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


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
        # The connection to the master that has it.
        self._native: Any = service._native
        self.number = number
        self.name = name
        self.maps = maps
        self.partitions = partitions
        self.kind = kind
        self.compression = compression
        self.generation: int | None = None
        # The generation that was committed last, as far as this object knows. 0: none.
        self._committed = 0

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
            self.generation = self._commit(datas, self.service._limit(timeout))
            self._committed = self.generation
        return self.generation

    def reader(self, generation: int | None = None) -> Reader:
        """Return a reader of what was committed, here or, with ``generation``, elsewhere."""
        generation = self.generation if generation is None else generation
        if generation is None:
            raise self._uncommitted()
        generation = integer("generation", generation, 1, 2**32 - 1)
        return Reader(self, generation)

    def lost(self, *, timeout: float | None = None) -> list[int]:
        """Return the maps that must run again, since all copies of some of their rows are lost."""
        return self._again(timeout)[0]

    def close(self, *, timeout: float | None = None) -> None:
        """End the shuffle: the servers drop its rows."""
        with self._named("end"):
            self._native.finish(self.number, self.service._limit(timeout))

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
        for left, is_again in _attempts(limit):
            try:
                data, count, nbytes = self._native.transfer(
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
        """Compare; again while copies are lost, and others are there."""
        for left, _ in _attempts(limit):
            try:
                generation: int = self._native.commit(
                    self.number, self.maps, receipts, left, worker
                )
            except Again as error:
                self._check_lost(error, None, left)
                continue
            return generation
        raise AssertionError("attempts end with an error")

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
        for left, _ in _attempts(limit):
            if worker is None and generation > self._committed:
                self._check_committed(generation, left)
            try:
                pieces: list[tuple[int, int, _core.RowMemory]] = self._native.read(
                    self.number, generation, partition, width, maps, left, worker
                )
            except Superseded as error:
                self._check_lost(error, generation, left)
                committed = self._again(left)[3]
                if committed == generation:
                    # Maps have run again, and nobody has committed since.
                    raise Superseded(
                        f"rows of generation {generation} were lost, and their maps have run again since: commit, "
                        "and take a new reader, with the generation that it returns"
                    ) from None
                later = "" if committed is None else f", in generation {committed}"
                raise Superseded(
                    f"it was committed again{later}, after generation {generation}: take a new reader, with the "
                    "generation that the later commit returned"
                ) from None
            except Again as error:
                self._check_lost(error, generation, left)
                continue
            return pieces
        raise AssertionError("attempts end with an error")

    def _check_committed(self, generation: int, timeout: float) -> None:
        """Raise unless a generation was committed, or a later one."""
        maps, _, _, committed = self._again(timeout)
        if committed is None:
            return
        self._committed = max(self._committed, committed)
        if generation <= committed:
            return
        if maps:
            raise RowsLost(
                f"shuffle {self.name} is not committed in generation {generation}, and rows were lost. Write maps "
                f"{_ranges(maps)} again, and commit",
                maps,
            )
        if committed == 0:
            raise self._uncommitted()
        raise ShuffleError(
            f"it was not committed in generation {generation}: the last commit returned {committed}"
        )

    def _uncommitted(self) -> ShuffleError:
        return ShuffleError(f"shuffle {self.name} is not committed: commit the receipts first")

    def _again(self, timeout: float | None) -> tuple[list[int], bool, int, int | None]:
        """Return the maps that must run again, and whether what was read is not valid either.

        The first answer to that is for whoever commits: whether all began anew since the last commit. The
        second is for readers: the generation in which it did. Of an earlier one nothing is valid. The last is the
        generation that was committed last; 0: none. A master of the release before does not say it.
        """
        with self._named("state"):
            about = self._native.about(self.number, self.service._limit(timeout))
        restarted = about.restarted
        if about.differs and not restarted:
            # A master of the release before does not say in which: nothing that was read is valid.
            restarted = sys.maxsize
        maps = [at for start, end in about.again for at in range(start, min(end, self.maps))]
        return maps, about.differs, restarted, about.committed

    def _check_lost(self, error: Exception, generation: int | None, timeout: float) -> None:
        """Raise RowsLost if maps must run again. ``generation`` is that of a reader; None: of a commit."""
        maps, differs, restarted, _ = self._again(timeout)
        if maps:
            raise RowsLost(
                f"shuffle {self.name}: {error}. Write maps {_ranges(maps)} again, and commit",
                maps,
                differs if generation is None else restarted > generation,
            ) from None

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
        if error is None or isinstance(error, (RowsLost, Again)) or not error.args:
            return
        text = str(error)
        is_ours = isinstance(
            error, (ShuffleError, TimeoutError, ConnectionError, ValueError, TypeError)
        )
        if is_ours and self._what not in text:
            error.args = (f"{self._what}: {text}",)


def _attempts(limit: float) -> Iterator[tuple[float, bool]]:
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
