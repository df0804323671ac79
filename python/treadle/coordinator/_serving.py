"""The process of a coordinator: its parts, its socket, and their end."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import uvicorn

from treadle.coordinator._access import Access, TokenFile, read_secret
from treadle.coordinator._app import app_of
from treadle.coordinator._asking import is_loopback
from treadle.coordinator._diagnosis import rules
from treadle.coordinator._event_files import Entry
from treadle.coordinator._jobs import with_place
from treadle.coordinator._log_stores import folder_of
from treadle.coordinator._mail import MailServer, read_login
from treadle.coordinator._notify import Notifier
from treadle.coordinator._pages import add_pages
from treadle.coordinator._polling import LogFolders, Poller, Servers
from treadle.coordinator._protocol import BoundedProtocol
from treadle.coordinator._service import Coordinator

__all__ = ["Options", "serve"]

# How many looks at the servers may fail before their room is not known.
_LOOKS = 3


@dataclass(frozen=True)
class Options:
    """Those of ``treadle coordinator``."""

    database: str
    listen: str
    tokens: Path | None
    certificate: str | None
    key: str | None
    proxy_header: str | None
    proxies: Sequence[str]
    proxy_secret: Path | None
    operators: Sequence[str]
    hosts: Sequence[str]
    servers: str | None
    credentials: Mapping[str, Any]
    logs: Sequence[str]
    poll: float
    keep_days: float
    webhook: str | None
    mails: Sequence[str]
    smtp: str | None
    smtp_login: Path | None
    sender: str
    insecure: bool


def serve(options: Options) -> None:
    """Serve until the process is interrupted.

    Raises
    ------
    ValueError
        Other machines would be served without a login, or without TLS, or all users of this machine as its proxy; or
        the URL of a folder of event logs, or what is configured of rules, is wrong.
    OSError
        The port is taken.
    """
    _check_proxies(options)
    # What is wrong with those of other packages is said now, and not with the first log.
    rules()
    host, port = _listening_at(options)
    is_open = options.tokens is None and options.proxy_header is None
    access = Access(
        None if is_open else TokenFile(options.tokens) if options.tokens else {},
        proxy_header=options.proxy_header,
        proxies=options.proxies,
        proxy_secret=read_secret(options.proxy_secret) if options.proxy_secret else None,
        operators=options.operators,
        hosts=[*options.hosts, host, f"[{host}]"],
    )
    mail = None
    if options.smtp is not None:
        login = read_login(options.smtp_login, os.environ)
        mail = MailServer.of(options.smtp, options.mails, login, options.sender)
    with ExitStack() as stack:
        notifier = Notifier(options.webhook, mail)
        stack.callback(notifier.close)
        looks: list[Callable[[], None]] = []
        servers = None
        if options.servers is not None:
            servers = Servers(options.servers, options.credentials, _LOOKS * options.poll + 10)
            looks.append(servers.look)
        coordinator = Coordinator(
            options.database,
            servers=options.servers,
            room=servers.room if servers else lambda: None,
            notify=notifier,
        )
        stack.callback(coordinator.close)
        if options.logs:
            # In a thread of its own: a large log must not make what the servers said too old to decide by.
            places = dict(map(_folder_and_place, options.logs))
            logs = LogFolders(list(places), coordinator, options.keep_days, places=places)
            stack.callback(Poller(options.poll, [logs.look]).close)
        looks.append(coordinator.refresh)
        looks.append(lambda: coordinator.forget(options.keep_days))
        stack.callback(Poller(options.poll, looks).close)
        app = app_of(
            coordinator,
            access,
            servers=servers.servers if servers else list,
            drain=servers.drain if servers else None,
            notices=notifier.notices,
        )
        add_pages(app)
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        stack.callback(listener.close)
        scheme = "https" if options.certificate else "http"
        shown = f"[{host}]" if ":" in host else host
        address = f"{scheme}://{shown}:{listener.getsockname()[1]}"
        click.echo(f"listening on {address}")
        if is_open:
            # It counts for this run alone, and is not in the log.
            click.echo(f"page: {address}/login#{access.new_token('operator', 'operator')}")
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, ssl_certfile=options.certificate,
            ssl_keyfile=options.key, timeout_keep_alive=30, limit_concurrency=1000,
            proxy_headers=False, server_header=False, http=BoundedProtocol,
        )  # fmt: skip
        uvicorn.Server(config).run([listener])


def _folder_and_place(text: str) -> tuple[Entry, dict[str, str]]:
    folder, place = with_place(text)
    return folder_of(folder) if "://" in folder else Path(folder), place


def _listening_at(options: Options) -> tuple[str, int]:
    host, colon, port = options.listen.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen {options.listen}: give HOST:PORT, such as 127.0.0.1:7799")
    if not is_loopback(host):
        if options.tokens is None and options.proxy_header is None:
            raise ValueError(
                f"--listen {options.listen} serves other machines: give --tokens FILE, or --proxy-header"
            )
        if options.certificate is None and not options.insecure:
            raise ValueError(
                f"--listen {options.listen} would send tokens in the clear: give --certificate and --key, "
                "listen on 127.0.0.1 behind a proxy with TLS, or allow it with --insecure"
            )
    return host, int(port)


def _check_proxies(options: Options) -> None:
    for proxy in options.proxies:
        try:
            ipaddress.ip_address(proxy)
        except ValueError:
            raise ValueError(f"--proxy {proxy}: give the proxy's IP address") from None
        if options.proxy_secret is None and _is_here(proxy):
            raise ValueError(
                f"--proxy {proxy} is this machine, and any user on it has that address: give --proxy-secret-file, "
                "and have the proxy send its content as X-Treadle-Proxy-Secret"
            )


def _is_here(address: str) -> bool:
    """Return whether an address is one of this machine: a socket can be bound to no other."""
    if is_loopback(address):
        return True
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
