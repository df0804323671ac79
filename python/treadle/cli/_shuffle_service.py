"""The commands ``treadle shuffle-master`` and ``treadle shuffle-server``."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from treadle.cli._basics import clear_errors, end_with_input
from treadle.cli._long_running import (
    Credentials,
    Ending,
    LogFile,
    http_option,
    http_token_option,
    journal_option,
    log_options,
    pages_of,
    say_pages,
    security_options,
    supervised_option,
)
from treadle.cli._values import Seconds, limit_of
from treadle.common._memory_limit import HELP, disk_limit_of, memory_limit_of
from treadle.common._own_address import reachable

if TYPE_CHECKING:
    from treadle.shuffle import Service

__all__ = ["shuffle_master", "shuffle_server"]

PORT = 7790
# Seconds between two looks at what a process was asked.
_TICK = 0.1
# The first pause between two looks at whether a server has left.
_SHORT = 0.005
# Seconds between attempts to reach a master that is not there.
_PAUSE = 1.0
# Seconds for a registry to answer a master that begins.
_REGISTRY = 60.0
# Seconds between two lines about what a server that leaves waits for.
_TELL = 5.0


@click.command("shuffle-master")
@click.option(
    "--timeout",
    type=Seconds(0.1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="A server or client that sends nothing for this long is lost.",
)
@click.option(
    "--lease",
    type=Seconds(0.0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For how long the shuffles of an application are kept when none of its processes is "
    "connected.",
)
@click.option(
    "--contact-address",
    multiple=True,
    metavar="HOST:PORT",
    help="Another address of this master: a forwarded port, a container, a service. May be repeated.",
)
@click.option(
    "--registry",
    metavar="URL",
    help="Where servers register instead of here: zk://HOST/PATH, etcd://HOST/PREFIX, static:HOST:PORT or "
    "static:/FILE. For programs that have no masters of their own.",
)
@http_option
@http_token_option
@journal_option
@supervised_option
@log_options
@security_options
@click.argument("address", default=f"127.0.0.1:{PORT}", metavar="[ADDRESS]")
def shuffle_master(
    address: str,
    registry: str | None,
    timeout: float,
    lease: float,
    contact_address: tuple[str, ...],
    http: str,
    http_token_file: str | None,
    shuffle_journal: str | None,
    supervised: bool,
    log_file: str | None,
    log_file_size: int,
    tls: str | None,
    insecure: bool,
    secret_file: str | None,
) -> None:
    """Run the master of a shuffle service until SIGTERM or Ctrl-C.

    ADDRESS is where to listen; by default 127.0.0.1:7790. Servers join with
    `treadle shuffle-server ADDRESS`, programs connect with treadle.shuffle.Service(ADDRESS). When it
    ends, so do the shuffles of programs that have no master of their own, and no others.
    """
    credentials = Credentials.of_options(tls, insecure, secret_file)
    if registry is not None:
        _refuse_master(registry)
    pages = pages_of(http, (), http_token_file)
    with _clear_errors():
        from treadle import _core
        from treadle.shuffle._journal import default_path
        from treadle.shuffle.service._journal_writer import Keeper

        master = _core.ShuffleMaster(
            credentials.address(address),
            contact=[credentials.address(contact) for contact in contact_address],
            timeout=timeout,
            lease=lease,
            told=True,
            registry=registry,
            name=f"{socket.gethostname()}-{os.getpid()}",
            patience=_REGISTRY,
            **pages,
            **credentials.of_connections(),
        )
        keeper: Keeper | None = None
        try:
            keeper = Keeper.of(master, shuffle_journal, default_path())
            if supervised:
                end_with_input()
            ending = Ending()
            log = LogFile(log_file, log_file_size)
            say_pages(master.http, log)
            log.listening(master.address)
            while not ending.asked and not master.wait(_TICK):
                pass
        finally:
            if keeper is not None:
                keeper.close()
            master.close()
            _core.flush_log()


@click.command("shuffle-server")
@click.option(
    "--local-directory",
    "directories",
    multiple=True,
    type=click.Path(file_okay=False),
    help="Where rows go that do not fit into memory. May be repeated: one on each disk.",
)
@click.option(
    "--memory-limit",
    default="0.5",
    show_default=True,
    help=f"What the process may take: {HELP}, which is all of it as well. Too little is refused.",
)
@click.option(
    "--disk-limit",
    default="0",
    help="What all directories together may hold: bytes or 2GiB; by default 0 for no limit.",
)
@click.option(
    "--remote",
    metavar="URL",
    help="A store for rows that the directories do not take: s3://BUCKET/PREFIX?endpoint=URL&region=NAME, "
    "hdfs://NAMENODE:PORT/PATH or file:///PATH. Credentials are not part of it: they come from environment "
    "variables and files (AWS_ACCESS_KEY_ID, AWS_SHARED_CREDENTIALS_FILE, HADOOP_USER_NAME, …).",
)
@click.option(
    "--storage",
    type=click.Choice(["local", "remote"]),
    default="local",
    show_default=True,
    help="Where rows go first that do not fit into memory: to the directories, or to the store of --remote. Each "
    "takes what the other one does not.",
)
@click.option(
    "--domain",
    help="What fails together: the copies of a row are in different domains. By default the host.",
)
@click.option(
    "--rack", default="", help="In which rack it is; for people and for rules of placement."
)
@click.option(
    "--host-kind",
    default="",
    help="What kind of host it is, such as ssd; for people and for rules of placement.",
)
@click.option("--name", help="Unique in the service; by default the host and the process id.")
@click.option(
    "--weight",
    type=click.IntRange(1, 2**32 - 1),
    default=1,
    show_default=True,
    help="How many partitions it gets, compared to others with the same room.",
)
@click.option("--listen", metavar="HOST:PORT", help="Where clients and other servers connect.")
@click.option(
    "--contact-address",
    metavar="HOST:PORT",
    help="The address that other machines use for this server, if it differs from --listen (a forwarded "
    "port, for example).",
)
@http_option
@http_token_option
@click.option(
    "--drain-timeout",
    type=Seconds(0.0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long it waits, when it is to end, until its rows are copied elsewhere.",
)
@click.option(
    "--death-timeout",
    type=Seconds(0.0),
    metavar="SECONDS",
    help="How long to wait for the master or the registry, in the beginning and when it was lost; for ever "
    "by default.",
)
@click.option(
    "--drain",
    is_flag=True,
    help="Start no server: ask the running server --name to leave, and wait until it has left.",
)
@supervised_option
@log_options
@security_options
@click.argument("registry", metavar="REGISTRY")
def shuffle_server(
    registry: str,
    directories: tuple[str, ...],
    memory_limit: str,
    disk_limit: str,
    remote: str | None,
    storage: str,
    domain: str | None,
    rack: str,
    host_kind: str,
    name: str | None,
    weight: int,
    listen: str | None,
    contact_address: str | None,
    http: str,
    http_token_file: str | None,
    drain_timeout: float,
    death_timeout: float | None,
    drain: bool,
    supervised: bool,
    log_file: str | None,
    log_file_size: int,
    tls: str | None,
    insecure: bool,
    secret_file: str | None,
) -> None:
    """Run a server of the shuffle service, which registers at REGISTRY.

    REGISTRY is the address of a shuffle master, or zk://HOST/PATH, etcd://HOST/PREFIX, static:HOST:PORT or
    static:/FILE. Credentials of ZooKeeper and etcd come from the environment: TREADLE_REGISTRY_USER,
    TREADLE_REGISTRY_PASSWORD_FILE, TREADLE_REGISTRY_CA.

    On SIGTERM it leaves in order: its rows are copied to other servers first. A second SIGTERM, or
    Ctrl-C, ends it at once. When the master is lost, the server drops what that has here, goes on for the
    masters of other applications, and joins the next one at the same address. When another registry is lost, it
    goes on for all masters, and registers again.
    """
    credentials = Credentials.of_options(tls, insecure, secret_file)
    registry = credentials.address(registry)
    if drain:
        if name is None:
            raise click.UsageError("--drain needs --name: which server is to leave")
        with _clear_errors():
            _drain(registry, credentials, name, drain_timeout)
        return
    if storage == "remote" and remote is None:
        raise click.UsageError("--storage remote needs --remote: which store")
    from treadle.common._settings import temporary_directory

    options = {
        "name": name or f"{socket.gethostname()}-{os.getpid()}",
        "domain": domain or socket.gethostname(),
        "rack": rack,
        "host_kind": host_kind,
        "directories": list(directories) or [temporary_directory()],
        # Without a limit, what the machine has is one.
        "memory": limit_of(memory_limit_of, memory_limit, "--memory-limit", 0.5)
        or memory_limit_of(1, "--memory-limit"),
        "disk": limit_of(disk_limit_of, disk_limit, "--disk-limit") or 2**63,
        "remote": remote,
        "storage": storage,
        "weight": weight,
        "listen": credentials.address(listen or reachable(registry)),
        "contact": [credentials.address(contact_address)] if contact_address else [],
        **pages_of(http, (), http_token_file),
        **credentials.of_connections(),
    }
    with _clear_errors():
        from treadle import _core

        if supervised:
            end_with_input()
        ending = Ending()
        log = LogFile(log_file, log_file_size)
        try:
            while _serve(registry, options, ending, log, death_timeout, drain_timeout, credentials):
                # Where to log to is said once.
                log = LogFile(None, log_file_size)
        finally:
            _core.flush_log()


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn what can go wrong with a service into a message and exit status 1."""
    from treadle.shuffle import ShuffleError

    with clear_errors("is the shuffle master or the registry running?"):
        try:
            yield
        except ShuffleError as error:
            raise click.ClickException(str(error)) from None


