"""Why a key has no value, as the exceptions that users see."""

from __future__ import annotations

import textwrap
from collections.abc import Hashable, Mapping
from types import TracebackType
from typing import Any, TypeAlias

import distributed
import distributed.client as _client

from treadle.errors import _pickled as errors

__all__ = [
    *("ActorLost", "DataLost", "InputUnavailable", "WorkerLost"),
    *("Failure", "Raised", "exception"),
]

# Their arguments are looser here.
KilledWorker: Any = distributed.KilledWorker
FutureCancelledError: Any = _client.FutureCancelledError

#: An exception, and its traceback.
Raised: TypeAlias = "tuple[BaseException, TracebackType | None]"


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
        were = "workers that ran it were" if count != 1 else "worker that ran it was"
        limit = "`distributed.scheduler.allowed-failures`"
        lines = [f"{self.task!r} was given up: {count} {were} lost, more than {limit} allows"]
        lines += [f"  {worker}" for worker in self.workers]
        return "\n".join(lines) + _last_words(self.last_worker)


class DataLost(FutureCancelledError):  # type: ignore[misc]
    """Data of a client is gone with its worker, and no task can compute it again.

    As in distributed, the future of scattered data is cancelled then, and so are those that depend
    on it. Large constants of graphs are lost only if no client can bring them again.

    Attributes
    ----------
    key
        The key of the data.
    worker
        The worker that was the last to hold it: ``name``, ``address``, ``cause``, ``log``.
    """

    def __init__(self, key: Hashable, worker: LostWorker) -> None:
        gone = "with the worker that held it" if worker.name else "with the client that brought it"
        if str(key).startswith("treadle-constant-"):
            way = (
                "no client can bring it again: no worker could take it, it was written to after it "
                "was submitted, or it gave way to later constants. Submit what reads it again"
            )
        else:
            way = (
                "nothing can compute it again: scatter it anew, or with broadcast= to several "
                "workers"
            )
        message = f"It is gone {gone}, and {way}"
        if worker.name:
            message += f"\n  {worker}"
        super().__init__(key, "lost data", message + _last_words(worker))
        self.worker = worker

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.worker)


class ActorLost(RuntimeError):
    """An actor is gone with its worker."""

    def __init__(self, key: Hashable, worker: LostWorker) -> None:
        super().__init__(key, worker)
        self.key = key
        self.worker = worker

    def __str__(self) -> str:
        return (
            f"Worker holding Actor was lost: make {self.key!r} anew\n  {self.worker}"
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
    """Why a key has no value, as it travelled.

    It is decoded anew whenever somebody asks. An exception that was raised refers to the frames that
    it passed through, and so to the futures in them; kept here, it would keep them for ever.
    """

    __slots__ = ("key", "kind", "payload")

    def __init__(self, kind: str, key: Hashable, payload: Any) -> None:
        self.kind = kind
        self.key = key
        self.payload = payload

    @property
    def cancels(self) -> bool:
        """Whether the key counts as cancelled, and not as failed."""
        return self.kind == "data-lost"

    def decoded(self) -> Raised:
        """Return what to raise, and where it was raised."""
        if self.kind == "raised":
            return errors.load(self.payload)
        return _exception_of(self.kind, self.key, self.payload), None


def exception(kind: str, key: Hashable, payload: Any) -> BaseException:
    """Return the exception that a failure of a key stands for, with its traceback."""
    error, traceback = Failure(kind, key, payload).decoded()
    return error.with_traceback(traceback)


def _exception_of(kind: str, key: Hashable, payload: Any) -> BaseException:
    if kind == "workers-lost":
        return WorkerLost(key, [LostWorker.of(values) for values in payload])
    if kind == "data-lost":
        return DataLost(key, LostWorker.of(payload))
    if kind == "actor-lost":
        return ActorLost(key, LostWorker.of(payload))
    if kind == "unavailable":
        return InputUnavailable(key, payload)
    return RuntimeError(f"{key!r} failed: {kind} ({payload!r:.200})")
