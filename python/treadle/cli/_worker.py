"""The command ``treadle worker``."""

from __future__ import annotations

import errno
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from treadle.cli._basics import clear_errors, end_with_input
from treadle.cli._long_running import (
    Credentials,
    Ending,
    LogFile,
    log_options,
    scheduler_of,
    security_options,
    supervised_option,
)
from treadle.cli._supervisor import nworkers_of, supervise
from treadle.cli._values import Seconds
from treadle.cli._worker_options import checked, worker_options
from treadle.common._own_address import reachable
from treadle.errors._exit_status import LEFT, LOST, OVERFLOWED, RESTART, UNREACHED
from treadle.pickling._script import become_worker

if TYPE_CHECKING:
    from treadle._core import Directory
    from treadle.common._lifetime import Lifetime
    from treadle.common._worker_options import WorkerOptions
    from treadle.worker._ends import End
    from treadle.worker._engine import Engine
    from treadle.worker._main_thread import MainThread

__all__ = ["worker"]

_T = TypeVar("_T")

# Where the arguments are kept as they were given.
_GIVEN = "treadle.given"

# Seconds that running tasks have to notice the end.
_PATIENCE = 2.0

# Seconds between attempts to reach a scheduler that is not there: the first, and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0

# What the system says where there is no such scheduler, or not yet.
_NOBODY = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)


