"""Ids of messages, which are made when somebody asks for them.

ipyparallel has an id for each engine that a call goes to; a call costs the same here, however many
engines it has.
"""

from __future__ import annotations

from collections import UserList, deque
from collections.abc import Iterable, Iterator, MutableSet
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.views._cast import Cast, Names

__all__ = ["History", "Outstanding"]


class History(UserList[str]):
    """Ids of messages, in the order in which they were sent."""

    _made: list[str]
    _later: deque[Names]

    @property
    def data(self) -> list[str]:
        """The ids."""
        while self._later:
            self._made.extend(self._later.popleft())
        return self._made

    @data.setter
    def data(self, names: list[str]) -> None:
        self._made, self._later = names, deque()

    def __copy__(self) -> History:
        return self.copy()

    def add(self, cast: Cast) -> None:
        """Add the messages of a cast."""
        self._later.append(cast.names)


class Outstanding(MutableSet[str]):
    """Ids of messages whose results have not come.

    Parameters
    ----------
    casts
        By number: the messages of those that wait for engines are outstanding.
    """

    def __init__(self, casts: dict[int, Cast] | None = None) -> None:
        self._others: set[str] = set()
        self._casts = {} if casts is None else casts

    def watch(self, cast: Cast) -> None:
        """Have the messages of a cast be outstanding until they are answered."""
        self._casts[cast.number] = cast

    def sweep(self) -> None:
        """Forget casts that are finished."""
        for number, cast in list(self._casts.items()):
            if cast.finished:
                del self._casts[number]

    def _now(self) -> set[str]:
        casts = list(self._casts.values())
        return self._others.union(*(map(cast.name, cast.waiting()) for cast in casts))

    @classmethod
    def _from_iterable(cls, names: Iterable[Any]) -> set[Any]:
        # What operators return.
        return set(names)

    def __contains__(self, name: object) -> bool:
        return name in self._others or any(cast.awaits(name) for cast in list(self._casts.values()))

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __repr__(self) -> str:
        return repr(self._now())

    def add(self, name: str) -> None:
        """Add a message that is of no cast."""
        self._others.add(name)

    def discard(self, name: str) -> None:
        """Remove a message that is of no cast."""
        self._others.discard(name)

    def difference(self, *others: Iterable[Any]) -> set[str]:
        """Return those that are in none of the others."""
        return self._now().difference(*others)

    def intersection(self, *others: Iterable[Any]) -> set[str]:
        """Return those that are in all of the others."""
        return self._now().intersection(*others)
