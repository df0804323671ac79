"""Errors of the stand-alone shuffle service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.shuffle.service._writer import Receipt

__all__ = [
    "DamagedRows",
    "Elsewhere",
    "LateAttempt",
    "MapsFailed",
    "NoRoom",
    "RowsLost",
    "ShuffleError",
    "Superseded",
]


class ShuffleError(RuntimeError):
    """The service cannot do what it was asked. The message names the shuffle, and what to do."""


class DamagedRows(ShuffleError):
    """Rows are not those that were written, at no copy of them, and making them again did not help."""


class LateAttempt(ShuffleError):
    """The shuffle was committed with other rows of this map. Those stay, and these are dropped."""


class NoRoom(ShuffleError):
    """A server has no room for rows, neither in memory nor on its disks."""


class Elsewhere(ShuffleError):
    """The application has a master already, at the address that this names."""


class Superseded(ShuffleError):
    """The shuffle was committed again since. Read with the generation of the later commit."""


class RowsLost(ShuffleError):
    """All copies of some rows are lost, so that some maps must run again.

    Write these maps again, and commit with their new receipts. Only the rows that are lost are pushed.

    Attributes
    ----------
    maps
        The numbers of the maps, in ascending order.
    read_again
        Whether a map has returned other rows than before. Then everything that was read before must be
        read again.
    """

    def __init__(self, message: str, maps: Sequence[int] = (), read_again: bool = False) -> None:
        super().__init__(message)
        self.maps = list(maps)
        self.read_again = read_again

    def __reduce__(self) -> tuple[type[RowsLost], tuple[str, list[int], bool]]:
        return type(self), (str(self), self.maps, self.read_again)


class MapsFailed(ShuffleError):
    """Some of the maps that were written together were not. The others are.

    Attributes
    ----------
    receipts
        Those of the maps that were written, by their numbers.
    errors
        What :meth:`Shuffle.write` would have raised for each of the others.
    """

    def __init__(
        self,
        message: str,
        receipts: Mapping[int, Receipt] | None = None,
        errors: Mapping[int, BaseException] | None = None,
    ) -> None:
        super().__init__(message)
        self.receipts = dict(receipts or {})
        self.errors = dict(errors or {})

    def __reduce__(
        self,
    ) -> tuple[type[MapsFailed], tuple[str, dict[int, Receipt], dict[int, BaseException]]]:
        return type(self), (str(self), self.receipts, self.errors)
