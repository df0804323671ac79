"""The pages of Treadle's scheduler behind those of Dask's, which link to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from tornado import web
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.simple_httpclient import SimpleAsyncHTTPClient

__all__ = ["Relay"]

# Seconds for an answer of ours.
_PATIENCE = 15.0
# What is asked for: the page, and what it asks. Metrics and state have paths of their own.
_PATHS = ("/assets/", "/sight/", "/individual-")
# What of an answer is passed on.
_HEADERS = (
    *("Content-Type", "Cache-Control", "Content-Security-Policy", "Referrer-Policy"),
    *("X-Content-Type-Options", "Retry-After"),
)


class Relay:
    """Has Dask's scheduler serve the pages of ours below ``/NAME/``, for whoever sees Dask's dashboard.

    Ours are at the loopback interface: who may see them is up to Dask, as with its own pages, which show as much.

    Parameters
    ----------
    scheduler
        Dask's.
    link
        To the pages of ours, with their token.
    name
        The name below which they are.
    """

    def __init__(self, scheduler: Any, link: str, name: str) -> None:
        self._scheduler = scheduler
        self._name = f"{name}/"
        parts = urlsplit(link)
        about = {
            "origin": f"{parts.scheme}://{parts.netloc}",
            "token": parts.query.removeprefix("token="),
        }
        # Dask's pages may be below a prefix.
        self._application = web.Application([(rf"(?:/.*)?/{name}(|/.*)", _Pages, about)])
        scheduler.http_application.add_application(self._application)
        for pages in _lists(scheduler):
            pages.append(self._name)

    @staticmethod
    def fits(scheduler: Any) -> bool:
        """Return whether there is a dashboard of Dask's."""
        return bool(list(_lists(scheduler)))

    def close(self) -> None:
        """Take them out again."""
        with suppress(ValueError):
            self._scheduler.http_application.applications.remove(self._application)
        for pages in _lists(self._scheduler):
            if self._name in pages:
                pages.remove(self._name)


def _lists(scheduler: Any) -> Iterator[list[str]]:
    """Yield the list of pages that Dask's dashboard links to, if there is one: each of its pages has the same."""
    seen: set[int] = set()
    application = getattr(scheduler, "http_application", None)
    for part in getattr(application, "applications", ()):
        # Of Bokeh's, as distributed makes them; where that changes, there is no link.
        with suppress(AttributeError, KeyError, IndexError, TypeError):
            for context in part._applications.values():
                for handler in context.application.handlers:
                    pages = handler._func.args[1]["pages"]
                    if id(pages) not in seen:
                        seen.add(id(pages))
                        yield pages


class _Pages(web.RequestHandler):
    """Passes a question on, and its answer back."""

    def initialize(self, origin: str, token: str) -> None:
        self._origin = origin
        self._token = token

    async def get(self, path: str) -> None:
        if not path:
            # Paths of the page are relative to its folder.
            self.redirect(self.request.path.rpartition("/")[2] + "/")
            return
        if path != "/" and (not path.startswith(_PATHS) or ".." in path):
            self.send_error(404)
            return
        query = f"?{self.request.query}" if self.request.query else ""
        client: AsyncHTTPClient = SimpleAsyncHTTPClient(force_instance=True)
        request = HTTPRequest(
            f"{self._origin}{path}{query}",
            headers={"Authorization": f"Bearer {self._token}"},
            request_timeout=_PATIENCE,
            follow_redirects=False,
        )
        try:
            answer = await client.fetch(request, raise_error=False)
        finally:
            client.close()
        # Whoever is not there answers as one that is busy.
        self.set_status(answer.code if answer.code < 599 else 503)
        for name in _HEADERS:
            if name in answer.headers:
                self.set_header(name, answer.headers[name])
        self.finish(answer.body or b"")
