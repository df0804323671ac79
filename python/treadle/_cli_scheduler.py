"""The command ``treadle scheduler``."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from treadle._cli import clear_errors, end_with_input, listening
from treadle._cli_cluster import Credentials, Ending, security_options

if TYPE_CHECKING:
    from treadle.sidecar import Sidecar

__all__ = ["scheduler"]

PORT = 7786


@click.command()
@click.option("--host", help="Where to listen: a name or an address; by default 127.0.0.1.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help=f"By default {PORT}; 0 takes a free one."
)
@click.option(
    "--http",
    default="127.0.0.1:0",
    show_default=True,
    metavar="HOST:PORT",
    help="Where the state and the metrics are shown; none for nowhere.",
)
@click.option(
    "--scheduler-file",
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="Write the address and the place of the secret to a file, for workers and clients.",
)
@click.option(
    "--worker-timeout",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="A worker that says nothing for so long is lost.",
)
@click.option("--supervised", is_flag=True, help="End when standard input does.")
@security_options
@click.argument("address", required=False, metavar="[ADDRESS]")
def scheduler(
    address: str | None,
    host: str | None,
    port: int | None,
    http: str,
    scheduler_file: str | None,
    worker_timeout: float,
    supervised: bool,
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
            None if http == "none" else http,
            scheduler_file,
            supervised,
            worker_timeout,
        )


def _serve(
    credentials: Credentials,
    address: str,
    http: str | None,
    scheduler_file: str | None,
    supervised: bool,
    worker_timeout: float,
) -> None:
    # Not before somebody runs the command: it imports distributed.
    from treadle import _core
    from treadle._settings import scheduler_settings
    from treadle.sidecar import Sidecar

    server: Any = _core.Server(
        address,
        http=http,
        settings=scheduler_settings(worker_timeout),
        **credentials.of_connections(),
    )

    def connect(handlers: Any) -> Any:
        return _core.Connection(
            server.address, "sidecar", handlers, role="sidecar", **credentials.of_connections()
        )

    sidecar: Sidecar | None = None
    try:
        sidecar = Sidecar(connect)
        if supervised:
            end_with_input()
        ending = Ending()
        if scheduler_file is not None:
            _write(scheduler_file, server.address)
        if server.http:
            click.echo(f"state and metrics at {server.http}")
        listening(server.address)
        while not ending.asked and not server.wait(0.2):
            if sidecar.closed.is_set():
                # Tasks go on without it; locks, queues and variables begin anew.
                click.echo(f"the Python side ended ({sidecar.reason}): starting another", err=True)
                sidecar.close()
                sidecar = Sidecar(connect)
    finally:
        if scheduler_file is not None:
            with suppress(OSError):
                os.unlink(scheduler_file)
        if sidecar is not None:
            sidecar.close()
        server.close()


def _write(path: str, address: str) -> None:
    """Write a scheduler file, which appears at once or not at all."""
    values = {"address": address}
    if secret := os.environ.get("TREADLE_SECRET_FILE"):
        values["secret_file"] = os.path.abspath(secret)
    unfinished = f"{path}.{os.getpid()}"
    with open(unfinished, "w", encoding="utf-8") as file:
        json.dump(values, file, indent=2)
        file.write("\n")
    os.replace(unfinished, path)
