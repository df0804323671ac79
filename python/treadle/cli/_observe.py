"""The command ``treadle observe``: what the page of a cluster shows, as text and as JSON."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import ProxyHandler, build_opener

import click

from treadle.cli import _observed
from treadle.cli._basics import clear_errors
from treadle.cli._history import lacks
from treadle.cli._long_running import scheduler_of, security_options

__all__ = ["observe"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

# Seconds for an answer.
_PATIENCE = 10.0
# Pages are asked directly: a proxy from the environment would see the token.
_open = build_opener(ProxyHandler({})).open
_TOPICS = (
    *("overview", "workers", "groups", "running", "errors", "transfers", "shuffles", "memory"),
    *("profile", "logs", "task"),
)
# What may, or has to, follow a topic.
_MORE = {"profile": "GROUP", "logs": "TEXT", "task": "KEY"}


class _Pages:
    """The pages of a cluster, or of a history file.

    Parameters
    ----------
    link
        ``http://HOST:PORT/…?token=TOKEN``.
    """

    def __init__(self, link: str) -> None:
        self._link = urlsplit(link)

    def get(self, path: str, query: str = "") -> Any:
        """Return the JSON of a page.

        Raises
        ------
        click.ClickException
            There is no such page, or nothing of that kind is known.
        """
        parts = "&".join(part for part in (query, self._link.query) if part)
        base = self._link.path.removesuffix("/").removesuffix("/status")
        url = f"{self._link.scheme}://{self._link.netloc}{base}{path}?{parts}"
        try:
            with _open(url, timeout=_PATIENCE) as answer:
                return json.load(answer)
        except HTTPError as error:
            text = error.read().decode(errors="replace").strip()
            with suppress(ValueError, KeyError, TypeError):
                text = json.loads(text)["error"]
            raise click.ClickException(f"{path}: {text}") from None
        except (OSError, ValueError, HTTPException) as error:
            where = f"{self._link.scheme}://{self._link.netloc}"
            raise click.ClickException(f"{where} has no pages of a cluster: {error}") from None


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
@click.argument("arguments", nargs=-1, metavar="[ADDRESS|LINK|PATH] [TOPIC] [KEY|GROUP|TEXT]")
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

    TOPIC is workers, groups, running, errors, transfers, shuffles, memory, profile (of a GROUP), logs (with a
    TEXT), or task with a KEY; without one, what is seen first. A text has at most 40 lines.
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
    if topic == "task" and not places:
        raise click.UsageError("task needs a KEY")
    with clear_errors():
        path = None if place is None else _history_at(place)
        try:
            if path is not None:
                link = None
            elif place is not None and place.startswith(("http://", "https://")):
                link = place
            else:
                link = _link_of(place, scheduler_file, tls, insecure, secret_file)
            while True:
                # A history grows while its scheduler lives: it is read each time.
                with _pages_of(link, path) as pages:
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
def _pages_of(link: str | None, path: str | None) -> Iterator[_Pages]:
    """Yield pages by their link, or those of a history, which are served meanwhile."""
    if path is None:
        yield _Pages(link or "")
        return
    from treadle import _core

    shown = _core.History(path)
    try:
        for lack in lacks(shown):
            click.echo(f"{path}: {lack}", err=True)
        yield _Pages(shown.http)
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


def _show(pages: _Pages, topic: str, rest: list[str], as_json: bool) -> None:
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
    if as_json:
        click.echo(json.dumps(_observed.part(found, topic)))
    else:
        for line in _observed.lines(found, topic):
            click.echo(line)
