"""The command ``treadle observe``: what the page of a cluster shows, as text and as JSON."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import click

from treadle.cli import _observed
from treadle.cli._basics import clear_errors
from treadle.cli._history import lacks
from treadle.cli._long_running import scheduler_of, security_options
from treadle.sight._pages import Pages

__all__ = ["observe"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

# Seconds for an answer.
_PATIENCE = 10.0
_TOPICS = (
    *("overview", "workers", "groups", "running", "errors", "transfers", "shuffles", "casts"),
    *("memory", "profile", "logs", "task", "sql"),
)
# What may follow a topic, and what has to.
_MORE = {"profile": "GROUP", "logs": "TEXT", "task": "KEY", "sql": "STATEMENT"}
_NEEDED = ("task", "sql")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, all there is, and no text.")
@click.option("--watch", is_flag=True, help="Print it anew every two seconds, until Ctrl-C.")
@click.option(
    "--scheduler-file",
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="What the scheduler wrote, instead of its address.",
)
@security_options
@click.argument(
    "arguments", nargs=-1, metavar="[ADDRESS|LINK|PATH] [TOPIC] [KEY|GROUP|TEXT|STATEMENT]"
)
def observe(
    arguments: tuple[str, ...],
    as_json: bool,
    watch: bool,
    scheduler_file: str | None,
    tls: str | None,
    insecure: bool,
    secret_file: str | None,
) -> None:
    """Show what a cluster does: by the scheduler's ADDRESS, the LINK to its page, or the PATH of a history.

    Or, by the LINK of its page, what a master or a server of the shuffle service does.

    TOPIC is workers, groups, running, errors, transfers, shuffles, casts, memory, profile (of a GROUP), logs (with a
    TEXT), task with a KEY, or, of a history, sql with a STATEMENT over spans, groups, workers and transfers;
    without one, what is seen first. A text has at most 40 lines.
    """
    places = list(arguments)
    place = None if scheduler_file is not None or not places else places.pop(0)
    if place is None and scheduler_file is None:
        raise click.UsageError("give the scheduler's ADDRESS, the LINK of its page, or a PATH")
    topic = places.pop(0) if places else "overview"
    if topic not in _TOPICS:
        raise click.UsageError(f"{topic!r} is none of {', '.join(_TOPICS)}")
    if len(places) > (topic in _MORE):
        raise click.UsageError(f"{topic} has no argument, or no more: {' '.join(places)!r}")
    if topic in _NEEDED and not places:
        raise click.UsageError(f"{topic} needs a {_MORE[topic]}")
    with clear_errors():
        path = None if place is None else _history_at(place)
        try:
            if path is not None:
                link = None
            elif place is not None and place.startswith(("http://", "https://")):
                link = place
            else:
                link = _link_of(place, scheduler_file, tls, insecure, secret_file)
            if topic == "sql" and path is None:
                raise click.UsageError("sql is for a history: give its PATH")
            while True:
                # A history grows while its scheduler lives: it is read each time.
                with _pages_of(link, path) as (pages, shown):
                    if topic == "sql":
                        _answer(shown, places[0], as_json)
                    else:
                        _show(pages, topic, places, as_json)
                if not watch:
                    break
                time.sleep(2)
                click.echo("" if as_json else "\n" + time.strftime("%H:%M:%S"))
        except KeyboardInterrupt:
            if not watch:
                raise


def _history_at(place: str) -> str | None:
    """Return the history that a place names: a file, or the newest one of a directory.

    Raises
    ------
    click.ClickException
        It looks like a path, and there is no such file.
    """
    if "://" in place:
        return None
    if os.path.isdir(place):
        found = [path for path in Path(place).glob("*.history") if path.is_file()]
        if not found:
            raise click.ClickException(f"{place} has no history (*.history)")
        return str(max(found, key=lambda path: path.stat().st_mtime))
    if os.path.exists(place):
        # Whether it is a history, who reads it says.
        return place
    if os.sep in place or place.endswith(".history"):
        raise click.ClickException(f"{place}: no such file")
    return None


@contextmanager
def _pages_of(link: str | None, path: str | None) -> Iterator[tuple[Pages, Any]]:
    """Yield pages by their link, or those of a history, which are served meanwhile, and the history."""
    if path is None:
        yield Pages(link or ""), None
        return
    from treadle import _core

    shown = _core.History(path)
    try:
        for lack in lacks(shown):
            click.echo(f"{path}: {lack}", err=True)
        yield Pages(shown.http), shown
    finally:
        shown.close()


def _link_of(
    place: str | None,
    scheduler_file: str | None,
    tls: str | None,
    insecure: bool,
    secret_file: str | None,
) -> str:
    """Return the link of a scheduler's pages, which it tells who knows its secret."""
    from treadle.worker._nanny_calls import connect

    address, credentials, _ = scheduler_of(place, scheduler_file, tls, insecure, secret_file)
    connection = connect(address, "observe", credentials.of_connections(), _PATIENCE)
    try:
        link = connection.info.get("http")
    finally:
        connection.close()
    if not link:
        raise click.ClickException(f"{address} has no pages: start it without --http none")
    return str(link)


def _answer(shown: Any, statement: str, as_json: bool) -> None:
    """Print what a history answers to a statement of SQL."""
    from treadle.sight._sql import answer

    names, rows = answer(shown.tables(), statement)
    if as_json:
        found = [dict(zip(names, row, strict=True)) for row in rows]
        click.echo(json.dumps(found, default=str))
    else:
        for line in _observed.rows(names, rows):
            click.echo(line)


def _show(pages: Pages, topic: str, rest: list[str], as_json: bool) -> None:
    if topic == "transfers":
        found = pages.get("/sight/transfers")
    elif topic in ("profile", "logs"):
        name = "group" if topic == "profile" else "find"
        query = "".join(f"{name}={quote(text, safe='')}" for text in rest)
        found = pages.get(f"/sight/{topic}", query)
    elif topic == "task":
        found = pages.get("/sight/task", f"key={quote(rest[0], safe='')}")
    else:
        found = pages.get("/sight/overview")
        if found.get("service") and topic != "overview":
            raise click.ClickException(f"the shuffle service has no {topic}: leave it out")
        if topic == "errors":
            found = pages.get("/sight/errors")
    if as_json:
        click.echo(json.dumps(_observed.part(found, topic)))
    else:
        for line in _observed.lines(found, topic):
            click.echo(line)