class _Remembering(click.Command):
    """A command that keeps the arguments as they were given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_GIVEN] = list(args)
        return super().parse_args(ctx, args)


@click.command(cls=_Remembering)
@click.option(
    "--nworkers",
    metavar="N",
    help="How many worker processes; -1: one a core; auto: as many as suit the cores, with threads.",
)
@click.option(
    "--nanny/--no-nanny",
    default=True,
    show_default=True,
    help="Replace a worker that ended, and one that lost the scheduler: workers are processes of "
    "their own then.",
)
@click.option(
    "--death-timeout",
    metavar="SECONDS",
    help="How long to wait for the scheduler, in the beginning and when it was lost; for ever by "
    "default.",
)
@worker_options()
@click.option(
    "--name",
    help="Unique in the cluster; by default the host and the process id. Several workers are NAME-0, "
    "NAME-1, ...",
)
@click.option("--listen", metavar="HOST:PORT", help="Where other workers and clients get values.")
@click.option(
    "--contact-address",
    metavar="HOST:PORT",
    help="The address that other machines use for this worker, if it differs from --listen (a forwarded "
    "port, for example).",
)
@click.option(
    "--scheduler-timeout",
    type=Seconds(0.1),
    metavar="SECONDS",
    help="A scheduler that sends nothing for this long is gone; by default 300.",
)
@click.option(
    "--silence-logs",
    type=int,
    default=0,
    hidden=True,
    help="The level below which distributed's loggers say nothing on standard error.",
)
@supervised_option
@click.option(
    "--channel",
    type=int,
    hidden=True,
    help="The descriptor of a socket, by which who started this process is called.",
)
@click.option(
    "--options",
    "told",
    hidden=True,
    help="What who started this process has checked, in place of the options of a worker.",
)
@click.option(
    "--script",
    type=click.Path(dir_okay=False),
    hidden=True,
    help="A file that says what script started this process, and with what arguments.",
)
@click.option(
    "--scheduler-file",
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="What the scheduler wrote, or will write, instead of ADDRESS.",
)
@log_options
@security_options
@click.argument("address", required=False)
@click.pass_context
def worker(
    context: click.Context,
    /,
    address: str | None,
    nworkers: str | None,
    nanny: bool,
    death_timeout: str | None,
    name: str | None,
    listen: str | None,
    contact_address: str | None,
    scheduler_timeout: float | None,
    silence_logs: int,
    supervised: bool,
    channel: int | None,
    told: str | None,
    script: str | None,
    scheduler_file: str | None,
    log_file: str | None,
    log_file_size: int,
    tls: str | None,
    insecure: bool,
    secret_file: str | None,
    **given: Any,
) -> None:
    """Run workers of the scheduler at ADDRESS.

    They leave on SIGTERM, after their values have moved to other workers; a second SIGTERM, or
    Ctrl-C, ends them at once. A worker that ends otherwise is replaced, unless the cluster asked it
    to leave. The exit status is 0 when all were asked to leave, and 1 when one could not start or
    found no scheduler within --death-timeout.

    With --no-nanny this process is the worker, and ends with it: with status 75 when it was asked to
    restart, 71 when a task took more memory than the limit, 1 when it lost the scheduler. With
    --supervised, which implies that, it is 69 when the cluster asked it to leave (do not start it
    again), 74 when it lost the scheduler, and 68 when it found none.
    """
    if (address is None) == (scheduler_file is None):
        raise click.UsageError("give the scheduler's ADDRESS, or --scheduler-file")
    limit_of_wait = _seconds(death_timeout)
    if supervised:
        nworkers = None
    count, threads = (1, None) if nworkers is None else nworkers_of(nworkers)
    if count > 1 and not nanny:
        raise click.UsageError("--no-nanny is for one worker, and --nworkers asks for more")
    if count > 1 and (listen or contact_address):
        raise click.UsageError("--listen and --contact-address are for one worker")
    find = partial(scheduler_of, address, scheduler_file, tls, insecure, secret_file)
    if nanny and not supervised:
        from treadle.common._settings import warn_of_unread

        warn_of_unread()
        given["nthreads"] = given["nthreads"] or threads
        # What can be seen to be wrong is said once.
        options = checked(given, workers=count)
        with clear_errors():
            if scheduler_file is None:
                # Whatever is wrong with it is said here, and not by each worker.
                find()
            status = supervise(
                context.meta[_GIVEN],
                count=count,
                nthreads=options.nthreads,
                name=name,
                log_file=log_file,
                directory=options.local_directory,
                scheduler=lambda: find()[:2],
            )
        _exit(status)
        return
    with clear_errors("is the scheduler running?"):
        # Nothing has begun yet: asked to end, it ends.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        directory = None
        try:
            if supervised:
                # First of all: who started this process may be gone before it is connected.
                end_with_input()
            become_worker(script)
            options = _options_of(told, given)
            directory = _directory_in(options.local_directory)
            status = _run(
                find,
                str(directory.path),
                options,
                supervised=supervised,
                channel=channel,
                name=name or f"{socket.gethostname()}-{os.getpid()}",
                listen=listen,
                contact=contact_address,
                scheduler_timeout=scheduler_timeout,
                death_timeout=limit_of_wait,
                silence_logs=silence_logs,
                log=LogFile(log_file, log_file_size),
            )
        except KeyboardInterrupt:
            # Before it had begun.
            status = 0
        except _OutdatedError:
            status = RESTART
        except _UnreachedError as error:
            if not supervised:
                raise click.ClickException(f"{error}; is the scheduler running?") from None
            click.echo(f"Error: {error}", err=True)
            status = UNREACHED
        finally:
            if directory is not None:
                directory.remove()
    _exit(status)


def _options_of(told: str | None, given: dict[str, Any]) -> WorkerOptions:
    """Return what who started this process has checked, or else what the user gave."""
    if told is None:
        return checked(given)
    from treadle.common._worker_options import WorkerOptions

    return WorkerOptions.of_argument(told)


def _run(
    find: Callable[[], tuple[str, Credentials, str | None]],
    directory: str,
    options: WorkerOptions,
    *,
    supervised: bool,
    channel: int | None,
    name: str,
    listen: str | None,
    contact: str | None,
    scheduler_timeout: float | None,
    death_timeout: float,
    silence_logs: int,
    log: LogFile,
) -> int:
    # Not before somebody runs the command: it imports distributed.
    from treadle import _core
    from treadle.common._lifetime import lifetime_of
    from treadle.common._log import silence
    from treadle.common._settings import (
        memory_share_of_termination,
        preloads_of,
        sight_memory_of_worker,
        warn_of_unread,
    )
    from treadle.worker._main_thread import MainThread
    from treadle.worker._nanny_channel import Supervisor
    from treadle.worker._service import Service

    if silence_logs:
        silence(silence_logs)
    # Copies of a worker that its tasks forked have no use without it, and memory and files all the same.
    _core.end_children_with_process()
    if not supervised:
        warn_of_unread()
    configured, arguments = preloads_of("worker")
    main_thread = MainThread()
    waiting = _Waiting(death_timeout)
    credentials = waiting.until_there(find)[1]
    # A socket is not inherited by the processes that tasks start.
    end = None if channel is None else socket.socket(fileno=channel)
    if end is not None:
        end.set_inheritable(False)
    supervisor = Supervisor(name, directory, end)
    service = Service(
        supervisor=supervisor,
        connection=credentials.of_connections(),
        preload=options.preload or configured,
        preload_argv=arguments,
        own_process=True,
        main_thread=main_thread,
    )
    info = {**Service.info(), "local_directory": directory, "supervised": supervised}

    if options.memory_limit:
        _core.keep_below(options.memory_limit)

    def connect() -> Any:
        # A scheduler that was started again may be elsewhere, and its file says where.
        address, credentials, cluster = find()
        _remember(address, credentials)
        if supervisor.is_there and supervisor.prepare(address, credentials.of_connections()):
            raise _OutdatedError
        return _core.Worker(
            address,
            options,
            name=name,
            directory=directory,
            service=service,
            listen=credentials.address(listen or reachable(address)),
            contact=None if contact is None else credentials.address(contact),
            cluster=cluster,
            info=info,
            scheduler_timeout=scheduler_timeout,
            terminate=memory_share_of_termination(),
            sight_memory=sight_memory_of_worker(),
            **credentials.of_connections(),
        )

    native: Any = waiting.until_there(connect)
    status = 1
    try:
        ending = Ending(main_thread.interrupted)
        native.start()
        log.listening(native.address)
        stay = lifetime_of(options.lifetime, options.lifetime_stagger, options.lifetime_restart)
        status = _serve(native, ending, main_thread, service.engine, supervised, stay)
    finally:
        _close(native, status)
        service.stop()
    return status


class _OutdatedError(Exception):
    """A nanny plugin wants another process than this one, which has not joined yet."""


class _UnreachedError(Exception):
    """There is no scheduler, for too long."""


class _Waiting:
    """Waits for a scheduler that is not there, for so many seconds in all."""

    def __init__(self, patience: float) -> None:
        self._until = time.monotonic() + patience
        self._pause = _FIRST_PAUSE

    def until_there(self, function: Callable[[], _T]) -> _T:
        """Return what a function returns when it finds the scheduler.

        Raises
        ------
        _UnreachedError
            There is none, for too long.
        Exception
            What the function raises if there is one.
        """
        while True:
            try:
                return function()
            except OSError as error:
                if not _is_nobody(error):
                    raise
                left = self._until - time.monotonic()
                if left <= 0:
                    raise _UnreachedError(str(error)) from None
                if self._pause == _FIRST_PAUSE:
                    click.echo(f"Waiting for the scheduler: {error}", err=True)
            time.sleep(min(self._pause, left))
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def _is_nobody(error: OSError) -> bool:
    """Whether nobody answered. Who refuses says why, and would say it again."""
    if isinstance(error, TimeoutError):
        return True
    return any(os.strerror(number) in str(error) for number in _NOBODY)


def _seconds(text: str | None) -> float:
    """Return how long ``--death-timeout`` says; without it, for ever."""
    from dask.utils import parse_timedelta

    if text is None:
        return math.inf
    try:
        return float(parse_timedelta(text, "s"))
    except (ValueError, KeyError):
        raise click.BadParameter(
            f"{text!r}: give seconds, or such as 5min", param_hint="--death-timeout"
        ) from None


def _status(end: End, ending: Ending, supervised: bool) -> int:
    from treadle.worker._ends import Cause

    if end.cause is Cause.RESTARTED:
        return RESTART
    if end.cause is Cause.OVERFLOWED:
        # The native side is about to end the process with this status: whoever is first, it is replaced.
        return OVERFLOWED
    lost = end.cause in (Cause.LOST, Cause.DISMISSED)
    if lost or end.cause is Cause.FAILED:
        # A task may have closed standard error.
        with suppress(OSError, ValueError):
            click.echo(f"Error: {end.reason}", err=True)
        return LOST if supervised and lost else 1
    # A signal may be anybody's: the cluster still wants the worker then.
    return LEFT if supervised and not ending.asked else 0


def _serve(
    native: Any,
    ending: Ending,
    main_thread: MainThread,
    engine: Engine,
    supervised: bool,
    lifetime: Lifetime | None,
) -> int:
    """Lend this thread to the engine until the worker ends, or is to; return the exit status."""
    statuses: list[int] = []
    left = threading.Event()

    def watch() -> None:
        status = _status(_watch(native, ending, lifetime), ending, supervised)
        statuses.append(status)
        main_thread.stop()
        engine.close()
        if not left.wait(0.05 if ending.now else _PATIENCE):
            main_thread.interrupt()
        if not left.wait(_PATIENCE):
            # What was cast does not listen.
            _close(native, status)
            native.remove_directory()
            _exit(status)

    watching = threading.Thread(target=watch, name="treadle-watch", daemon=True)
    watching.start()
    main_thread.run()
    left.set()
    watching.join()
    return statuses[0]


def _watch(native: Any, ending: Ending, lifetime: Lifetime | None) -> End:
    """Wait until the worker ends, or is to; return why."""
    from treadle.worker._ends import Cause, End, end_of

    draining = restarting = False
    while True:
        # A signal that asks to end is seen after this time at the latest.
        end = end_of(native, 0.2)
        if end is not None:
            if restarting and end.cause is Cause.DRAINED and not ending.asked:
                return End(Cause.RESTARTED, "its lifetime is over")
            return end
        if ending.now:
            return End(Cause.CLOSED, "it was interrupted")
        is_over = lifetime is not None and lifetime.is_over
        if (ending.asked or is_over) and not draining:
            draining = True
            restarting = lifetime is not None and is_over and lifetime.restart
            native.drain()


def _close(native: Any, status: int) -> None:
    """Say goodbye to the scheduler; tasks that run are not waited for long."""
    # To the scheduler, one that left or restarts because it was asked to has ended well.
    arguments = ("it was closed", 0 if status in (LEFT, RESTART) else status)
    closing = threading.Thread(target=native.close, args=arguments, daemon=True)
    try:
        closing.start()
    except RuntimeError:
        # There is no thread for it: the end of the process closes it.
        return
    closing.join(_PATIENCE)


def _exit(status: int) -> None:
    """End the process, whatever its tasks do."""
    if status == 0 and threading.active_count() == 1:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # A task may have put anything there.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    _flush_log()
    # A thread that runs a task would be torn down under way by the interpreter's own end.
    os._exit(status)


def _flush_log() -> None:
    from treadle import _core

    _core.flush_log()


def _directory_in(parent: str | None) -> Directory:
    """Make a directory of this worker's own, in the one that was named."""
    from treadle import _core
    from treadle.common._settings import temporary_directory

    return _core.Directory("worker", parent or temporary_directory())


def _remember(address: str, credentials: Credentials) -> None:
    """Let `Client(address)` in tasks find the certificates and the secret."""
    if credentials == Credentials(None, False, None):
        return
    from treadle.common import _addresses

    _addresses.remember(address, **credentials.of_connections())
