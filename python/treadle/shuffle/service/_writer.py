"""Writes the rows of a map to the stand-alone shuffle service."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from treadle import _core
from treadle.common._numbers import integer
from treadle.shuffle.service._user_rows import integers

if TYPE_CHECKING:
    from treadle.shuffle.service._shuffle import Shuffle

__all__ = ["Receipt", "Writer"]

_NOTHING = np.empty(0, np.uint32)


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


class Writer:
    """Writes the rows of one run of a map.

    Rows are kept here until :meth:`finish`, which sorts them by partition into one piece of memory and
    pushes them. So a map's rows must fit into memory several times; how many partitions there are does not
    matter. Threads may share a writer. The order of their rows is that of their calls.
    """

    def __init__(self, shuffle: Shuffle, map: int, *, again: bool = False) -> None:  # noqa: A002
        self.shuffle = shuffle
        with shuffle._named("writer"):
            self.map = integer("map", map, 0, shuffle.maps - 1)
        self.again = again
        # It guards the chunks, and whether they are taken.
        self._lock = threading.Lock()
        self._chunks: list[tuple[Any, np.ndarray[Any, Any]]] = []
        self._is_taken = False
        # One thread pushes.
        self._pushing = threading.Lock()
        self._rows: _core.Rows | None = None
        self._receipt: Receipt | None = None

    def write(self, rows: Any, partitions: Any = None, *, hashes: Any = None) -> None:
        """Add rows, each with its partition, or with a hash of its key that says it (modulo).

        Parameters
        ----------
        rows
            What the shuffle's rows are: a sequence of ``bytes`` or a pair of offsets and data, a NumPy array,
            or a ``pyarrow.RecordBatch``. It must not change before :meth:`finish` has returned.
        partitions
            Integers, or one for all rows. They are copied.
        hashes
            Unsigned integers.

        Raises
        ------
        TypeError, ValueError
            Rows are not those of the shuffle, or carry what it does not, such as a mask or another schema's
            metadata; a partition does not exist. Nothing is added then.
        RuntimeError
            :meth:`finish` was called already, whether it has returned, has raised, or still pushes.
        """
        self._refuse_if_taken()
        if (partitions is None) == (hashes is None):
            raise TypeError("give partitions= or hashes=, and not both")
        with self.shuffle._named(f"map {self.map}"):
            chunk, numbers = self._checked(rows, partitions, hashes)
        with self._lock:
            # Another thread may have begun to finish meanwhile.
            self._refuse_if_taken()
            self._chunks.append((chunk, numbers))

    def _checked(self, rows: Any, partitions: Any, hashes: Any) -> tuple[Any, np.ndarray[Any, Any]]:
        """Return rows as a chunk, and the partition of each."""
        kind, last = self.shuffle.kind, self.shuffle.partitions - 1
        chunk = kind.checked(rows)
        count = kind.count(chunk)
        if hashes is not None:
            numbers = integers(hashes, "hashes")
            if numbers.dtype.kind == "i" and (numbers < 0).any():
                raise ValueError("hashes are unsigned integers, and one of these is below 0")
            numbers = numbers.astype(np.uint64) % np.uint64(last + 1)
        elif not isinstance(partitions, list | tuple) and np.ndim(partitions) == 0:
            numbers = np.repeat(integers([partitions], "partitions"), count)
        else:
            numbers = integers(partitions, "partitions")
        if len(numbers) != count:
            raise ValueError(f"{count} rows have {len(numbers)} partitions")
        if count and (int(numbers.min()) < 0 or int(numbers.max()) > last):
            row = int(np.argmax((numbers < 0) | (numbers > last)))
            raise ValueError(
                f"row {row} has partition {numbers[row]}: there are {last + 1}, from 0 on"
            )
        return chunk, numbers.astype(np.uint32)

    def _refuse_if_taken(self) -> None:
        if self._is_taken:
            raise RuntimeError(
                f"map {self.map} of shuffle {self.shuffle.name} is finished, or finish() was called: make "
                "a new writer, and give it all rows of the map"
            )

    def finish(self, *, timeout: float | None = None) -> Receipt:
        """Push the rows, and wait until all copies have them in memory.

        Servers that are full make this wait. What is lost meanwhile is pushed again. Called again, it
        returns the same receipt, or tries again if it has raised. No rows can be added once it was called.

        Raises
        ------
        TimeoutError
            Not all servers have the rows in time.
        NoRoom
            A server has no room, neither in memory nor on its disks; or no server has any.
        ShuffleError
            The shuffle has ended.
        """
        limit = self.shuffle.service._limit(timeout)
        until = time.monotonic() + limit
        with self._lock:
            self._is_taken = True
        with self.shuffle._named(f"map {self.map}"):
            if not self._pushing.acquire(timeout=min(max(limit, 0.0), threading.TIMEOUT_MAX)):
                raise TimeoutError(f"another thread still pushes the rows after {limit:g} s")
            try:
                if self._receipt is None:
                    self._receipt = self._push(until)
                    self._rows = None
                return self._receipt
            finally:
                self._pushing.release()

    def _push(self, until: float) -> Receipt:
        if self._rows is None:
            self._rows = self._joined()
            # What was joined is enough to try again.
            self._chunks.clear()
        left = max(until - time.monotonic(), 0.0)
        return self.shuffle._push(self.map, self._rows, self.again, left)

    def _joined(self) -> _core.Rows:
        shuffle = self.shuffle
        numbers = [numbers for _, numbers in self._chunks]
        joined = numbers[0] if len(numbers) == 1 else np.concatenate(numbers or [_NOTHING])
        fields = shuffle.kind.fields(shuffle.kind.joined([chunk for chunk, _ in self._chunks]))
        return _core.Rows(joined, shuffle.partitions, "partitions", fields)
