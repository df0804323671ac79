"""The command ``treadle shuffle-registry``: which shuffle servers a registry has."""

from __future__ import annotations

from typing import Any

import click

from treadle.cli._basics import Output, clear_errors, json_option
from treadle.cli._long_running import Credentials, security_options
from treadle.cli._values import Seconds

__all__ = ["shuffle_registry"]

_HEADINGS = ("name", "address", "domain", "rack", "release", "host", "free GiB", "held GiB")


@click.group("shuffle-registry")
def shuffle_registry() -> None:
    """Show the shuffle servers of a registry: a shuffle master, ZooKeeper, etcd, or a list."""


@shuffle_registry.command("list")
@click.option(
    "--timeout",
    type=Seconds(0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="For how long to wait for the registry.",
)
@security_options
@json_option
@click.argument("url")
def list_(
    url: str,
    timeout: float,
    tls: str | None,
    insecure: bool,
    secret_file: str | None,
    json_path: str | None,
) -> None:
    """List the servers of the registry at URL.

    URL is HOST:PORT (a shuffle master, for which are the secret and certificates), zk://HOST/PATH,
    etcd://HOST/PREFIX, static:HOST:PORT or static:/FILE. Credentials of ZooKeeper and etcd come from the
    environment: TREADLE_REGISTRY_USER, TREADLE_REGISTRY_PASSWORD_FILE, TREADLE_REGISTRY_CA.
    """
    with clear_errors():
        skipped: list[tuple[str, str]] = []
        credentials = Credentials.of_options(tls, insecure, secret_file)
        url = credentials.address(url)
        if url.startswith(("treadle://", "treadle+tls://")):
            servers = _servers_of(url, timeout, credentials)
        else:
            from treadle._core import list_registry

            servers, skipped = list_registry(url, timeout)
        _show(servers, skipped, json_path)


def _servers_of(url: str, timeout: float, credentials: Credentials) -> list[dict[str, Any]]:
    from treadle.shuffle import Service

    with Service(url, timeout=timeout, **credentials.of_connections()) as service:
        servers: list[dict[str, Any]] = service.state()["servers"]
        return servers


def _show(
    servers: list[dict[str, Any]], skipped: list[tuple[str, str]], json_path: str | None
) -> None:
    output = Output(json_path)
    if servers:
        output.table(_HEADINGS, [_row(one) for one in servers])
    else:
        output.say("no shuffle servers")
    for node, why in skipped:
        output.say(f"{node} is skipped: {why}")
    nodes = [{"node": node, "reason": why} for node, why in skipped]
    output.result({"servers": servers, "skipped": nodes})


def _row(server: dict[str, Any]) -> list[str]:
    names = ("name", "address", "domain", "rack", "version", "host_kind")
    sizes = (server.get("free_bytes"), server.get("held_bytes"))
    return [
        *(str(server.get(name) or "") for name in names),
        *("" if size is None else f"{size / 2**30:.1f}" for size in sizes),
    ]
