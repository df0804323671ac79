"""The command ``treadle worker``."""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from treadle._cli import clear_errors, end_with_input, listening
from treadle._cli_cluster import Credentials, Ending, security_options

if TYPE_CHECKING:
    from treadle.worker._engine import Engine
    from treadle.worker._main_thread import MainThread

__all__ = ["worker"]

# Seconds that running tasks have to notice the end.
_PATIENCE = 2.0


def _resources(_context: click.Context, _option: click.Parameter, text: str) -> dict[str, float]:
    resources = {}
    for pair in text.replace(",", " ").split():
        name, _, amount = pair.partition("=")
        try:
            resources[name] = float(amount)
        except ValueError:
            name = ""
        if not name:
            raise click.BadParameter(f"{pair!r}: write NAME=AMOUNT, such as GPU=2")
    return resources


@click.command()
@click.option("--nthreads", type=click.IntRange(1), help="Tasks at once; by default one a core.")
@click.option(
    "--memory-limit",
    default="auto",
    show_default=True,
    help="For values: bytes, 2GiB, a share of the memory such as 0.5, 0 for no limit; auto is this "
    "worker's share, by cores, of what the control group allows.",
)
@click.option("--local-directory", type=click.Path(file_okay=False), help="For values on disk.")
@click.option(
    "--resources",
    default="",
    callback=_resources,
    metavar="NAME=AMOUNT ...",
    help='What tasks may ask for: "GPU=2 MEM=10e9".',
)
@click.option("--name", help="Unique in the cluster; by default the host and the process id.")
@click.option("--listen", metavar="HOST:PORT", help="Where other workers and clients get values.")
@click.option("--preload", multiple=True, help="A module or script with dask_setup(worker).")
@click.option("--supervised", is_flag=True, help="End when standard input does.")
@click.option(
    "--scheduler-file",
    type=click.Path(dir_okay=False, exists=True),
    metavar="PATH",
    help="What the scheduler wrote, instead of ADDRESS.",
)
@security_options
@click.argument("address", required=False)
def worker(
    address: str | None,
    nthreads: int | None,
    memory_limit: str,
    local_directory: str | None,
    resources: dict[str, float],
    name: str | None,
    listen: str | None,
    preload: tuple[str, ...],
    supervised: bool,
    scheduler_file: str | None,
    tls: str | None,
    insecure: bool,
    secret_file: str | None,
) -> None:
    """Run a worker of the scheduler at ADDRESS.

    It leaves on SIGTERM, after its values have moved to other workers; a second SIGTERM, or Ctrl-C,
    ends it at once. The exit status is 0 when it was asked to leave, 75 when it was asked to
    restart, 1 when it lost the scheduler.
    """
    if (address is None) == (scheduler_file is None):
        raise click.UsageError("give the scheduler's ADDRESS, or --scheduler-file")
    if supervised:
        # First of all: who started this process may be gone before it is connected.
        end_with_input()
    with clear_errors("is the scheduler running?"):
        if scheduler_file is not None:
            address, of_file = _of_file(scheduler_file)
            secret_file = secret_file or of_file
        assert address is not None
        credentials = Credentials.of_options(tls, insecure, secret_file)
        address = credentials.address(address)
        directory = _make_directory(local_directory)
        try:
            status = _run(
                credentials,
                address,
                directory,
                supervised=supervised,
                preload=preload,
                nthreads=nthreads,
                memory_limit=memory_limit,
                resources=resources,
                name=name or f"{socket.gethostname()}-{os.getpid()}",
                listen=listen,
            )
        except KeyboardInterrupt:
            # Before it had begun.
            status = 0
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    _exit(status)


def _run(
    credentials: Credentials,
    address: str,
    directory: str,
    *,
    supervised: bool,
    preload: tuple[str, ...],
    nthreads: int | None,
    memory_limit: str,
    resources: dict[str, float],
    name: str,
    listen: str | None,
) -> int:
    # Not before somebody runs the command: it imports distributed.
    from dask.system import CPU_COUNT

    from treadle import _core
    from treadle._settings import memory_share_of_termination
    from treadle.worker._main_thread import MainThread
    from treadle.worker._service import Service

    nthreads = nthreads or CPU_COUNT
    limit = _bytes(memory_limit, nthreads)
    _remember(address, credentials)
    main_thread = MainThread()
    service = Service(
        connection=credentials.of_connections(),
        preload=preload,
        own_process=True,
        main_thread=main_thread,
    )
    native: Any = _core.Worker(
        address,
        name=name,
        nthreads=nthreads,
        memory_limit=limit,
        directory=directory,
        resources=resources,
        service=service,
        listen=credentials.address(listen or _reachable(address)),
        info={**Service.info(), "local_directory": directory, "supervised": supervised},
        terminate=memory_share_of_termination(),
        **credentials.of_connections(),
    )
    try:
        ending = Ending(main_thread.interrupted)
        native.start()
        listening(native.address)
        reason = _serve(native, ending, main_thread, service.engine)
    finally:
        _close(native)
        service.stop()
    return _status(reason)


