"""The worker's Python side: what its native side calls."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import dask
from distributed import Status

from treadle._compat.distributed import (
    benchmark_disk,
    benchmark_memory,
    benchmark_network,
)
from treadle.common._ask import ask
from treadle.common._calls import pack, pack_answer, unpack, unpack_answer
from treadle.common._log import Log
from treadle.common._loop import LoopThread
from treadle.common._shared_memory import share_arrays
from treadle.errors import _pickled as errors
from treadle.errors._exit_status import LEFT, RESTART
from treadle.worker._actors import Actors
from treadle.worker._ends import Cause
from treadle.worker._engine import Engine
from treadle.worker._failures import FailureLog
from treadle.worker._main_thread import MainThread
from treadle.worker._nanny_channel import Supervisor
from treadle.worker._native import Native
from treadle.worker._plugins import Plugins
from treadle.worker._profile import Profiler
from treadle.worker._run import run_function
from treadle.worker._slots import enter_thread, leave_thread, worker_here
from treadle.worker._standin import WorkerStandIn, coroutine_key

__all__ = ["Service"]

logger = logging.getLogger(__name__)

# Seconds that the sidecar has to say which plugins there are, and these to be set up.
_PATIENCE = 60.0
# What clients run finds the plugins set up, unless one of them takes so many seconds: it may wait
# for what they run.
_SET_UP = 10.0


class Service:
    """What a native worker calls, in threads of its own. No method raises but those that say so.

    Parameters
    ----------
    connection
        ``secret``, ``certificates`` and ``insecure`` of the worker, for the clients of its tasks.
    preload, preload_argv
        Modules or scripts with a ``dask_setup(worker)`` to run first, and their arguments, as
        distributed has them.
    own_process
        The process is a worker and nothing else: what goes to standard error is kept for
        :meth:`log`, and a task or a call that raises ``SystemExit`` or ``KeyboardInterrupt`` ends
        it.
    shares_arrays
        Arrays that tasks make are in shared memory.
    main_thread
        Where the engine runs; a thread of its own without one.
    supervisor
        Who looks after the process and runs nanny plugins; nobody without one.
    """

    def __init__(
        self,
        *,
        connection: Mapping[str, Any] | None = None,
        preload: Sequence[str] = (),
        preload_argv: Sequence[str] = (),
        own_process: bool = False,
        shares_arrays: bool = False,
        main_thread: MainThread | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._connection = dict(connection or {})
        self._main_thread = main_thread
        self._supervisor = supervisor
        self._preload = list(preload)
        self._preload_argv = list(preload_argv)
        self._own_process = own_process
        self._shares_arrays = shares_arrays or own_process
        self._pid = os.getpid()
        self._log = Log(with_stderr=own_process)
        self._failures = FailureLog()
        self._ready = threading.Event()
        self._stopped = False
        self._operations: dict[str, Callable[..., Any]] = {}
        self._is_set_up = asyncio.Event()
        # What of the user is being set up; None: nothing, or it is still being fetched.
        self._setting_up: str | None = None
        # What the worker keeps on disk goes with the process.
        self._remove_directory: Callable[[], None] = lambda: None
        # asyncio itself keeps no hold of them.
        self._answering: set[asyncio.Task[None]] = set()

    @staticmethod
    def info() -> dict[str, Any]:
        """Describe the process in plain values."""
        from treadle._compat.distributed import get_versions

        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "python": ".".join(map(str, sys.version_info[:3])),
            "packages": dict(get_versions()["packages"]),
        }

    # casts

    def cast_came(self) -> None:
        """Start the engine: a cast waits for it, and no thread does."""
        # It may have come before the worker was ready.
        if self._ready.wait(_PATIENCE):
            self.engine.cast_came()

    def interrupt_cast(self, client: int, number: int) -> None:
        """Interrupt a client's cast, if the engine runs it."""
        self.engine.interrupt_cast(client, number)

    # the worker's life

    def start(self, native: Native) -> None:
        """Get ready for tasks: preload scripts, then the plugins that are registered.

        Raises
        ------
        Exception
            What importing a preload script raises.
        """
        self._native = native
        self._remove_directory = native.remove_directory
        self._loop = LoopThread(f"treadle-worker-{native.name}", self._loop_ended)
        self.worker = WorkerStandIn(native, self._loop, self._log, self._connection)
        if self._supervisor is None:
            self._supervisor = Supervisor(native.name, native.directory, None)
        self._supervisor.attach(self._loop, self.worker.scheduler)
        self._actors = Actors(self.worker)
        self._plugins = self.worker.plugin_manager = Plugins(self.worker)
        if dask.config.get("treadle.worker.steps", False):
            self._plugins.record()
        self._profiler = Profiler(lambda: self.worker.active_threads)
        if native.is_recorded:
            self._log.listen(self._told)
            self._profiler.begin(native.sampled)
        self.engine = self.worker.engine = Engine(
            native, self._loop, self.worker, self._main_thread
        )
        self._operations = self._all_operations()
        self._ready.set()
        self._loop.run(self._set_up(), _PATIENCE)

    def _told(self, level: int, text: str) -> None:
        """Tell the scheduler of a line of the log. One that has ended tells nothing."""
        with suppress(Exception):
            self._native.told(max(0, min(level, 255)), text)

    def _loop_ended(self, error: BaseException) -> None:
        """End the worker: nobody would be answered any more."""
        end = (f"the event loop ended: {error!r}", 1, Cause.FAILED.value)
        # Not in the loop's thread, which the end of the worker may wait for.
        threading.Thread(target=self._native.close, args=end, daemon=True).start()

    async def _set_up(self) -> None:
        try:
            await self._add_what_is_registered()
        finally:
            self._is_set_up.set()

    async def _add_what_is_registered(self) -> None:
        if await self._hand_over():
            await self._restart()
            return
        if self._preload:
            from treadle._compat.distributed import process_preloads

            self._setting_up = "preload scripts"
            try:
                self.worker.preloads = process_preloads(
                    self.worker,
                    self._preload,
                    self._preload_argv,
                    file_dir=self.worker.local_directory,
                )
                await self.worker.preloads.start()
            except Exception as error:
                # What it says comes at the end of the worker.
                traceback = errors.texts(error)[1]
                logger.error("The worker cannot preload %s:\n%s", self._preload, traceback)
                raise
            self._setting_up = None
        try:
            names = await self._ask_sidecar("worker_plugins")
        except OSError:
            return  # a scheduler without a Python side
        for name in names:
            try:
                await self._add_registered(name)
            except Exception:
                logger.exception("Worker plugin %s cannot be loaded", name)

    async def _hand_over(self) -> bool:
        """Hand over nanny plugins of which the supervisor has not heard when the worker joined.

        Returns whether one wants another process.
        """
        assert self._supervisor is not None
        try:
            registered = await self._ask_sidecar("nanny_plugins")
        except OSError:
            return False  # a scheduler without a Python side
        if not registered:
            return False
        if not self._supervisor.is_there:
            names = ", ".join(name for name, _ in registered)
            logger.warning("This worker has no nanny, and so no nanny plugins: %s", names)
            return False
        return await self._supervisor.hand_over(registered)

    async def _add_registered(self, name: str) -> None:
        # One a call: each fits into one, as it came in one.
        registered = await self._ask_sidecar("worker_plugin", name=name)
        if registered is not None:
            plugin, number = registered
            self._setting_up = f"plugin {name}"
            try:
                await self._plugins.add(plugin, name, number)
            finally:
                self._setting_up = None

    async def _wait_until_set_up(self) -> None:
        while not self._is_set_up.is_set():
            before = self._setting_up
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_set_up.wait(), _SET_UP)
            if before is not None and self._setting_up == before:
                return

    async def _ask_sidecar(self, operation: str, **kwargs: Any) -> Any:
        return unpack_answer(await ask(self._native, "sidecar", operation, pack(kwargs)))

    def stop(self, timeout: float = 5.0) -> None:
        """End: plugins are torn down, the tasks' client is closed, the loop ends.

        What runs in the loop is waited for at most ``timeout`` seconds.
        """
        until = time.monotonic() + timeout
        if self._ready.is_set() and not self._stopped:
            self._stopped = True
            self.worker._status = Status.closing
            try:
                self._loop.run(self._tear_down(), timeout)
            except Exception:
                logger.warning("the worker's Python side did not end cleanly", exc_info=True)
            self.worker.executors.close()
            self.engine.close()
            self._profiler.close()
            self.worker.plugins.close_shuffles()
            self._loop.close(max(until - time.monotonic(), 0.0))
            self.worker._status = Status.closed
        self._log.listen(None)
        self._log.close()

    async def _tear_down(self) -> None:
        await self._plugins.close()
        if self.worker.preloads is not None:
            await self.worker.preloads.teardown()
        for callback in self.worker.periodic_callbacks.values():
            callback.stop()
        await self.worker._close_clients()

    def restarted(self) -> None:
        """Forget the actors: the scheduler dropped everything."""
        self._actors.clear()

    def log(self) -> str:
        """Return the last lines of the log and of standard error, at most 16 KiB."""
        return self._log.text()

    # executor threads and their tasks

    def enter_thread(self) -> None:
        """Prepare the calling thread for tasks."""
        enter_thread(self._native, self.worker)
        if self._shares_arrays:
            # Arrays move to other workers of the host without a copy, and large ones are made in
            # memory that was used before: the pages of fresh memory take as long as the arithmetic.
            with suppress(ImportError):
                share_arrays()

    def leave_thread(self) -> None:
        """The calling thread will run no more tasks."""
        leave_thread()

    def run_coroutine(self, key: Hashable, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a task's coroutine in the loop, wait for it, and return or raise what it does."""

        async def run() -> Any:
            worker_here.set(self.worker)
            coroutine_key.set(key)
            return await coroutine

        return self._loop.run(run())

    def task_raised(self, key: Hashable, exception: BaseException) -> bytes:
        """Return what a task raised as bytes; see :mod:`treadle.errors._pickled`.

        Does not return if that ends the process, as it does in distributed.
        """
        self._end_if_leaving(exception, "A task")
        # Whatever a user's handlers of logs do, the failure is told.
        with suppress(Exception):
            self._failures.task_failed(key, exception)
        return errors.dump(exception)

    def dump_error(self, exception: BaseException) -> bytes:
        """Return an exception as bytes."""
        return errors.dump(exception)

    def _end_if_leaving(self, exception: BaseException, what: str) -> None:
        """End the process if it is a worker's own, and this exception is one that ends processes."""
        if not self._own_process or not isinstance(exception, (SystemExit, KeyboardInterrupt)):
            return
        if os.getpid() != self._pid:
            # A forked child: the directory is its parent's.
            return
        logger.error("%s raised %r: the worker ends", what, exception)
        sys.stderr.flush()
        self._remove_directory()
        os._exit(_status(exception))

    def reschedules(self, exception: BaseException) -> bool:
        """Whether a task raised ``distributed.Reschedule``."""
        return errors.reschedules(exception)

    def unserializable(
        self, value: Any, exception: BaseException, key: Hashable = None
    ) -> BaseException:
        """Return the error of whoever needs the value of a task elsewhere that cannot be pickled."""
        where = "" if key is None else f"the result of {key!r} at worker {self.worker.address}"
        return errors.unserializable(value, exception, where)

    def add_actor(self, key: Hashable, instance: Any, number: int = 0) -> Any:
        """Keep an actor and return its handle, the value of the task that made it."""
        return self._actors.add(key, instance, number)

    def drop_actor(self, key: Hashable, number: int = 0) -> None:
        """Forget an actor: its task was released."""
        self._actors.drop(key, number)

    def steps_came(self) -> None:
        """Have plugins told, in the loop, how tasks went on that no thread runs now."""
        if self._ready.is_set():
            self._loop.soon(self._native.tell)

    def transition(self, key: Hashable, start: str, finish: str) -> None:
        """Tell plugins how a task goes on; called while the service observes (``Native.observe``)."""
        self._plugins.transition(key, start, finish)

    # calls

    def call(self, id: int, node: str, operation: str, argument: Any) -> None:  # noqa: A002
        """Answer a call of another node, soon, through ``Native.answer``."""
        del node  # whoever got here belongs to the cluster
        if not self._ready.wait(_PATIENCE):
            # Whoever calls is told so: it waits for an answer.
            raise TimeoutError(f"the worker has not started within {_PATIENCE:g} seconds")
        self._loop.soon(self._begin, id, operation, argument)

    def _begin(self, id: int, operation: str, argument: Any) -> None:  # noqa: A002
        task = asyncio.ensure_future(self._answer(id, operation, argument))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, id: int, operation: str, argument: Any) -> None:  # noqa: A002
        try:
            answer = await self._result(operation, argument)
        except BaseException as error:
            # Whatever it is, somebody waits for an answer.
            self._end_if_leaving(error, f"The call {operation!r}")
            # The loop may end because the worker has: nobody waits then.
            with suppress(OSError):
                self._native.answer(id, None, errors.dump_of_call(error, operation))
            return
        try:
            self._native.answer(id, answer)
        except (ValueError, TypeError) as error:
            # It is too long; what is said instead is not.
            self._native.answer(id, None, errors.dump(ValueError(f"{operation}: {error}")))

    async def _result(self, operation: str, argument: Any) -> bytes:
        handler = self._operations.get(operation)
        if handler is None:
            raise NotImplementedError(f"Treadle's workers do not serve {operation!r}")
        if handler == self._run and not self._is_set_up.is_set():
            await self._wait_until_set_up()
        # What is unpickled may ask which worker it is on.
        worker_here.set(self.worker)
        result = handler(**unpack(argument, opening=True))
        if asyncio.iscoroutine(result):
            result = await result
        try:
            return pack_answer(result)
        except Exception as error:
            value = result.get("result") if isinstance(result, dict) else result
            failure = errors.unserializable(getattr(value, "data", value), error)
            if isinstance(result, dict) and "status" in result:
                return pack_answer(errors.as_message(failure))
            raise failure from None

    def _all_operations(self) -> dict[str, Callable[..., Any]]:
        worker, plugins = self.worker, self._plugins
        return {
            "run": self._run,
            "run_coroutine": self._run,
            "plugin-add": plugins.add,
            "plugin-remove": plugins.remove,
            "plugin_add": plugins.add,
            "plugin_remove": plugins.remove,
            "upload_file": worker.upload_file,
            "actor_execute": self._actors.execute,
            "actor_attribute": self._actors.attribute,
            "versions": worker.versions,
            "call_stack": worker.get_call_stack,
            "get_logs": worker.get_logs,
            "profile": self._profiler.profile,
            "profile_metadata": self._profiler.metadata,
            "identity": worker.identity,
            "keys": worker.keys,
            "ping": lambda: "pong",
            "get_story": plugins.story,
            "benchmark_disk": self._benchmark_disk,
            "benchmark_memory": self._benchmark_memory,
            "benchmark_network": self._benchmark_network,
            "echo": lambda data=None: data,
            "terminate": worker.close,
            "close_gracefully": worker.close_gracefully,
            "restart": self._restart,
            "has_nanny": lambda: self._supervisor is not None and self._supervisor.is_there,
            "nanny": self._nanny,
            **self.engine.operations(),
        }

    def _run(self, **call: Any) -> Coroutine[Any, Any, Any]:
        return run_function(self.worker, **call)

    async def _restart(self, **_: Any) -> None:
        """End so that a supervisor starts the process again."""
        self.worker._close_with("it was asked to restart", Cause.RESTARTED)

    async def _nanny(self, call: str, **kwargs: Any) -> Any:
        """Call whoever looks after this process."""
        assert self._supervisor is not None
        answer = await self._supervisor.call(call, kwargs)
        if call == "plugin_add" and answer["restart"]:
            await self._restart()
        return answer

    async def _benchmark_disk(self) -> Any:
        return await self._offload(benchmark_disk, self.worker.local_directory)

    async def _benchmark_memory(self) -> Any:
        return await self._offload(benchmark_memory)

    async def _benchmark_network(self, address: str) -> Any:
        return await benchmark_network(address, self.worker.rpc)

    async def _offload(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, function, *args)


def _status(exception: BaseException) -> int:
    """The exit status for what ends a worker; never that of one that was asked to end or restart."""
    if isinstance(exception, KeyboardInterrupt):
        return 130
    code = getattr(exception, "code", None)
    return code if isinstance(code, int) and 0 < code < 256 and code not in (LEFT, RESTART) else 1
