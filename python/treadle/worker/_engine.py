"""A worker's engine: a namespace that stays, and the casts of clients that run in it."""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias

from treadle.common._loop import LoopThread
from treadle.errors import _pickled as errors
from treadle.pickling import _canning
from treadle.worker import _cast_reply
from treadle.worker._casts import Cast, Casts, Result
from treadle.worker._main_thread import MainThread
from treadle.worker._native import Native
from treadle.worker._outputs import CapturingStream, Outputs, capture, put_streams, release
from treadle.worker._shell import make_shell
from treadle.worker._slots import worker_here

__all__ = ["Engine"]

logger = logging.getLogger("treadle.worker")

# Of the engine's own frames that stand above a function's in a traceback.
_FRAMES = 2
# Seconds after which the engine's thread looks whether the worker has ended.
_LOOK = 5.0
# Turns of a loop, each of which looks whether another thread wants to raise something here.
_MOMENT = 10


#: A value, and the number of code that was executed.
_Result: TypeAlias = "tuple[Any, int | None]"

_NOTHING: _Result = None, None


class _CodeFailed(Exception):
    """Code that was executed raised: the shell has its traceback already."""

    def __init__(self, error: BaseException, lines: list[str], count: int) -> None:
        self.error, self.lines, self.count = error, lines, count


