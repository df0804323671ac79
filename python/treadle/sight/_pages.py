"""Asks the pages of a cluster, or of a history file."""

from __future__ import annotations

import json
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

__all__ = ["Pages", "PagesError"]

# Seconds for an answer.
_PATIENCE = 10.0
# Pages are asked directly: a proxy from the environment would see the token.
_open = build_opener(ProxyHandler({})).open


class PagesError(OSError):
    """A page is not to be had."""


class Pages:
    """The pages of a cluster, or of a history file.

    Parameters
    ----------
    link
        ``http://HOST:PORT/…?token=TOKEN``.
    """

    def __init__(self, link: str) -> None:
        self._link = urlsplit(link)

    def fetch(self, path: str, query: str = "") -> bytes:
        """Return a page, with its path and the query that it is asked with.

        Raises
        ------
        PagesError
            There is no such page, or nothing of that kind is known.
        """
        parts = "&".join(part for part in (query, self._link.query) if part)
        base = self._link.path.removesuffix("/").removesuffix("/status")
        url = f"{self._link.scheme}://{self._link.netloc}{base}{path}?{parts}"
        try:
            with _open(url, timeout=_PATIENCE) as answer:
                found: bytes = answer.read()
                return found
        except HTTPError as error:
            text = error.read().decode(errors="replace").strip()
            with suppress(ValueError, KeyError, TypeError):
                text = json.loads(text)["error"]
            raise PagesError(f"{path}: {text}") from None
        except (OSError, ValueError, HTTPException) as error:
            raise self._none(error) from None

    def _none(self, error: Exception) -> PagesError:
        where = f"{self._link.scheme}://{self._link.netloc}"
        return PagesError(f"{where} has no pages of a cluster: {error}")

    def get(self, path: str, query: str = "") -> Any:
        """Return the JSON of a page; as :meth:`fetch`."""
        found = self.fetch(path, query)
        try:
            return json.loads(found)
        except ValueError as error:
            raise self._none(error) from None
