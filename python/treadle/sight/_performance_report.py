"""``treadle.performance_report``: what a block computed, as a page in one file."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from treadle.sight._pages import Pages

__all__ = ["performance_report"]

# Seconds that workers have to tell what they did before the block and in it, and after which nothing more comes: they
# tell it twice a second.
_BEFORE = 1.0
_AFTER = 10.0
_SILENCE = 2.5
# How long ago a worker was heard is a second old at most, and its next batch comes half a second later.
_HEARD = 2.0
_PAUSE = 0.1


class performance_report:
    """Write a page about what a block computes: the dashboard's views in one file of at most 2 MB.

    It opens without a cluster, and asks nobody. Use it as ``with performance_report("file.html"):``, or with
    ``async with``.

    Parameters
    ----------
    filename
        Where it is written: a path, or a URL for ``fsspec``.
    stacklevel
        How many calls above this one the code is that is shown.
    mode
        Accepted as distributed has it; the page needs no Bokeh.
    storage_options
        For ``fsspec.open``.
    client
        Whose cluster it is about: by default that of the current client, as ``distributed.get_client`` has it.

    Raises
    ------
    RuntimeError
        The client that is current is none of Treadle's, or its scheduler has no pages.
    """

    def __init__(
        self,
        filename: str = "dask-report.html",
        stacklevel: int = 1,
        mode: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        client: Any = None,
    ) -> None:
        del mode
        self._filename = filename
        self._level = max(stacklevel, 1)
        self._storage_options = dict(storage_options or {})
        self._client = client
        self._before: dict[str, Any] | None = None

    def __enter__(self) -> None:
        self._before = _answers(_link(self._current()))

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        with _unless(kind):
            client = self._current()
            self._write(_link(client), self._code(client))

    async def __aenter__(self) -> None:
        self._before = await asyncio.to_thread(_answers, _link(self._current()))

    async def __aexit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        with _unless(kind):
            client = self._current()
            await asyncio.to_thread(self._write, _link(client), self._code(client))

    def _current(self) -> Any:
        from distributed import get_client

        return get_client() if self._client is None else self._client

    def _code(self, client: Any) -> str:
        frames = client._get_computation_code(self._level + 2, nframes=1)
        return str(frames[0].code) if frames else ""

    def _write(self, link: str, code: str) -> None:
        import fsspec

        from treadle.sight._report import made_of

        pages = Pages(link)
        _settle(pages, _AFTER)
        page = made_of(pages, before=self._before, code=code)
        with fsspec.open(
            str(self._filename),
            mode="w",
            compression="infer",
            encoding="utf-8",
            **self._storage_options,
        ) as file:
            file.write(page)


@contextmanager
def _unless(kind: type[BaseException] | None) -> Iterator[None]:
    """Warn of what goes wrong, if something else has before: that is what people have to see."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        if kind is None:
            raise
        warnings.warn(f"performance_report: no report: {error}", UserWarning, stacklevel=3)


def _link(client: Any) -> str:
    """Return where the scheduler of a client has its pages, as it says itself: not by a proxy."""
    from treadle.client import Client

    if not isinstance(client, Client):
        raise RuntimeError(
            "performance_report: the current client is none of Treadle's; give client="
        )
    link: str | None = client.pages_link
    if link is None:
        raise RuntimeError(
            "performance_report: the scheduler has no pages; start it without --http none"
        )
    return link


def _answers(link: str) -> dict[str, Any]:
    from treadle.sight._report import answers

    pages = Pages(link)
    _settle(pages, _BEFORE)
    return answers(pages)


def _settle(pages: Pages, patience: float) -> None:
    """Wait until workers have told what they did: all that was submitted, or nothing more comes, or it is too long.

    Nothing more comes from a worker that was heard a while after the beginning, and from one that is gone.
    """
    began = time.monotonic()
    end = began + patience
    last, since = None, began
    while time.monotonic() < end:
        overview = pages.get("/sight/overview")
        runs = [group["runs"] for group in overview["groups"]]
        submitted = [group.get("total", 0) for group in overview["groups"]]
        if all(one <= other for one, other in zip(submitted, runs, strict=True)):
            return
        if runs != last:
            last, since = runs, time.monotonic()
        elif time.monotonic() - since > _SILENCE:
            passed = time.monotonic() - began
            heard = [one["heard"] for one in overview["workers"] if not one.get("why")]
            if all(one is not None and passed - one > _HEARD for one in heard):
                return
        time.sleep(_PAUSE)
