"""The command ``treadle certs``."""

from __future__ import annotations

from pathlib import Path

import click

from treadle import _core

__all__ = ["certs"]


@click.command()
@click.option(
    "--dir",
    "directory",
    default="treadle-certs",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the files are written; made when it is not there.",
)
@click.option(
    "--days",
    default=365,
    show_default=True,
    type=click.IntRange(1, 3650),
    help="How long the nodes' certificates are valid.",
)
@click.option(
    "--force", is_flag=True, help="Replace certificates and keys of nodes that are there."
)
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
def certs(directory: Path, days: int, force: bool, nodes: tuple[str, ...]) -> None:
    """Make certificates for treadle+tls:// connections.

    Each NODE (one called "node" by default) gets NODE.pem and NODE-key.pem, signed by the cluster's
    CA in ca.pem and ca-key.pem. The CA is made when it is not there, and never replaced. Only you
    can read the keys. A certificate holds on any host: all nodes of a cluster may share one, or
    have one each.
    """
    names = list(nodes) or ["node"]
    try:
        files = _core.create_certs(str(directory), names, days, force)
    except (OSError, ValueError) as error:
        raise click.ClickException(str(error)) from None
    for file in files:
        click.echo(f"made {file}")
    prefix = str(directory / names[0])
    click.echo(
        f"""
Copy ca.pem, {names[0]}.pem and {names[0]}-key.pem to each host that uses them; ca-key.pem stays here.
Then listen on one host and connect from another, HOST being the name of the first:

    treadle.transfer.listen("treadle+tls://0.0.0.0:7000", tls="{prefix}")
    treadle.transfer.connect("treadle+tls://HOST:7000", tls="{prefix}")"""
    )
