"""What the Python side of a worker needs of its native side, ``treadle._core.Worker``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from treadle._core import Rows

__all__ = ["Native"]


class Native(Protocol):
    """A worker's native side. All of it may be used in any thread."""

    @property
    def address(self) -> str:
        """Of its listener, with the scheme."""

    @property
    def id(self) -> int:
        """The number that the scheduler gave it."""

    @property
    def name(self) -> str: ...

    @property
    def ended(self) -> str | None:
        """Why it has ended."""

    @property
    def scheduler(self) -> str:
        """The scheduler's address."""

    @property
    def nthreads(self) -> int: ...

    @property
    def memory_limit(self) -> int:
        """Bytes; 0: none."""

    @property
    def directory(self) -> str: ...

    @property
    def resources(self) -> Mapping[str, float]: ...

    def current_key(self) -> Hashable | None:
        """Return the key of the task that the calling thread runs."""

    def started(self) -> float | None:
        """Return the time (``time.time()``) at which that task began."""

    def secede(self) -> bool:
        """Give that task's slot away, at once; return whether it had one."""

    def rejoin(self) -> None:
        """Wait until that task has a slot again."""

    @property
    def is_recorded(self) -> bool:
        """Whether what it does is recorded, for the scheduler's pages."""

    def told(self, level: int, text: str) -> None:
        """Say that the log has a line more, of a level as ``logging`` has it."""

    def sampled(self, began: int, places: list[tuple[int, str, int]]) -> None:
        """Say where the threads of tasks were since a time (``time.monotonic_ns()``).

        Places have the position of the one that called it, which is before it, or -1, a name, and microseconds.
        """

    def running(self) -> dict[int, Hashable]:
        """Return the keys of all tasks that run, by the identifier of the thread."""

    def observe(self, wanted: bool) -> None:
        """Say whether ``Service.transition`` shall be called for each task."""

    def tell(self) -> None:
        """Call ``Service.transition`` for what native threads have seen of tasks."""

    def hold(self, held: bool) -> None:
        """Have no further task start, and the scheduler send none; or go on."""

    def is_paused(self) -> bool:
        """Whether it starts no tasks: it is held, or there is too little memory."""

    def executed(self) -> int:
        """Return how many tasks have run."""

    def tasks(self) -> dict[Hashable, str]:
        """Return the states of the tasks that are here; see ``Worker.state.tasks``."""

    def keys(self) -> list[Hashable]:
        """Return the keys of the values here."""

    def has(self, key: Hashable) -> bool:
        """Return whether the value is here."""

    def get(self, key: Hashable) -> Any:
        """Return the value, or raise ``KeyError``."""

    def get_object(self, object: int) -> Any:  # noqa: A002
        """Return a value that is here, by the name that the scheduler gives it, or raise ``KeyError``.

        One that has come from elsewhere has no key here.
        """

    def answer(self, id: int, result: Any, error: Any = None) -> None:  # noqa: A002
        """Answer a call."""

    def call(
        self, node: str, operation: str, argument: Any, done: Callable[[Any, Any], None]
    ) -> None:
        """Call another node; ``done`` gets the result and the error, in any thread."""

    def next_cast(self, timeout: float) -> tuple[int, int, list[Any]] | None:
        """Return the next cast's client, number and frames, which are the engine's to write.

        ``None``: none came within ``timeout`` seconds, or the worker has ended.
        """

    def nudge_engine(self) -> None:
        """Have :meth:`next_cast` return ``None``, now or the next time."""

    def casts_waiting(self) -> int:
        """Return how many casts the engine has not begun."""

    def cast_output(self, client: int, number: int, output: Any) -> None:
        """Send what a cast has put out by now."""

    def finish_cast(
        self,
        client: int,
        number: int,
        frames: Sequence[Any],
        times: tuple[float, float] | None = None,
    ) -> None:
        """Send the result of a cast, and when it began and ended (``time.time()``).

        It is the last word about the cast. The next one comes after that.
        """

    def shuffle_transfer(self, shuffle: int, map_index: int, rows: Rows) -> bytes:
        """Push the rows of a map, for the calling thread's task; return the receipt.

        A thread that runs none does it for a task of another engine.

        This method and the next two wait, and raise ``Reschedule`` if the task is to run again,
        ``OutOfDisk``, ``DamagedRows`` or ``RuntimeError``; see :mod:`treadle.shuffle._p2p_errors`.
        """

    def shuffle_commit(self, shuffle: int, maps: int, receipts: Sequence[bytes]) -> int:
        """Have the servers compare what they have with all receipts; return the generation."""

    def shuffle_read(
        self, shuffle: int, generation: int, partition: int, width: int
    ) -> list[tuple[int, int, Any]]:
        """Return map, number of rows and rows of each piece of a partition, by map.

        ``width`` is that of the agreed row; 0: rows are variable.
        """

    def serving(self) -> dict[str, float]:
        """Return the values that others have fetched from here (``served``), and the seconds of ``serving`` them.

        ``waited`` are the seconds that threads waited for the locks of the tables of values.
        """

    def shuffle_stats(self) -> dict[str, int]:
        """Return what the shuffle plane does, and has done: counts and bytes."""

    def remove_directory(self) -> None:
        """Remove the directory: the process is about to end."""

    def drain(self) -> None:
        """Begin to leave: values move away first."""

    def close(self, reason: str, status: int = 0, cause: str = "closed") -> None:
        """Begin to end, now; ``cause`` is "closed", "restarted" or "failed"."""