def _refuse_master(registry: str) -> None:
    from treadle.shuffle.service._registries import is_registry

    if not is_registry(registry):
        raise click.UsageError(
            f"--registry {registry}: give zk://HOST/PATH, etcd://HOST/PREFIX, static:HOST:PORT or static:/FILE. Servers "
            "and programs take the address of a shuffle master as it is"
        )


def _serve(
    registry: str,
    options: dict[str, Any],
    ending: Ending,
    log: LogFile,
    death_timeout: float | None,
    drain_timeout: float,
    credentials: Credentials,
) -> bool:
    """Serve until this process is to end, or the master is lost; return whether it is to go on."""
    server = _joined(registry, options, ending, death_timeout)
    if server is None:
        return False
    try:
        say_pages(server.http, log)
        log.listening(server.address)
        while not ending.asked:
            reason = server.ended(_TICK)
            if reason is not None:
                click.echo(f"{reason}; the rows here are dropped", err=True)
                return True
            if server.drained:
                return False
        if not ending.now:
            waits = partial(_what_it_waits_for, registry, credentials, options["name"])
            _leave(server, ending, drain_timeout, waits)
    finally:
        server.close()
    return False


def _joined(
    registry: str, options: dict[str, Any], ending: Ending, death_timeout: float | None
) -> Any:
    """Return a server that has joined, or ``None`` if this process is to end."""
    from treadle import _core

    until = None if death_timeout is None else time.monotonic() + death_timeout
    said = False
    while not ending.asked:
        try:
            return _core.ShuffleServer(registry, **options, timeout=30.0, patience=death_timeout)
        except (OSError, TimeoutError) as error:
            if until is not None and time.monotonic() >= until:
                raise
            if not said:
                click.echo(f"Waiting for the shuffle master or the registry: {error}", err=True)
            said = True
        left = _PAUSE
        while left > 0 and not ending.asked:
            time.sleep(_TICK)
            left -= _TICK
    return None


