"""The command ``treadle scheduler``."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treadle.cli._basics import announce, clear_errors, end_with_input
from treadle.cli._long_running import (
    Credentials,
    Ending,
    LogFile,
    http_option,
    http_token_option,
    journal_option,
    log_options,
    pages_of,
    security_options,
    supervised_option,
)
from treadle.cli._values import Seconds, file_to_write
from treadle.common import _scheduler_file

if TYPE_CHECKING:
    from treadle.scheduler import SupervisedSidecar

__all__ = ["scheduler"]

PORT = 7786
# Seconds in which workers and clients are told of the end.
_FAREWELL = 10.0


@click.command()
@click.option("--host", help="Where to listen: a name or an address; by default 127.0.0.1.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"By default {PORT}; 0 takes a free one."
)
@http_option
@click.option(
    "--http-name",
    "http_names",
    multiple=True,
    metavar="NAME",
    help="A further host name that is allowed in the URL of state and metrics. localhost, this host's "
    "name and IP addresses always are. May be repeated.",
)
@http_token_option
@click.option(
    "--scheduler-file",
    type=click.Path(dir_okay=False),
    callback=file_to_write,
    metavar="PATH",
    help="Write the address and the place of the secret to a file, for workers and clients.",
)
@click.option(
    "--worker-timeout",
    type=Seconds(0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="A worker that sends nothing for this long is lost.",
)
@click.option(
    "--history",
    type=click.Path(),
    metavar="PATH",
    help="Write what the cluster does to a new file, or into a directory: `treadle history` shows it later, also "
    "after a crash. It ends at --history-limit.",
)
@click.option(
    "--history-limit",
    metavar="BYTES",
    help="How long the history may be, such as 4GiB; by default treadle.history-limit of Dask's configuration, or "
    "1GiB.",
)
@click.option(
    "--contact-address",
    multiple=True,
    metavar="HOST:PORT",
    help="Another address of this scheduler: a forwarded port, a container, a service. Without TLS, it "
    "accepts connections only to its own address and to these. May be repeated.",
)
@click.option(
    "--idle-timeout",
    metavar="TIME",
    help="End the cluster, with its workers, when it had nothing to do for this long, such as 1h; by default "
    "distributed.scheduler.idle-timeout of Dask's configuration, or never.",
)
@journal_option
@supervised_option
@log_options
@security_options
@click.argument("address", required=False, metavar="[ADDRESS]")
def scheduler(
    address: str | None,
    host: str | None,
    port: int | None,
    http: str,
    http_names: tuple[str, ...],
    http_token_file: str | None,
    scheduler_file: str | None,
    worker_timeout: float,
    history: str | None,
    history_limit: str | None,
    contact_address: tuple[str, ...],
    idle_timeout: str | None,
    shuffle_journal: str | None,
    supervised: bool,
    log_file: str | None,
    log_file_size: int,
    tls: str | None,
    insecure: bool,
    secret_file: str | None,
) -> None:
    """Run the scheduler of a cluster until SIGTERM or Ctrl-C.

    ADDRESS is where to listen, such as treadle+tls://0.0.0.0:7786; --host and --port say the same.
    Workers join with `treadle worker ADDRESS`, clients connect with treadle.Client(ADDRESS).
    """
    if address is not None and (host is not None or port is not None):
        raise click.UsageError("give ADDRESS, or --host and --port")
    credentials = Credentials.of_options(tls, insecure, secret_file)
    if address is None:
        address = f"{host or '127.0.0.1'}:{PORT if port is None else port}"
    with clear_errors():
        _serve(
            credentials,
            credentials.address(address),
            [credentials.address(contact) for contact in contact_address],
            pages_of(http, http_names, http_token_file),
            scheduler_file,
            supervised,
            worker_timeout,
            history,
            history_limit,
            idle_timeout,
            shuffle_journal,
            LogFile(log_file, log_file_size),
        )


def _serve(
    credentials: Credentials,
    address: str,
    contact: list[str],
    pages: dict[str, Any],
    scheduler_file: str | None,
    supervised: bool,
    worker_timeout: float,
    history: str | None,
    history_limit: str | None,
    idle_timeout: str | None,
    shuffle_journal: str | None,
    log: LogFile,
) -> None:
    # Not before somebody runs the command: it imports distributed.
    from treadle import _core
    from treadle.common._settings import idle_timeout_of, scheduler_settings, warn_of_unread
    from treadle.scheduler import SupervisedSidecar
    from treadle.scheduler._idle import IdleTime
    from treadle.shuffle._journal import Journal, default_path, path_of

    warn_of_unread()
    most_idle = idle_timeout_of(idle_timeout)
    server: Any = _core.Scheduler(
        address,
        contact=contact,
        settings=scheduler_settings(worker_timeout, history, history_limit),
        **pages,
        **credentials.of_connections(),
    )

    def connect(handlers: Any) -> Any:
        return _core.Connection(
            server.address, "sidecar", handlers, role="sidecar", **credentials.of_connections()
        )

    sidecar: SupervisedSidecar | None = None
    written: bytes | None = None
    try:
        path = path_of(shuffle_journal, default_path())
        journal = None if path is None else Journal(path, server.cluster)
        sidecar = SupervisedSidecar(
            connect, journal, credentials.of_connections(), server.wait, preloads=True
        )
        if supervised:
            end_with_input()
        ending = Ending()
        if scheduler_file is not None:
            _scheduler_file.write(scheduler_file, _values(server, contact, credentials))
            written = Path(scheduler_file).read_bytes()
        if server.http:
            # Others may read a log, and what is in the terminal is the user's.
            link = server.http if sys.stdout.isatty() else server.http.partition("?")[0]
            announce(f"state and metrics at {link}")
        log.listening(server.address)
        idle = IdleTime(sidecar)
        while not ending.asked and not server.wait(0.2):
            if most_idle is not None and idle.seconds() > most_idle:
                announce(f"the cluster ends: it had nothing to do for {most_idle:g} s")
                idle.end_cluster()
                server.wait(_FAREWELL)
                break
    finally:
        if scheduler_file is not None and written is not None:
            with suppress(OSError):
                # Another scheduler may have written its own.
                if Path(scheduler_file).read_bytes() == written:
                    os.unlink(scheduler_file)
        if sidecar is not None:
            sidecar.close()
        server.close()


def _reachable(address: str) -> str:
    """Return where others reach a listener: one at all addresses of this machine, at its own address."""
    from distributed.utils import get_ip, get_ipv6

    scheme, _, place = address.partition("://")
    host, _, port = place.rpartition(":")
    if host == "0.0.0.0":
        host = get_ip()
    elif host == "[::]":
        host = f"[{get_ipv6()}]"
    return f"{scheme}://{host}:{port}"


def _values(server: Any, contact: list[str], credentials: Credentials) -> dict[str, str]:
    """Return what the scheduler file says."""
    address = contact[0] if contact else _reachable(server.address)
    values = {"address": address, "cluster": server.cluster}
    if credentials.secret_file is not None:
        values["secret_file"] = str(credentials.secret_file)
    elif credentials.tls is None and (secret := os.environ.get("TREADLE_SECRET_FILE")):
        values["secret_file"] = os.path.abspath(secret)
    if credentials.tls is not None:
        values["tls"] = os.path.abspath(credentials.tls)
    if server.http:
        values["http"] = server.http
    return values
