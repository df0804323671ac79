"""Folders of event logs elsewhere: in S3-compatible stores, and in HDFS by its HTTP interface (WebHDFS, HttpFS).

Credentials come from the environment alone, by the rules of each store's client.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, quote_plus, unquote, urlsplit

__all__ = ["RemoteEntry", "folder_of"]

_SCHEMES = ("s3", "webhdfs", "swebhdfs")
# Seconds for a connection, and for a request.
_CONNECT, _REQUEST = 10.0, 30.0
_BUFFER = 2**20


class _Store(Protocol):
    """What reading logs needs of a store."""

    def list(self, path: str) -> Iterator[tuple[str, bool, int, int]]:
        """Yield what is in a folder: paths, whether each is a folder, its size, and when it was changed."""

    def open(self, path: str) -> Callable[[int], bytes]:
        """Return what reads at most so many bytes more."""


@dataclass(frozen=True)
class RemoteEntry:
    """A file or a folder of a store."""

    url: str
    path: str
    is_folder: bool = field(compare=False)
    stamp: tuple[int, int] = field(compare=False)
    store: _Store = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.url}: {self.path}"

    def entries(self) -> Iterator[RemoteEntry]:
        """Yield what is in this folder."""
        for path, is_folder, size, time in self.store.list(self.path):
            yield RemoteEntry(self.url, path, is_folder, (size, time), self.store)

    def open(self) -> io.BufferedReader:
        """Open this file to be read from its beginning."""
        return io.BufferedReader(_Raw(self.store.open(self.path)), _BUFFER)


class _Raw(io.RawIOBase):
    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def folder_of(url: str) -> RemoteEntry:
    """Return the folder of a URL: ``s3://BUCKET/PREFIX?endpoint=URL&region=NAME``, ``webhdfs://HOST:PORT/PATH``.

    ``swebhdfs`` is WebHDFS by https. Nothing is asked of the store yet.

    Raises
    ------
    ValueError
        The URL is malformed, has credentials, or needs a package that is not installed: that is named.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError(f"{url}: give s3://BUCKET/PREFIX or webhdfs://HOST:PORT/PATH")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            f"{parts.scheme}://…@{parts.hostname}: credentials belong into the environment"
        )
    query = parse_qs(parts.query, keep_blank_values=True)
    known = {"endpoint", "region"} if parts.scheme == "s3" else set()
    if unknown := sorted(set(query) - known):
        raise ValueError(f"{url}: there is no {', '.join(unknown)}")
    try:
        if parts.scheme == "s3":
            store: _Store = _S3(*(query.get(name, [""])[0] for name in ("endpoint", "region")))
            path = f"{parts.netloc}{unquote(parts.path)}"
        else:
            store = _WebHdfs(parts.hostname, parts.port, parts.scheme == "swebhdfs")
            path = unquote(parts.path) or "/"
    except ImportError as error:
        name = (error.name or "").partition(".")[0]
        raise ValueError(f"{parts.scheme}://…: to read it, pip install {name}") from None
    plain = f"{parts.scheme}://{parts.netloc}"
    return RemoteEntry(plain, path.rstrip("/") or "/", True, (0, 0), store)


class _S3:
    def __init__(self, endpoint: str, region: str) -> None:
        from pyarrow import fs

        given: dict[str, Any] = {"region": region} if region else {}
        if endpoint:
            parts = urlsplit(endpoint)
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ValueError(f"endpoint={endpoint} must begin with http:// or https://")
            given |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        self._files = fs.S3FileSystem(connect_timeout=_CONNECT, request_timeout=_REQUEST, **given)
        self._selector = fs.FileSelector
        self._folder = fs.FileType.Directory

    def list(self, path: str) -> Iterator[tuple[str, bool, int, int]]:
        # A prefix that nothing was written to is not there.
        for one in self._files.get_file_info(self._selector(path, allow_not_found=True)):
            yield one.path, one.type == self._folder, one.size or 0, one.mtime_ns or 0

    def open(self, path: str) -> Callable[[int], bytes]:
        # As it is: by its name it would be unpacked, and Spark's blocks are none of lz4's own format.
        stream = self._files.open_input_stream(path, compression=None)
        read: Callable[[int], bytes] = stream.read
        return read


class _WebHdfs:
    def __init__(self, host: str, port: int | None, is_secure: bool) -> None:
        from fsspec.implementations.webhdfs import WebHDFS

        self._token = token = os.environ.get("HADOOP_TOKEN")
        given = {"token": token} if token else {"user": os.environ.get("HADOOP_USER_NAME")}
        self._files = WebHDFS(
            host,
            port or (9871 if is_secure else 9870),
            use_https=is_secure,
            skip_instance_cache=True,
            use_listings_cache=False,
            **given,
        )
        session = self._files.session
        session.request = functools.partial(session.request, timeout=(_CONNECT, _REQUEST))

    def list(self, path: str) -> Iterator[tuple[str, bool, int, int]]:
        with self._without_token():
            found = self._files.ls(path, detail=True)
        for one in found:
            is_folder = one["type"] == "directory"
            yield one["name"], is_folder, int(one["size"]), int(one["modificationTime"])

    def open(self, path: str) -> Callable[[int], bytes]:
        with self._without_token():
            file = self._files.open(path, "rb", cache_type="readahead")

        def read(size: int) -> bytes:
            with self._without_token():
                return bytes(file.read(size))

        return read

    @contextmanager
    def _without_token(self) -> Iterator[None]:
        """Take the token out of errors: it is a part of each URL, and errors are logged."""
        try:
            yield
        except Exception as error:
            text = str(error) or type(error).__name__
            if self._token:
                for form in (quote(self._token, safe=""), quote_plus(self._token), self._token):
                    text = text.replace(form, "…")
            raise OSError(text) from None
