"""What ``treadle worker`` is with its nanny: it looks after workers in processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from treadle.cli._basics import listening
from treadle.cli._long_running import Credentials, Ending
from treadle.cluster._worker_process import PRINTED, Death, WorkerProcess, prepare_for
from treadle.common._stderr import wait_for_asides
from treadle.worker._nanny_calls import tell

__all__ = ["nworkers_of", "supervise"]

# Seconds between two looks at signals and workers.
_TICK = 0.1
# Seconds for what is left to be written when all is over.
_LAST_WORDS = 2.0


def nworkers_of(text: str) -> tuple[int, int | None]:
    """Return how many workers ``--nworkers`` asks for, and how many threads each has, if it says so.

    Raises
    ------
    click.BadParameter
        It is no number, or less than one worker.
    """
    from dask.system import CPU_COUNT

    if text == "auto":
        from distributed.deploy.utils import nprocesses_nthreads

        processes, threads = nprocesses_nthreads()
        return processes, threads
    try:
        count = int(text)
    except ValueError:
        count = 0
    # As distributed has it: -1 is one for each core.
    if count < 0:
        count += CPU_COUNT + 1
    if count < 1:
        raise click.BadParameter(
            f"{text!r}: give how many workers, such as 4, or -1 for one a core, or auto",
            param_hint="--nworkers",
        )
    return count, None


def supervise(
    arguments: Sequence[str],
    *,
    count: int,
    nthreads: int,
    name: str | None,
    log_file: str | None,
    directory: str | None,
    scheduler: Callable[[], tuple[str, Credentials]],
) -> int:
    """Run workers until they have left, or this process is asked to end; return its exit status.

    Parameters
    ----------
    arguments
        Of ``treadle worker``, as the user gave them.
    count, nthreads
        How many workers, and the threads of each.
    name, log_file
        As the user gave them. With several workers, each has its number behind them.
    directory
        Where files are kept; by default as for :class:`WorkerProcess`.
    scheduler
        Returns the address of the scheduler, and what lets in there.
    """
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    ending = Ending()
    output = partial(click.echo, nl=False)
    workers: list[WorkerProcess] = []
    prepare_for(count)
    for number in range(count):
        suffix = f"-{number}" if count > 1 else ""
        own = ["--supervised", "--name", name + suffix, "--nthreads", str(nthreads)]
        if log_file is not None:
            own += ["--log-file", log_file + suffix]
        worker = WorkerProcess(
            name + suffix,
            _with(arguments, own),
            partial(_died, scheduler),
            output=output,
            listens=partial(_listens, scheduler, name + suffix),
            # What is wrong with the options is wrong the next time, too.
            patience=1,
            directory=directory,
            preloads=True,
        )
        workers.append(worker)
    _attend(workers, ending)
    failed = {worker.name: worker.given_up for worker in workers if worker.given_up}
    wait_for_asides(_LAST_WORDS)
    for failed_name, why in failed.items():
        # What a process has printed was seen when it came.
        click.echo(f"Error: worker {failed_name}: {why.partition(PRINTED)[0]}", err=True)
    return 1 if failed and not ending.asked else 0


def _with(arguments: Sequence[str], own: Sequence[str]) -> list[str]:
    """Add options, which are the last and so count, to arguments."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    return [*given[:end], *own, *given[end:]]


def _attend(workers: Sequence[WorkerProcess], ending: Ending) -> None:
    """Hand signals on, and wait until no worker is left."""
    told = 0
    waiting = threading.Event()
    while not all(worker.is_over for worker in workers):
        asked = 2 if ending.now else int(ending.asked)
        if asked > told:
            told = asked
            for worker in workers:
                worker.send(signal.SIGINT if ending.now else signal.SIGTERM)
        waiting.wait(_TICK)


def _listens(scheduler: Callable[[], tuple[str, Credentials]], name: str, address: str) -> None:
    # The scheduler waits a little for the causes of its deaths.
    _say(scheduler, name, "supervise", {"names": [name]})
    # Last: nobody may read the output any more.
    listening(address)


def _died(scheduler: Callable[[], tuple[str, Credentials]], death: Death) -> None:
    """Tell the scheduler, which only knows that a connection has ended."""
    _say(scheduler, death.name, "worker-exited", death.as_told())


def _say(
    scheduler: Callable[[], tuple[str, Credentials]],
    name: str,
    operation: str,
    argument: dict[str, Any],
) -> None:
    def say() -> None:
        # It may be gone.
        with suppress(OSError, ValueError, click.ClickException):
            address, credentials = scheduler()
            tell(address, operation, argument, credentials=credentials.of_connections(), name=name)

    threading.Thread(target=say, name="treadle-say", daemon=True).start()
