"""A worker process that is watched, and replaced when it ends unasked."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from treadle.cluster._fork_descriptors import withhold
from treadle.cluster._interpreter import flags, variables
from treadle.cluster._template import Forked
from treadle.cluster._templates import prepare, waiting
from treadle.common._settings import preloads_of, process_environment, temporary_directory
from treadle.common._stderr import aside, print_aside
from treadle.errors._exit_status import LEFT, LOST, OVERFLOWED, RESTART, UNREACHED
from treadle.worker._channel import Channel

if TYPE_CHECKING:
    from treadle.cluster._nanny import Nanny
    from treadle.common._loop import LoopThread

__all__ = ["PRINTED", "Death", "WorkerProcess", "prepare_for"]

logger = logging.getLogger("treadle.client")

# Ctrl-C is for the client, which ends its workers. Not a session of their own: Linux may share the
# processors among sessions (autogroup), and then a thread that looks out for an answer cannot yield
# its processor to the worker that is about to give it.
_APART: dict[str, Any] = (
    {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
)
_COMMAND = (sys.executable, *flags(), "-m", "treadle")

# How many times in a row a worker may end before it was of any use: before it said that it listens.
_PATIENCE = 5
# Seconds before the second attempt; each further one doubles them.
_PAUSE = 0.1
# Seconds to read what a process printed that is given up.
_LAST_WORDS = 1.0
_LONGEST_LINE = 2000
# In :attr:`WorkerProcess.given_up`, before what the process printed.
PRINTED = ":\n"
_ANNOUNCED = "listening at "
_LINES = 200


class Death(NamedTuple):
    """How a worker process ended that was not asked to."""

    name: str
    pid: int
    exitcode: int | None
    signal: int | None
    out_of_memory: bool
    log: str

    def as_told(self) -> dict[str, Any]:
        """Return what the scheduler is told: ``worker-exited``."""
        return {
            "name": self.name,
            "pid": self.pid,
            "log": self.log,
            "exitcode": self.exitcode,
            "signal": self.signal,
            "oom": self.out_of_memory,
        }

    def __str__(self) -> str:
        if self.exitcode == OVERFLOWED:
            how = "took more memory than its limit"
        elif self.exitcode == LOST:
            how = "lost the scheduler"
        elif self.out_of_memory:
            how = "was killed by the kernel, which was out of memory"
        elif self.signal is not None:
            with suppress(ValueError):
                name = signal.Signals(self.signal).name
                return f"worker {self.name} was killed by {name}"
            how = f"was killed by signal {self.signal}"
        else:
            how = f"exited with status {self.exitcode}"
        return f"worker {self.name} {how}"


class WorkerProcess:
    """``treadle worker`` in a process of its own, for as long as it is wanted.

    Its standard input stays open: it ends when that does, however this process ends. The last lines
    of what it prints are kept.

    Parameters
    ----------
    name
        The worker's name.
    arguments
        Of ``treadle worker``.
    died
        Called, in a thread, with each death.
    environment
        Returns what a process has beside this one's environment. By default nothing.
    output
        Called, in a thread, with each line that it prints. By default it goes to this process's
        standard error.
    listens
        Called, in a thread, with the address of each process.
    patience
        How many times in a row the first process may end before it listens. Later ones have five.
    directory
        Where files of nanny plugins are, in a directory of their own. By default Dask's
        ``temporary-directory``, or the system's.
    preloads
        The nanny runs the preload scripts of Dask's configuration, before the first process starts.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        died: Callable[[Death], Any],
        *,
        environment: Callable[[], Mapping[str, str]] = dict,
        output: Callable[[str], Any] = print_aside,
        listens: Callable[[str], Any] = lambda _address: None,
        patience: int = _PATIENCE,
        directory: str | None = None,
        preloads: bool = False,
    ) -> None:
        self.name = name
        self.arguments = list(arguments)
        #: Why no process could be started, and none will be, if that is so.
        self.given_up: str | None = None
        #: Whether the cluster asked the process to leave: there is none any more.
        self.left = False
        #: Whether it leaves by itself, as the scheduler has asked it to: it counts no more.
        self.leaving = False
        self._died = died
        self._environment = environment
        self._output = output
        self._listens = listens
        self._patience = patience
        self._parent = directory
        #: What nanny plugins have put into the environment of the next process.
        self.env: dict[str, str] = {}
        #: Where the next process imports from, before all else.
        self.paths: list[str] = []
        #: Whether the present process began before a plugin that wants another one.
        self.stale = False
        #: Where the process listens; None while it starts.
        self.address: str | None = None
        self._nanny: Nanny | None = None
        self._making_nanny = threading.Lock()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wanted = True
        # The process that is to be replaced, however it ends.
        self._replacing: subprocess.Popen[bytes] | Forked | None = None
        self._log: deque[str] = deque(maxlen=_LINES)
        #: Whether the process has said that it has started whatever it needs.
        self.announced = False
        self._channel: Channel
        self._reader: threading.Thread
        if preloads and preloads_of("nanny")[0]:
            self._preload()
        self._process: subprocess.Popen[bytes] | Forked = self._start()
        self._watching = threading.Thread(
            target=self._watch, name=f"treadle-watch-{name}", daemon=True
        )
        self._watching.start()

    def _preload(self) -> None:
        try:
            self.nanny.preload()
        except BaseException:
            self.nanny.finish()
            raise

    @property
    def pid(self) -> int:
        """The process id of the present process, or of the last one."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether there is no process any more, and will be none."""
        return not self._watching.is_alive()

    def wait_until_announced(self, timeout: float) -> None:
        """Wait until the process has started whatever it needs.

        Raises
        ------
        RuntimeError
            It does not start: it is given up, or not wanted any more.
        TimeoutError
            It has not within so many seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.announced or not self._wanted, timeout):
                raise TimeoutError(f"worker {self.name} is not ready after {timeout:g} s")
            if not self._wanted:
                reason = self.given_up or "it is not wanted any more"
                raise RuntimeError(f"worker {self.name} does not start: {reason}")

    def log(self) -> str:
        """Return the last lines that the process printed."""
        return "\n".join(list(self._log))

    def _start(self, by_itself: bool = False) -> subprocess.Popen[bytes] | Forked:
        self.announced = self.stale = False
        self.address = None
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = self._start_with(theirs, by_itself)
            except BaseException:
                ours.close()
                raise
        assert process.stdin is not None
        assert process.stdout is not None
        for end in (process.stdin, process.stdout, ours):
            withhold(end)
        self._channel = Channel(ours, self._serve, self._loop, f"treadle-channel-{self.name}")
        self._reader = threading.Thread(
            target=self._read, args=(process.stdout,), name=f"treadle-log-{self.name}", daemon=True
        )
        self._reader.start()
        return process

    def _start_with(
        self, channel: socket.socket, by_itself: bool
    ) -> subprocess.Popen[bytes] | Forked:
        environment = _environment({**self._environment(), **self.env}, self.paths)
        template = None if by_itself else waiting(_COMMAND, environment)
        if template is not None:
            # It may have ended just now.
            with suppress(ConnectionError):
                return template.start(self.arguments, channel)
        number = channel.fileno()
        return subprocess.Popen(
            [*_COMMAND, "worker", "--channel", str(number), *self.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=[number],
            **_APART,
        )

    def _read(self, output: IO[bytes]) -> None:
        with output:
            while line := output.readline(_LONGEST_LINE):
                text = line.decode(errors="replace")
                if text.startswith(_ANNOUNCED):
                    with self._changed:
                        self.address = text.removeprefix(_ANNOUNCED).strip()
                        self.announced = True
                        self._patience = _PATIENCE
                        self._changed.notify_all()
                    told: Callable[[], Any] = partial(self._listens, self.address)
                else:
                    self._log.append(text.rstrip("\n"))
                    told = partial(self._output, text)
                # Nobody may read the output any more. The process is read on: its tasks print.
                with suppress(Exception):
                    told()

    def _watch(self) -> None:
        failures = 0
        while True:
            oom_kills = _oom_kills()
            process = self._process
            status = process.wait()
            # Its tasks may have left children behind.
            self._channel.close()
            with self._lock:
                replacing = self._replacing is process
                if not self._wanted:
                    self.left = self.left or self.leaving
                    break
            if status == LEFT and not replacing:
                self._end()
                break
            if status == UNREACHED:
                self._end("it found no scheduler")
                break
            if (error := _not_forked(process)) is not None:
                text = f"Worker {self.name} could not be forked, and is started by itself: {error}"
                aside(partial(logger.warning, text))
            elif not replacing and status != RESTART:
                failures = 0 if self.announced else failures + 1
                # A signal says nothing against the options.
                patience = self._patience if status >= 0 else _PATIENCE
                self._mourn(status, _oom_kills() > oom_kills, failures < patience)
                if failures >= patience:
                    # Children of it may go on, and print.
                    self._reader.join(_LAST_WORDS)
                    times = "" if failures == 1 else f" {failures} times"
                    self._give_up(f"it ended{times} before it was ready{PRINTED}{self.log()}")
                    break
                if failures > 1:
                    self._pause(_PAUSE * 2 ** (failures - 2))
            if not self._start_again(by_itself=error is not None):
                break
        with self._changed:
            self._changed.notify_all()
        if self._nanny is not None:
            self._nanny.finish()

    def _start_again(self, by_itself: bool) -> bool:
        failures = 0
        while True:
            try:
                with self._changed:
                    if self._wanted:
                        self._process = self._start(by_itself)
                    self._changed.notify_all()
                    return self._wanted
            except OSError as error:
                # There may be too many processes, or too little memory, for a moment.
                failures += 1
                if failures >= _PATIENCE:
                    self._give_up(f"a process could not be started {failures} times: {error}")
                    return False
            self._pause(_PAUSE * 2 ** (failures - 1))

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._wanted, seconds)

    def _give_up(self, failure: str) -> None:
        self._end(failure)
        # What the process has printed was seen when it came.
        why = failure.partition(PRINTED)[0]
        aside(lambda: logger.error("Worker %s is given up: %s", self.name, why))

    def _end(self, failure: str | None = None) -> None:
        with self._changed:
            self.given_up = failure
            self.left = failure is None
            self._wanted = False
            self._changed.notify_all()

    def _mourn(self, status: int, out_of_memory: bool, replaced: bool) -> None:
        death = Death(
            self.name,
            self._process.pid,
            status if status >= 0 else None,
            -status if status < 0 else None,
            out_of_memory and status == -signal.SIGKILL,
            self.log(),
        )
        more = "; it is replaced" if replaced else ""
        aside(lambda: logger.warning("%s%s", death, more))
        try:
            self._died(death)
        except Exception:
            aside(lambda: logger.warning("The scheduler could not be told that %s", death))

    # what the process, or the cluster through it, asks

    @property
    def nanny(self) -> Nanny:
        """What nanny plugins know of this; it is made when it is first asked for."""
        with self._making_nanny:
            if self._nanny is None:
                from treadle.cluster._nanny import Nanny

                self._nanny = Nanny(self, self._parent or temporary_directory())
            return self._nanny

    def _loop(self) -> LoopThread:
        return self.nanny.loop_thread

    async def _serve(self, channel: Channel, operation: str, kwargs: dict[str, Any]) -> Any:
        return await self.nanny.serve(channel, operation, kwargs)

    def is_of(self, channel: Channel) -> bool:
        """Whether a channel is that of the present process."""
        return channel is self._channel

    async def ask(self, operation: str, kwargs: Mapping[str, Any]) -> Any:
        """Call the present process, from the nanny's loop; see :meth:`Channel.ask`."""
        return await self._channel.ask(operation, kwargs)

    # its end

    def restart(self) -> None:
        """Have the process replaced, by force if need be; one that leaves has gone then."""
        with self._lock:
            if not self._wanted and not self.leaving:
                return
            self._replacing = process = self._process
        threading.Thread(target=_end_process, args=(process, 2.0), daemon=True).start()

    def let_go(self) -> None:
        """Let the process end by itself, when it has handed over its values; it is not replaced."""
        with self._changed:
            self.leaving = True
            self._wanted = False
            self._changed.notify_all()

    def send(self, number: int) -> None:
        """Have the process end by a signal; it is not replaced."""
        with self._changed:
            self._wanted = False
            self._changed.notify_all()
            process = self._process
        with suppress(ProcessLookupError):
            process.send_signal(number)

    def close(self) -> None:
        """Tell the process to end; :meth:`join` waits for that."""
        with self._changed:
            self._wanted = False
            self._changed.notify_all()
            process = self._process
        _close_input(process)

    def join(self, timeout: float) -> None:
        """Wait until the process has ended, and end it by force if it takes longer.

        Plugins are torn down by then, or have taken as long once more.
        """
        _end_process(self._process, timeout)
        self._watching.join(timeout)


