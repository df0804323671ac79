"""``Worker.data``: the values of tasks that are at a worker, and what users put beside them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from treadle import _core
from treadle.worker._rpc import ask_scheduler

if TYPE_CHECKING:
    from treadle.worker._native import Native

__all__ = ["Data"]

# Seconds that the scheduler has to answer.
_PATIENCE = 5.0


class Data(MutableMapping[Hashable, Any]):
    """The values of the worker, by key. Reading one that is on disk loads it.

    Small values that the worker made, or that were sent to it, are kept by the scheduler: they are
    asked for there, each time. What users put here stays at the worker, in memory, until it is deleted,
    and the scheduler knows nothing of it. The values of tasks can only be read: the scheduler counts on
    them.
    """

    def __init__(self, native: Native) -> None:
        self._native = native
        #: What users have put here.
        self.own: dict[Hashable, Any] = {}

    def _of_tasks(self) -> dict[Hashable, None]:
        address = self._native.address
        keys = dict.fromkeys(self._native.keys())
        try:
            held = ask_scheduler(self._native, "has_what", {"workers": [address]}, _PATIENCE)
        except OSError:
            # It has ended, or is about to.
            return keys
        return keys | dict.fromkeys(held.get(address, ()))

    def __getitem__(self, key: Hashable) -> Any:
        try:
            return self._native.get(key)
        except KeyError:
            if key in self.own:
                return self.own[key]
            if key not in self._of_tasks():
                raise
        asked = {"keys": [key]}
        small = ask_scheduler(self._native, "small_values", asked, _PATIENCE)
        if key in small:
            return _core.decode_value(small[key])
        objects = ask_scheduler(self._native, "objects", asked, _PATIENCE)
        if key not in objects:
            # It was released meanwhile.
            raise KeyError(key)
        try:
            return self._native.get_object(objects[key])
        except KeyError:
            raise KeyError(key) from None

    def __setitem__(self, key: Hashable, value: Any) -> None:
        if key not in self.own and self._is_of_a_task(key):
            raise _refusal(key, "set")
        self.own[key] = value

    def __delitem__(self, key: Hashable) -> None:
        try:
            del self.own[key]
        except KeyError:
            if self._is_of_a_task(key):
                raise _refusal(key, "deleted") from None
            raise

    def popitem(self) -> tuple[Hashable, Any]:
        """Remove what a user put here last, and return it with its key."""
        return self.own.popitem()

    def clear(self) -> None:
        """Remove what users have put here, if there is nothing else.

        Raises
        ------
        RuntimeError
            There are values of tasks.
        """
        for key in self._of_tasks():
            raise _refusal(key, "deleted")
        self.own.clear()

    def _is_of_a_task(self, key: Hashable) -> bool:
        return self._native.has(key) or key in self._native.tasks() or key in self._of_tasks()

    def __contains__(self, key: object) -> bool:
        return self._native.has(key) or key in self.own or key in self._of_tasks()

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._of_tasks() | dict.fromkeys(self.own))

    def __len__(self) -> int:
        return len(self._of_tasks() | dict.fromkeys(self.own))


def _refusal(key: Hashable, done: str) -> RuntimeError:
    return RuntimeError(
        f"Worker.data[{key!r}] cannot be {done}: it is the value of a task, which the scheduler counts on. "
        "Release its futures, or use client.cancel, and it is deleted; put other values under other keys"
    )
