"""What users set under names at the scheduler (``Client.set_metadata``)."""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable
from typing import Any

from dask.typing import no_default

__all__ = ["Metadata"]


class Metadata:
    """Values in nested dictionaries. What was set for a task goes with it.

    Attributes
    ----------
    values
        The outermost dictionary (``Scheduler.task_metadata``).
    """

    def __init__(self, tasks: Container[Hashable]) -> None:
        self._tasks = tasks
        self.values: dict[Hashable, Any] = {}
        # The keys of those that were tasks when it was set.
        self._of_tasks: set[Hashable] = set()

    def put(self, keys: Collection[Hashable], value: Any = None) -> None:
        """Set a value in nested dictionaries, which are made on the way."""
        *path, last = keys
        if not path and last in self._tasks:
            self._of_tasks.add(last)
        metadata = self.values
        for key in path:
            inner = metadata.get(key)
            if not isinstance(inner, dict):
                inner = metadata[key] = {}
            metadata = inner
        metadata[last] = value

    def get(self, keys: Collection[Hashable], default: Any = no_default) -> Any:
        """Return a value from nested dictionaries, or the default, or raise ``KeyError``."""
        self._forget(keys)
        metadata: Any = self.values
        try:
            for key in keys:
                metadata = metadata[key]
        except KeyError:
            if default is no_default or default == no_default:
                raise
            return default
        return metadata

    def _forget(self, keys: Collection[Hashable]) -> None:
        """What was set for a task goes with it, as soon as somebody looks."""
        first = next(iter(keys), None)
        if first in self._of_tasks and first not in self._tasks:
            self._of_tasks.discard(first)
            self.values.pop(first, None)