def _status(reason: str) -> int:
    from treadle.worker._service import RESTART

    if reason == "restart":
        return RESTART
    if reason.startswith("the connection"):
        click.echo(f"Error: {reason}", err=True)
        return 1
    return 0


def _serve(native: Any, ending: Ending, main_thread: MainThread, engine: Engine) -> str:
    """Lend this thread to the engine until the worker ends, or is to; return why."""
    reasons: list[str] = []
    left = threading.Event()

    def watch() -> None:
        reason = _watch(native, ending)
        reasons.append(reason)
        main_thread.stop()
        engine.close()
        if not left.wait(0.05 if ending.now else _PATIENCE):
            main_thread.interrupt()
        if not left.wait(_PATIENCE):
            # What was cast does not listen.
            _close(native)
            shutil.rmtree(native.directory, ignore_errors=True)
            _exit(_status(reason))

    watching = threading.Thread(target=watch, name="treadle-watch", daemon=True)
    watching.start()
    main_thread.run()
    left.set()
    watching.join()
    return reasons[0]


def _watch(native: Any, ending: Ending) -> str:
    """Wait until the worker ends, or is to; return why."""
    draining = False
    while True:
        # A signal that asks to end is seen after this time at the latest.
        reason = native.wait(0.2)
        if reason is not None:
            return str(reason)
        if ending.now:
            return "it was interrupted"
        if ending.asked and not draining:
            draining = True
            native.drain()


def _close(native: Any) -> None:
    """Say goodbye to the scheduler; tasks that run are not waited for long."""
    closing = threading.Thread(target=native.close, args=("it was closed",), daemon=True)
    closing.start()
    closing.join(_PATIENCE)


def _exit(status: int) -> None:
    """End the process, whatever its tasks do."""
    if status == 0 and threading.active_count() == 1:
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread that runs a task would be torn down under way by the interpreter's own end.
    os._exit(status)


def _bytes(memory_limit: str, nthreads: int) -> int:
    from distributed.worker_memory import parse_memory_limit

    logger = logging.getLogger("treadle.worker")
    try:
        return parse_memory_limit(memory_limit, nthreads, logger=logger) or 0
    except ValueError:
        raise click.BadParameter(
            f"{memory_limit!r}: give bytes, 2GiB, a share such as 0.5, 0, or auto",
            param_hint="--memory-limit",
        ) from None


def _make_directory(parent: str | None) -> str:
    """Make a directory of this worker's own, in the one that was named."""
    if parent is None:
        import dask

        parent = dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    os.makedirs(parent, exist_ok=True)
    return tempfile.mkdtemp(prefix="treadle-worker-", dir=parent)


def _reachable(scheduler: str) -> str:
    """Return an address of this host that whoever reaches the scheduler can reach."""
    from distributed.utils import get_ip

    host, _, port = scheduler.partition("://")[2].rpartition(":")
    host = host.strip("[]")
    find: Callable[..., str] = get_ip
    own = "127.0.0.1" if host in ("127.0.0.1", "localhost") else find(host, int(port))
    return f"[{own}]:0" if ":" in own else f"{own}:0"


def _remember(address: str, credentials: Credentials) -> None:
    """Let `Client(address)` in tasks find the certificates; the secret's file is known already."""
    if credentials.tls is None and not credentials.insecure:
        return
    from treadle.client import _addresses

    _addresses.remember(address, **credentials.of_connections())


def _of_file(path: str) -> tuple[str, str | None]:
    """Return the scheduler's address, and the file of the secret."""
    with open(path, encoding="utf-8") as file:
        values = json.load(file)
    if not isinstance(values, dict) or not isinstance(values.get("address"), str):
        raise ValueError(f"{path} is no scheduler file: it names no address")
    return values["address"], values.get("secret_file")