def _leave(server: Any, ending: Ending, patience: float, waits: Callable[[], str | None]) -> None:
    """Wait until what is here is copied elsewhere; say what that waits for."""
    server.drain()
    telling = _Telling()
    until = time.monotonic() + patience
    while not ending.now and not server.drained and time.monotonic() < until:
        if server.ended(_TICK) is not None:
            return
        telling.tell(waits)
    if not server.drained:
        click.echo("it ends before all of its rows are copied elsewhere", err=True)


class _Telling:
    """Tells what somebody waits for: not at once, and then every few seconds."""

    def __init__(self) -> None:
        self._at = time.monotonic() + _PAUSE

    def tell(self, waits: Callable[[], str | None]) -> None:
        if time.monotonic() < self._at:
            return
        if (reason := waits()) is not None:
            click.echo(f"Waiting: {reason}", err=True)
        self._at = time.monotonic() + _TELL


def _service(registry: str, credentials: Credentials) -> Service:
    """Return a connection to who knows the servers: the master, or where there is none, one that begins with this."""
    from treadle.shuffle import Service
    from treadle.shuffle.service._registries import is_registry

    connection = credentials.of_connections()
    # It writes no rows. What Dask's configuration says of them is not read: that takes long.
    return Service(registry, own_master=is_registry(registry), compression="none", **connection)


def _what_it_waits_for(registry: str, credentials: Credentials, name: str) -> str | None:
    """Ask a master what a server waits for that is to leave."""
    from treadle.shuffle import ShuffleError

    try:
        with _service(registry, credentials) as service:
            return _what_keeps(name, service.state())
    except (OSError, ShuffleError) as error:
        return f"the rows of {name} are copied to other servers ({error})"


def _drain(registry: str, credentials: Credentials, name: str, patience: float) -> None:
    """Ask a server to leave, and wait until it has."""
    with _service(registry, credentials) as service:
        service.drain(name)
        began = time.monotonic()
        telling = _Telling()
        while (waits := _what_keeps(name, service.state())) is not None:
            waited = time.monotonic() - began
            if waited > patience:
                raise click.ClickException(f"{name} has not left within {patience:g} s: {waits}")
            telling.tell(partial(str, waits))
            # The longer it takes, the less it matters when exactly it is over.
            time.sleep(min(_TICK, _SHORT + waited / 20))


def _what_keeps(name: str, state: dict[str, Any]) -> str | None:
    """Return what a server waits for that is to leave; None: it has left."""
    servers = {server["name"]: server for server in state["servers"]}
    if name not in servers:
        return None
    partitions, held = servers[name]["partitions"], servers[name]["held_bytes"]
    if partitions:
        holds = (
            f"{name} still holds {partitions} {'partition' if partitions == 1 else 'partitions'}"
        )
    elif held:
        holds = f"{name} still holds {held} bytes of applications with masters of their own"
    else:
        return f"{name} holds nothing any more, and ends"
    others = [server for other, server in servers.items() if other != name]
    if any(server["weight"] and not server["leaving"] for server in others):
        return f"{holds}, which are copied to other servers"
    names = [str(shuffle["name"]) for shuffle in state["shuffles"]]
    running = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
    which = f" ({running})" if names else ""
    return f"{holds}, and no other server can take them. Start one, or end the shuffles that run{which}"
