"""Reads the partitions of a shuffle of the stand-alone service."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from treadle.common._numbers import integer

if TYPE_CHECKING:
    from treadle.shuffle.service._shuffle import Shuffle

__all__ = ["Reader"]


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
        with shuffle._named("reader"):
            partition = integer("partition", partition, 0, shuffle.partitions - 1)
            maps = None if maps is None else self._range(maps)
        with shuffle._named(f"partition {partition}"):
            limit = shuffle.service._limit(timeout)
            width = shuffle.kind.width
            pieces = shuffle._pieces(self.generation, partition, width, maps, limit)
            return shuffle.kind.assemble(pieces)

    def read_all(
        self,
        first: int,
        end: int,
        maps: tuple[int, int] | None = None,
        *,
        timeout: float | None = None,
    ) -> list[Any]:
        """Return the rows of each partition from ``first`` up to ``end``, which are read together.

        Small partitions take less time than with a call of :meth:`read` for each. All are in memory at once. The
        arguments, and what is raised, are those of :meth:`read`.
        """
        shuffle = self.shuffle
        with shuffle._named("reader"):
            first = integer("first", first, 0, shuffle.partitions)
            end = integer("end", end, first, shuffle.partitions)
            maps = None if maps is None else self._range(maps)
        with shuffle._named(f"partitions {first} to {end}"):
            limit = shuffle.service._limit(timeout)
            width = shuffle.kind.width
            found = shuffle._native.read_all(self.generation, first, end, width, maps, limit)
            return [shuffle.kind.assemble(pieces) for pieces in found]

    def _range(self, maps: Any) -> tuple[int, int]:
        try:
            first, end = map(operator.index, maps)
        except (TypeError, ValueError):
            first, end = -1, -1
        if not 0 <= first <= end <= self.shuffle.maps:
            raise ValueError(
                f"maps={maps!r:.100}: there are {self.shuffle.maps}; give the first one, and the one after "
                "the last"
            )
        return first, end

    def __iter__(self) -> Iterator[Any]:
        """Read all partitions, one after another."""
        return (self.read(partition) for partition in range(self.shuffle.partitions))