def prepare_for(workers: int, environment: Callable[[], Mapping[str, str]] = dict) -> None:
    """Prepare to start so many workers, if that is worth it."""
    if workers > 1:
        prepare(_COMMAND, _environment(environment()), **_APART)


def _environment(more: Mapping[str, str], paths: Sequence[str] = ()) -> dict[str, str]:
    """Return the environment of a worker: it imports what this process can import."""
    inherited = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
    given = [more["PYTHONPATH"]] if "PYTHONPATH" in more else []
    environment = {
        **process_environment(),
        **variables(),
        **more,
        "PYTHONPATH": os.pathsep.join([*paths, *given, *inherited]),
    }
    # What tasks print is to be seen when it is printed.
    environment["PYTHONUNBUFFERED"] = "1"
    if environment.get("PYTHONHASHSEED") in (None, "0"):
        # Workers agree on the hashes of strings, by which bags are grouped: the number is distributed's.
        environment["PYTHONHASHSEED"] = "6640"
    return environment


def _not_forked(process: subprocess.Popen[bytes] | Forked) -> OSError | None:
    return process.error if isinstance(process, Forked) else None


def _close_input(process: subprocess.Popen[bytes] | Forked) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()


def _end_process(process: subprocess.Popen[bytes] | Forked, patience: float) -> None:
    _close_input(process)
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _oom_kills() -> int:
    """Return how many processes of this control group the kernel has killed for memory."""
    kills = 0
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers == "memory":
                files = [f"/sys/fs/cgroup/memory{group}/memory.oom_control"]
            elif not controllers:
                files = [f"/sys/fs/cgroup{group}/memory.events", "/sys/fs/cgroup/memory.events"]
            else:
                continue
            kills += next(filter(None, map(_oom_kills_in, files)), 0)
    return kills


def _oom_kills_in(file: str) -> int:
    with suppress(OSError, ValueError):
        for line in Path(file).read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
