"""The command ``treadle shuffle``: what shuffles do, and what they did."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from treadle.cli._basics import Output, clear_errors, json_option
from treadle.cli._long_running import Credentials, scheduler_of, security_options

if TYPE_CHECKING:
    from treadle.shuffle._history import Shuffles

__all__ = ["shuffle"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

# Seconds for the scheduler to answer.
_PATIENCE = 10.0


def _scheduler_options(command: _Command) -> _Command:
    service = click.option(
        "--service",
        is_flag=True,
        help="ADDRESS is that of `treadle shuffle-master`: show the shuffles of its service. Or it is the URL of a "
        "registry: ask the masters of all applications there.",
    )
    file = click.option(
        "--scheduler-file",
        type=click.Path(dir_okay=False),
        metavar="PATH",
        help="What the scheduler wrote, instead of its address.",
    )
    return service(file(security_options(json_option(command))))


@click.group()
def shuffle() -> None:
    """Show the shuffles of a cluster or of a shuffle service, and those of the past."""


@shuffle.command("list")
@_scheduler_options
@click.argument("address", required=False)
def list_(address: str | None, json_path: str | None, **options: Any) -> None:
    """List the shuffles that run at the scheduler at ADDRESS, and the latest that have ended."""
    with clear_errors():
        _show(_asked(address, **options), json_path)


@shuffle.command()
@_scheduler_options
@click.argument("shuffle_id", metavar="ID")
@click.argument("address", required=False)
def show(shuffle_id: str, address: str | None, json_path: str | None, **options: Any) -> None:
    """Show all of one shuffle: its number, or how its name or key begins; the latest one of these."""
    with clear_errors():
        records = _asked(address, **options)
        found = [one for one in records if _is_called(one, shuffle_id)]
        if not found:
            raise click.ClickException(
                f"{_who(**options)} knows no shuffle {shuffle_id!r}: `treadle shuffle list` has those that "
                "it knows, `treadle shuffle history` earlier ones"
            )
        _show_one(found[-1], json_path)


@shuffle.command()
@click.option(
    "--journal",
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="The file; by default treadle.shuffle.journal of Dask's configuration, or the user's own.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="How many, at most."
)
@click.option(
    "--state",
    type=click.Choice(["finished", "failed", "cancelled"]),
    help="Only those that ended so.",
)
@json_option
@click.argument("shuffle_id", metavar="[ID]", required=False)
def history(
    shuffle_id: str | None,
    journal: str | None,
    limit: int,
    state: str | None,
    json_path: str | None,
) -> None:
    """List shuffles that have ended, from the journal. With ID, show the latest one of that name."""
    from treadle.shuffle._journal import default_path, path_of, read

    with clear_errors():
        path = path_of(journal, default_path())
        if path is None:
            raise click.ClickException(
                "treadle.shuffle.journal is none: name a file with --journal"
            )
        records = read(path, limit=limit, state=state, name=shuffle_id)
        if shuffle_id is None:
            _show(records, json_path)
        elif records:
            _show_one(records[-1], json_path)
        else:
            raise click.ClickException(f"{path} has no shuffle {shuffle_id!r}")


def _asked(
    address: str | None,
    scheduler_file: str | None,
    tls: str | None,
    insecure: bool,
    secret_file: str | None,
    service: bool,
) -> Shuffles:
    if service:
        if address is None or scheduler_file is not None:
            raise click.UsageError("--service needs the shuffle master's ADDRESS")
        return _asked_service(address, Credentials.of_options(tls, insecure, secret_file))
    if (address is None) == (scheduler_file is None):
        raise click.UsageError("give the scheduler's ADDRESS, or --scheduler-file")
    found, credentials, _ = scheduler_of(address, scheduler_file, tls, insecure, secret_file)
    from treadle.common._calls import pack, unpack_answer
    from treadle.shuffle._history import ShuffleRecord, Shuffles
    from treadle.worker._nanny_calls import tell

    asked = partial(
        tell, found, credentials=credentials.of_connections(), name="shuffle", timeout=_PATIENCE
    )
    told = asked("shuffle_records", {})
    there: dict[int, Any] = {}
    if any("service" in one for one in told):
        there = unpack_answer(asked("shuffle_records_at_services", pack({}), node="sidecar"))
    joined = (ShuffleRecord.joined(one, there.get(one["number"])) for one in told)
    return Shuffles(map(ShuffleRecord.of, joined))


def _asked_service(address: str, credentials: Credentials) -> Shuffles:
    from treadle.shuffle import Service
    from treadle.shuffle.service._registries import is_registry

    connection = credentials.of_connections()

    def at(master: str) -> Shuffles:
        with Service(master, own_master=False, timeout=_PATIENCE, **connection) as service:
            return service.records()

    address = credentials.address(address)
    return _of_all(address, at) if is_registry(address) else at(address)


def _of_all(registry: str, records_at: Callable[[str], Shuffles]) -> Shuffles:
    """Return the records of the masters of all applications; name those that do not answer."""
    from treadle.shuffle import ShuffleError
    from treadle.shuffle._history import Shuffles
    from treadle.shuffle.service._registries import masters

    found = Shuffles()
    for master in masters(registry, _PATIENCE):
        try:
            found.extend(records_at(master))
        except (OSError, ShuffleError) as error:
            click.echo(f"shuffles of the master at {master} are missing: {error}", err=True)
    return found


def _who(*, service: bool, **_: Any) -> str:
    return "the shuffle master" if service else "the scheduler"


def _is_called(record: Any, name: str) -> bool:
    return name == str(record.number) or any(
        called is not None and called.startswith(name) for called in (record.name, record.key)
    )


def _show(records: Shuffles, json_path: str | None) -> None:
    from treadle.shuffle._history import HEADINGS

    output = Output(json_path)
    if records:
        output.table(HEADINGS, [one.row() for one in records])
    else:
        output.say("no shuffles")
    output.result({"shuffles": [one.to_dict() for one in records]})


def _show_one(record: Any, json_path: str | None) -> None:
    output = Output(json_path)
    lines = record.lines()
    width = max(len(name) for name, _ in lines)
    for name, text in lines:
        output.say(f"{name.ljust(width)}  {text}")
    output.result(record.to_dict())
