"""The calls of load-balanced views: tasks of the scheduler, once what they depend on is done."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from ipyparallel import Dependency, error

from treadle._compat.ipyparallel import MessageFuture
from treadle.views._arrivals import finish, lose
from treadle.worker import _cast_reply
from treadle.worker._balanced import Failed, Outcome, Payload, run

if TYPE_CHECKING:
    from treadle.views._engines import Engines

__all__ = ["Task", "Tasks"]

# Messages whose ends are remembered, for those that will depend on them.
_MOST = 100_000


@dataclass(eq=False)
class Task:
    """A call that waits, or runs."""

    payload: Sequence[Any]
    #: Engines that it may run on; empty: any.
    targets: Collection[int]
    after: Dependency
    follow: Dependency
    retries: int
    message: MessageFuture = None
    timer: threading.Timer | None = None
    #: Engines that do not have what it needs.
    refused: set[int] = field(default_factory=set)
    submitted: bool = False


class Tasks:
    """The calls of load-balanced views that are not finished."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        # By message, while the scheduler has them.
        self._futures: dict[str, Any] = {}
        # How messages ended: whether they succeeded, and at which engine.
        self._ends: dict[str, tuple[bool, int | None]] = {}

    def submit(self, task: Task, timeout: float | None) -> None:
        """Run a task when what it depends on is done."""
        name = task.message.msg_id
        awaited = [*task.after, *task.follow]
        pending = []
        with self._lock:
            self._tasks[name] = task
            for other in awaited:
                future = self._engines._futures.get(other)
                if self._end(other) is None and future is not None:
                    pending.append(future)
                elif self._end(other) is None:
                    task.submitted = True
        if task.submitted:
            self._fail(task, error.InvalidDependency(f"no message is called so: {awaited}"))
            return
        if timeout and pending:
            task.timer = threading.Timer(timeout, self._late, (task, timeout))
            task.timer.daemon = True
            task.timer.start()
        for future in pending:
            future.add_done_callback(lambda _: self._look(task))
        self._look(task)

    def _look(self, task: Task) -> None:
        """Submit a task if nothing is missing any more."""
        with self._lock:
            if task.submitted:
                return
            done = {name for name, (succeeded, _) in self._of(task) if succeeded}
            failed = {name for name, (succeeded, _) in self._of(task) if not succeeded}
            impossible = any(d.unreachable(done, failed) for d in (task.after, task.follow))
            if not impossible and not all(d.check(done, failed) for d in (task.after, task.follow)):
                return
            task.submitted = True
            followed = self._followed(task, done | failed)
        if task.timer is not None:
            task.timer.cancel()
        if impossible:
            self._fail(task, error.ImpossibleDependency("what it depends on ended otherwise"))
        elif followed is not None and not followed:
            self._fail(
                task, error.ImpossibleDependency("what it is to follow ran on no one engine")
            )
        else:
            self._run(task, followed)

    def _of(self, task: Task) -> list[tuple[str, tuple[bool, int | None]]]:
        ends = ((name, self._end(name)) for name in {*task.after, *task.follow})
        return [(name, end) for name, end in ends if end is not None]

    def _end(self, name: str) -> tuple[bool, int | None] | None:
        """Return how a message ended, of a task or a cast."""
        found = self._engines.cast_of(name)
        if found is None:
            return self._ends.get(name)
        cast, engine = found
        succeeded = cast.succeeded(engine)
        return None if succeeded is None else (succeeded, engine)

    def _followed(self, task: Task, ended: set[str]) -> set[int] | None:
        """Return the engines where what it follows has run; ``None``: it follows nothing."""
        if not task.follow:
            return None
        places = [{end[1]} for name, end in self._of(task) if name in task.follow & ended]
        both = set.intersection(*places) if task.follow.all else set.union(*places)
        found = {place for place in both if place is not None}
        return found & set(task.targets) if task.targets else found

    def _late(self, task: Task, timeout: float) -> None:
        with self._lock:
            if task.submitted:
                return
            task.submitted = True
        self._fail(task, error.TaskTimeout(timeout))

    def _run(self, task: Task, followed: set[int] | None) -> None:
        allowed = set(task.targets) if followed is None else followed
        engines = self._engines
        places = None
        if allowed or task.refused:
            left = (allowed or set(engines.ids)) - task.refused
            if not left:
                self._fail(task, error.ImpossibleDependency("no engine has what it needs"))
                return
            places = [engines._transport.address(engine) for engine in left]
        name = task.message.msg_id
        try:
            future = engines._client.submit(
                run,
                Payload(task.payload),
                name,
                task.retries,
                pure=False,
                workers=places,
                retries=task.retries,
            )
        except Exception as problem:
            self._fail(task, problem)
            return
        with self._lock:
            self._futures[name] = future
        future._bound()[1].add_waker(lambda _: self._ended(task, followed))

    def _ended(self, task: Task, followed: set[int] | None) -> None:
        """Take the value or the error of a task's future. In the connection's thread."""
        name = task.message.msg_id
        with self._lock:
            future = self._futures.get(name)
        if future is None:
            return
        state = future._bound()[1]
        if state.status == "finished":
            got = partial(self._got, task, followed, future)
            apart = self._engines._apart
            fetched = [future.key]
            self._engines._client._fetch_then(
                fetched, lambda *came: apart.call(partial(got, *came))
            )
            return
        self._failed(task, followed, state.exception)

    def _got(
        self,
        task: Task,
        followed: set[int] | None,
        future: Any,
        values: dict[Any, Any],
        errors: dict[Any, BaseException],
    ) -> None:
        self._engines._client._decoded(values, errors)
        if future.key in values:
            self._settle(task, followed, values[future.key])
        else:
            self._failed(task, followed, errors[future.key])

    def _failed(self, task: Task, followed: set[int] | None, problem: BaseException | None) -> None:
        if isinstance(problem, Failed):
            self._settle(task, followed, problem.outcome)
            return
        metadata = task.message.output.metadata
        last = getattr(problem, "last_worker", None)
        found = self._engines._transport.engine_at(getattr(last, "address", ""))
        if found is not None:
            metadata.update(engine_id=found.id, engine_uuid=found.uuid)
        if self._take(task):
            self._lose(task, str(problem))

    def _settle(self, task: Task, followed: set[int] | None, outcome: Outcome) -> None:
        engine, uuid = outcome.engine
        task.message.output.metadata.update(engine_id=engine, engine_uuid=uuid)
        frames = [memoryview(frame) for frame in outcome.frames]
        if _is_unmet(frames):
            task.refused.add(engine)
            # What it needs may be elsewhere. Not in this thread, which must not wait.
            again = partial(self._run, task, followed)
            threading.Thread(target=again, name="treadle-elsewhere", daemon=True).start()
            return
        if self._take(task):
            now = datetime.now(timezone.utc)
            self._resolve(task, finish(task.message, frames, outcome.times, now))

    def _take(self, task: Task) -> bool:
        """Forget a task; whether it was known."""
        name = task.message.msg_id
        with self._lock:
            self._futures.pop(name, None)
            return self._tasks.pop(name, None) is not None

    def _fail(self, task: Task, problem: Exception) -> None:
        if self._take(task):
            text = str(problem) or type(problem).__name__
            kind = type(problem).__name__
            info = {"engine_id": None, "engine_uuid": None, "method": "apply"}
            failed = error.RemoteError(kind, text, f"{kind}: {text}", info)
            self._resolve(task, failed)

    def _lose(self, task: Task, reason: str) -> None:
        self._resolve(task, lose(task.message, reason, datetime.now(timezone.utc)))

    def _resolve(self, task: Task, result: Any) -> None:
        name = task.message.msg_id
        with self._lock:
            engine = task.message.output.metadata["engine_id"]
            self._ends[name] = not isinstance(result, Exception), engine
            if len(self._ends) > _MOST:
                del self._ends[next(iter(self._ends))]
        self._engines.resolve(task.message, result)

    def abort(self, names: Collection[str]) -> None:
        """Have tasks not run that have not begun: their result is a ``TaskAborted``."""
        with self._lock:
            tasks = [task for name, task in self._tasks.items() if name in names]
            futures = {name: self._futures.get(name) for name in names}
            for task in tasks:
                task.submitted = True
        for task in tasks:
            name = task.message.msg_id
            if not self._take(task):
                continue
            future = futures[name]
            self._resolve(task, error.TaskAborted(name))
            if future is not None:
                future.cancel()
                self._engines._transport.ask(self._engines.ids, "engine-drop-task", task=name)

    def disconnected(self, reason: str) -> None:
        """Lose all."""
        with self._lock:
            tasks = list(self._tasks.values())
        for task in tasks:
            task.submitted = True
            if self._take(task):
                self._lose(task, reason)


def _is_unmet(frames: Sequence[Any]) -> bool:
    reply = _cast_reply.loads(frames[0])
    return bool(reply["status"] == "error" and reply["error"]["ename"] == "UnmetDependency")
