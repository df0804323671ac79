"""Why a key has no value, as the exceptions that users see."""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Mapping
from types import TracebackType
from typing import Any

from distributed.scheduler import KilledWorker

__all__ = ["DataLost", "Failure", "InputUnavailable", "WorkerLost", "exception"]


class LostWorker:
    """A worker that is gone, as far as the scheduler knows why.

    Attributes
    ----------
    name, address
        The worker's.
    cause
        Why it is gone, in words: ``"killed by signal 9 (SIGKILL)"``.
    log
        The last lines of its log.
    """

    __slots__ = ("address", "cause", "log", "name")

    def __init__(self, name: str, address: str, cause: str, log: str = "") -> None:
        self.name = name
        self.address = address
        self.cause = cause
        self.log = log

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> LostWorker:
        """Make one of what the connection says."""
        return cls(
            str(values.get("name", "")),
            str(values.get("address", "")),
            str(values.get("cause", "unknown")),
            str(values.get("log") or ""),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return LostWorker, (self.name, self.address, self.cause, self.log)

    def __repr__(self) -> str:
        return f"<LostWorker {self.name!r} {self.address}: {self.cause}>"

    def __str__(self) -> str:
        return f"{self.name} ({self.address}): {self.cause}"


class WorkerLost(KilledWorker):  # type: ignore[misc]
    """Every worker that ran a task was lost, once more often than is allowed.

    It is a ``distributed.KilledWorker`` as well.

    Attributes
    ----------
    task
        The key of the task that was running.
    workers
        The lost workers, the oldest first: ``name``, ``address``, ``cause``, ``log``.
    cause
        Why the last of them was lost.
    retries_left
        How many more workers may be lost before the task fails: none.
    """

    def __init__(self, task: Hashable, workers: list[LostWorker]) -> None:
        last = workers[-1] if workers else LostWorker("unknown", "unknown", "unknown")
        super().__init__(task, last, max(len(workers) - 1, 0))
        self.workers = workers
        self.cause = last.cause
        self.retries_left = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.task, self.workers)

    def __str__(self) -> str:
        count = len(self.workers)
        lines = [
            f"{self.task!r} was given up: {count} worker{'s' * (count != 1)} that ran it "
            f"{'were' if count != 1 else 'was'} lost, and no retries are left"
        ]
        lines += [f"  {worker}" for worker in self.workers]
        return "\n".join(lines) + _last_words(self.last_worker)


class DataLost(RuntimeError):
    """A value that no task can compute again (scattered data, an actor) is gone with its worker."""

    def __init__(self, key: Hashable, worker: LostWorker) -> None:
        super().__init__(key, worker)
        self.key = key
        self.worker = worker

    def __str__(self) -> str:
        return (
            f"{self.key!r} is gone with the worker that held it, and nothing can compute it again: "
            f"scatter it anew, or with broadcast= to several workers\n  {self.worker}"
        ) + _last_words(self.worker)


class InputUnavailable(RuntimeError):
    """No worker could get an input from those that hold it."""

    def __init__(self, key: Hashable, dependency: Hashable) -> None:
        super().__init__(key, dependency)
        self.key = key
        self.dependency = dependency

    def __str__(self) -> str:
        return (
            f"{self.key!r} was not run: no worker could get its input {self.dependency!r} from the "
            "workers that hold it, nor compute it again; look for what separates the workers"
        )


def _last_words(worker: LostWorker) -> str:
    if not worker.log.strip():
        return ""
    lines = worker.log.strip().splitlines()[-20:]
    return f"\nThe last lines of the log of {worker.name}:\n" + textwrap.indent(
        "\n".join(lines), "  | "
    )


class Failure:
    """Why a key has no value; what travelled is decoded when it is first looked at."""

    __slots__ = ("_exception", "_traceback", "_undecoded")

    def __init__(self, kind: str, key: Hashable, payload: Any) -> None:
        self._undecoded: tuple[str, Hashable, Any] | None = (kind, key, payload)
        self._exception: BaseException | None = None
        self._traceback: TracebackType | None = None

    @classmethod
    def known(cls, exception: BaseException | None, traceback: TracebackType | None) -> Failure:
        """Make one of an exception."""
        failure = cls("", None, None)
        failure._undecoded = None
        failure._exception, failure._traceback = exception, traceback
        return failure

    @property
    def exception(self) -> BaseException | None:
        """What to raise."""
        self._decode()
        return self._exception

    @property
    def traceback(self) -> TracebackType | None:
        """Where it was raised."""
        self._decode()
        return self._traceback

    def _decode(self) -> None:
        undecoded = self._undecoded
        if undecoded is None:
            return
        self._exception, self._traceback = _exception_of(*undecoded)
        self._undecoded = None


def exception(kind: str, key: Hashable, payload: Any) -> BaseException:
    """Return the exception that a failure of a key stands for, with its traceback."""
    error, traceback = _exception_of(kind, key, payload)
    return error.with_traceback(traceback)


def _exception_of(
    kind: str, key: Hashable, payload: Any
) -> tuple[BaseException, TracebackType | None]:
    if kind == "raised":
        from treadle.worker import errors

        return errors.load(payload)
    if kind == "workers-lost":
        return WorkerLost(key, [LostWorker.of(values) for values in payload]), None
    if kind == "data-lost":
        return DataLost(key, LostWorker.of(payload)), None
    if kind == "unavailable":
        return InputUnavailable(key, payload), None
    return RuntimeError(f"{key!r} failed: {kind} ({payload!r:.200})"), None