class Engine:
    """Runs casts, one after another, in one thread: a process's main thread, if it may have it.

    A worker that is never cast anything pays nothing for it.
    """

    def __init__(
        self,
        native: Native,
        loop: LoopThread,
        worker: Any,
        main_thread: MainThread | None,
    ) -> None:
        self._native = native
        self._loop = loop
        self._worker = worker
        self._main_thread = main_thread
        if main_thread is not None:
            main_thread.interruptible = lambda: self._interruptible
        self.id = native.id
        self.uuid = f"{native.id}-{native.name}"
        self._casts = Casts(native, self._begin, _aborted)
        # Of each client: the last cast of code that failed.
        self._failed: dict[int | str, int] = {}
        self._shell: Any = None
        self._outputs: Outputs | None = None
        self._thread: int | None = None
        # While it is set, an interrupt is for what runs.
        self._interruptible = False
        self._leaving = threading.Lock()
        self._by_value = False
        self._running: Cast | None = None
        # Casts so far, with the one that runs.
        self._taken = 0
        self._handlers: dict[str, Callable[..., _Result]] = {
            "apply": self._apply,
            "execute": self._execute,
            "push": self._push,
            "pull": self._pull,
            "part": self._apply_part,
            "clear": self._clear,
            "pickler": self._choose_pickler,
        }

    # what clients ask, in the worker's loop

    def operations(self) -> dict[str, Callable[..., Any]]:
        """Return what clients call, by name."""
        return {
            "engine-status": self._status,
            "engine-signal": self._signal,
            "engine-drop-casts": self._casts.doom,
            "engine-drop-task": self._casts.drop_task,
        }

    def cast_came(self) -> None:
        """Take note that a cast is there while nobody waits for one. In any thread."""
        self._casts.came()

    def interrupt_cast(self, client: int, number: int) -> None:
        """Interrupt a cast that was taken; what has not begun is not to. In any thread."""
        self._casts.doom(client, [number])
        running = self._running
        if running is not None and running[:2] == (client, number):
            self._interrupt()

    def _status(self) -> dict[str, int]:
        running = int(self._running is not None)
        return {"queue": self._casts.waiting + running, "completed": self._taken - running}

    def _signal(self, number: int | str) -> None:
        """Send the process a signal, or interrupt what runs here: nothing else if it is SIGINT."""
        if isinstance(number, str):
            number = int(getattr(signal, number))
        if number == signal.SIGINT:
            self._interrupt()
        elif self._main_thread is not None:
            os.kill(os.getpid(), number)
        else:
            raise ValueError(
                f"engine {self.id} is threads of its client's process: it takes SIGINT only"
            )

    def _interrupt(self) -> None:
        if not self._interruptible:
            return
        if self._main_thread is not None:
            self._main_thread.interrupt()
            return
        with self._leaving:
            if self._interruptible and self._thread is not None:
                # Python's own way into another thread; a call in C ends first.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(KeyboardInterrupt)
                )

    def close(self) -> None:
        """Take no more casts."""
        self._casts.close()

    # tasks of load-balanced views, in an executor's thread

    def run_task(self, name: str, frames: Sequence[Any]) -> Result:
        """Do something after what waits already."""
        result: Future[Result] = Future()
        self._casts.put(name, frames, result.set_result)
        return result.result()

    # the engine's thread

    def _begin(self) -> None:
        if self._main_thread is not None:
            self._main_thread.give(self._run)
        else:
            name = f"treadle-engine-{self._native.name}"
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        self._thread = threading.get_ident()
        worker_here.set(self._worker)
        capture(self._find_outputs)
        try:
            while self._run_next():
                pass
        finally:
            release()

    def _run_next(self) -> bool:
        """Run a cast; ``False``: there will be none."""
        try:
            if self._casts.of_tasks:
                cast = self._casts.next_of_task()
            else:
                cast = self._native.next_cast(_LOOK)
            if cast is None:
                # A task may want something meanwhile.
                return not self._casts.over
            self._running = cast
            self._taken += 1
            result: Result | None = None
            try:
                result = self._perform(cast)
            finally:
                self._casts.finish(cast, _aborted() if result is None else result)
        except KeyboardInterrupt:
            # It came too late for what it was meant for.
            pass
        except Exception:
            # It has no outputs any more: this is for the worker's log.
            self._running = self._outputs = None
            logger.exception("A cast failed in the engine itself")
        finally:
            # What it was sent is let go of before the next one comes.
            self._running = self._outputs = None
        return True

    def _perform(self, cast: Cast) -> Result:
        """Do what a cast says.

        Between two calls other processes take the processor's caches: each function that this goes
        through, and each object, costs more than what it does (``docs/views.md``).
        """
        client, number, (head, *frames) = cast
        operation, options, known = _read_head(head)
        if self._failed and known < self._failed.get(client, 0):
            # Code failed that its client did not know of when it sent this.
            return _aborted()
        started = time.time()
        if type(sys.stdout) is not CapturingStream or type(sys.stderr) is not CapturingStream:
            put_streams()
        if self._shell is None:
            self._shell = self._make_shell()
        reply: dict[str, Any] | None = None
        results: Sequence[Any] = ()
        try:
            try:
                self._interruptible = True
                # From now on an interrupt reaches it; one that came before has left its mark.
                if self._casts.doomed and self._casts.is_doomed(cast):
                    return _aborted()
                value, count = self._handlers[operation](frames, **options)
                if count is not None:
                    reply = {"status": "ok", "count": count}
                if value is not None:
                    results = self._dumps(value)
            finally:
                if self._main_thread is not None:
                    # This is the thread that a signal interrupts: now it does not any more.
                    self._interruptible = False
                else:
                    with self._leaving:
                        self._interruptible = False
            if self._main_thread is None:
                for _ in range(_MOMENT):
                    # What was raised from another thread arrives now, and in no later call.
                    pass
        except BaseException as error:
            self._interruptible = False
            reply = self._failure(error, operation)
            results = ()
            if operation == "execute" and not options["silent"]:
                # What was to follow code that a person has typed is not run.
                self._failed[client] = number
        if self._outputs is not None and (events := self._outputs.close()):
            reply = {"status": "ok"} if reply is None else reply
            reply["events"] = events
        first = _cast_reply.OK if reply is None else _cast_reply.dumps(reply)
        return [first, *results], (started, time.time())

    def _make_shell(self) -> Any:
        own_process = self._main_thread is not None
        return make_shell(self._running_outputs, self._native.directory, own_process)

    def _running_outputs(self) -> Outputs:
        """Return the outputs of what runs, which are made when there is the first."""
        outputs = self._find_outputs()
        assert outputs is not None
        return outputs

    def _find_outputs(self) -> Outputs | None:
        if self._outputs is None and self._running is not None:
            self._outputs = Outputs(partial(self._send, self._running), self._later)
        return self._outputs

    def _send(self, cast: Cast, first: int, events: list[Any]) -> None:
        # A task's outputs come with its result.
        self._casts.output(cast, pickle.dumps((first, events)))

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        self._loop.soon(self._loop.asyncio_loop.call_later, seconds, function)

    def _dumps(self, value: Any) -> list[Any]:
        try:
            return _canning.dumps(value, by_value=self._by_value)
        except Exception as error:
            raise errors.unserializable(value, error, f"the result at engine {self.id}") from error

    def _failure(self, error: BaseException, operation: str) -> dict[str, Any]:
        count = None
        if isinstance(error, _CodeFailed):
            failed = error
            error, lines, count = failed.error, failed.lines, failed.count
        else:
            try:
                lines = self._shell.format(error, _FRAMES)
            except BaseException as another:
                lines = [f"its traceback cannot be shown: {type(another).__name__}"]
        try:
            text = str(error)
        except BaseException as another:
            # A method of the user's class may raise anything.
            text = f"it cannot be shown: {type(another).__name__}"
        method = "execute" if operation == "execute" else "apply"
        info = {"engine_uuid": self.uuid, "engine_id": self.id, "method": method}
        content = {
            "ename": type(error).__name__,
            "evalue": text,
            "traceback": lines,
            "engine_info": info,
        }
        self._running_outputs().add("error", content)
        return {"status": "error", "error": content, "count": count}

    # operations

    def _loads(self, frames: Sequence[Any]) -> Any:
        return _canning.loads(frames, self._shell.namespace)

    def _own(self, frames: Sequence[Any]) -> tuple[Any, Any]:
        """Return what all engines share of a payload, and this engine's own."""
        shared, parts = pickle.loads(frames[0], buffers=frames[1:])
        return self._loads(shared), self._loads(parts[self.id])

    def _apply(self, frames: Sequence[Any]) -> _Result:
        function, args, kwargs = _canning.loads_call(frames, self._shell.namespace)
        return function(*args, **kwargs), None

    def _apply_part(self, frames: Sequence[Any], own: bool, elementwise: bool) -> _Result:
        """Call a function with this engine's part of its arguments."""
        assert own
        function, args = self._own(frames)
        return list(map(function, *args)) if elementwise else function(*args), None

    def _execute(self, frames: Sequence[Any], silent: bool) -> _Result:
        code = bytes(frames[0]).decode()
        if not silent:
            self._running_outputs().add("execute_input", {"code": code})
        done = self._shell.execute(code, silent)
        if done.error is not None:
            raise _CodeFailed(done.error, done.traceback, done.number)
        return None, done.number

    def _push(self, frames: Sequence[Any], own: bool = False) -> _Result:
        namespace = self._shell.namespace
        values = self._own(frames)[1] if own else _canning.loads_values(frames, namespace)
        for name, value in values.items():
            if name.isidentifier():
                namespace[name] = value
                continue
            # An attribute or an item: "a.b", "a[0]".
            namespace["_treadle_pushed"] = value
            try:
                exec(f"{name} = _treadle_pushed", namespace)
            finally:
                namespace.pop("_treadle_pushed", None)
        return _NOTHING

    def _pull(self, frames: Sequence[Any]) -> _Result:
        names = self._loads(frames)
        namespace = self._shell.namespace
        if isinstance(names, str):
            return eval(names, namespace), None
        return [eval(name, namespace) for name in names], None

    def _clear(self, _frames: Sequence[Any]) -> _Result:
        self._shell.reset()
        return _NOTHING

    def _choose_pickler(self, _frames: Sequence[Any], by_value: bool) -> _Result:
        self._by_value = by_value
        return _NOTHING


@_canning.remembered
def _read_head(frame: Any) -> tuple[str, dict[str, Any], int]:
    """Return an operation, its options, and the last failed cast that its client knew of.

    The next call has the same, most of the time.
    """
    head: tuple[str, dict[str, Any], int] = pickle.loads(frame)
    return head


def _aborted() -> Result:
    return [_cast_reply.ABORTED], None
