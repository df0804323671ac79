"""The last casts of a client, for those who ask for their results by id."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.views._cast import Cast

__all__ = ["Finished"]

_MOST = 10_000
_BYTES = 64 << 20


class Finished:
    """Casts that are finished, the oldest of which give way."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, Cast] = OrderedDict()
        self._bytes = 0

    def add(self, cast: Cast) -> None:
        """Keep a cast. To do so once more changes nothing."""
        if cast.size > _BYTES or cast.number in self._kept:
            return
        self._kept[cast.number] = cast
        self._bytes += cast.size
        while self._bytes > _BYTES or len(self._kept) > _MOST:
            self.forget(next(iter(self._kept)))

    def get(self, number: int) -> Cast | None:
        """Return a cast by its number, if it is kept."""
        return self._kept.get(number)

    def forget(self, number: int | None = None) -> None:
        """Forget a cast, or all."""
        if number is None:
            self._kept.clear()
            self._bytes = 0
            return
        cast = self._kept.pop(number, None)
        if cast is not None:
            self._bytes -= cast.size
