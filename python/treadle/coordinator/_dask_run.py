"""What a client of Dask reports of its run: its workers, its tasks by name, and its shuffles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, get_type_hints

__all__ = ["MOST_GROUPS", "DaskRun", "Shuffle", "TaskGroup"]

# Groups and shuffles that a report has: those that took longest.
MOST_GROUPS = 100
_LONGEST_NAME = 200
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class TaskGroup:
    """Tasks of one name. Times are seconds, sizes are bytes of results."""

    name: str
    tasks: int
    seconds: float
    """Of all of them together."""
    median_seconds: float
    median_bytes: int
    largest_bytes: int


@dataclass(frozen=True)
class Shuffle:
    """One that went by P2P or the service."""

    kind: str
    partitions: int
    bytes: int
    spilled_bytes: int
    seconds: float
    largest_bytes: int
    """Of one partition."""
    push_seconds: float = 0.0
    """For which all tasks together waited for workers or servers to take rows."""
    compare_seconds: float = 0.0
    """For the barrier."""
    read_seconds: float = 0.0
    """For rows to read."""


@dataclass(frozen=True)
class DaskRun:
    """A run of a Dask job, as its client knows it at its end."""

    workers: int = 0
    threads: int = 0
    """Of each worker; of the one that has most."""
    memory_limit: int = 0
    """Bytes of each worker; of the one that has least. 0: it has no limit."""
    peak_memory: int = 0
    """Bytes that one worker was seen with. The client looks every few seconds, at five workers."""
    spilled_bytes: int = 0
    """Of values of all workers, at most at one time when it looked."""
    lost_workers: int = 0
    busy_seconds: float = 0.0
    """For which the busiest worker ran any task."""
    executing: float = 0.0
    """Tasks that it ran at once then, on average."""
    processors: float = 0.0
    """That its process used then, with all of its threads."""
    seconds: float = 0.0
    groups: tuple[TaskGroup, ...] = ()
    shuffles: tuple[Shuffle, ...] = ()
    left_out: int = 0
    """Tasks that are in no group: the earliest of very many."""

    @property
    def tasks(self) -> int:
        """Tasks of all groups."""
        return sum(one.tasks for one in self.groups)

    @property
    def task_seconds(self) -> float:
        """Seconds of all tasks together."""
        return sum(one.seconds for one in self.groups)

    @classmethod
    def of(cls, values: Any) -> DaskRun:
        """Return the run of a dictionary.

        Raises
        ------
        ValueError
            A field is unknown, or has a value that it cannot have.
        """
        table = dict(_table(values, "a run"))
        lists: dict[str, Any] = {}
        for name, kind in (("groups", TaskGroup), ("shuffles", Shuffle)):
            found = table.pop(name, ())
            if not isinstance(found, (list, tuple)) or len(found) > MOST_GROUPS:
                raise ValueError(f"{name} of a run must be a list of at most {MOST_GROUPS} tables")
            lists[name] = tuple(_made(kind, one, f"one of {name}") for one in found)
        return _made(cls, table, "a run", lists)


def _table(values: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} must be a table")
    return values


def _made(kind: type[_Kind], values: Any, what: str, more: Mapping[str, Any] = {}) -> _Kind:
    hints = get_type_hints(kind)
    found: dict[str, Any] = dict(more)
    for name, value in _table(values, what).items():
        wanted = hints.get(name)
        if wanted is str:
            if not isinstance(value, str):
                raise ValueError(f"{name} of {what} must be text")
            found[name] = (
                value[:_LONGEST_NAME].replace("\0", "").encode("utf-8", "replace").decode()
            )
        elif wanted in (int, float):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value < 2**62:
                raise ValueError(f"{name} of {what} must be a number of at least 0")
            found[name] = wanted(value)
        else:
            raise ValueError(f"{what} has no {name}")
    needed = [one.name for one in fields(kind) if one.default is one.default_factory is MISSING]  # type: ignore[arg-type]
    if missing := [name for name in needed if name not in found]:
        raise ValueError(f"{what} must have {', '.join(missing)}")
    return kind(**found)
