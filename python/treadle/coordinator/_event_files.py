"""Files of Spark's event logs: single ones and rolling folders, compressed or not, finished or still written.

Whoever runs a job writes there. What one of them writes must not keep the logs of others from being read.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from treadle.coordinator._event_log import read_application
from treadle.coordinator._log_stores import RemoteEntry
from treadle.coordinator._measures import Application

__all__ = ["Entry", "logs_in", "read_log"]

# A file or a folder, here or in a store.
Entry = Path | RemoteEntry

_ROLLING = "eventlog_v2_"
_ROLLED = re.compile(r"events_(\d+)_")
_logger = logging.getLogger("treadle.coordinator")
_LONGEST_LINE = 64 * 2**20
# Of a log, not compressed: a small file can become any number of bytes. Codecs make event logs 10 to 40 times smaller.
_MOST_BYTES = 16 * 2**30
_MOST_TIMES = 200
_ALWAYS_BYTES = 256 * 2**20


def logs_in(folder: Entry) -> Iterator[tuple[Entry, tuple[int, int]]]:
    """Yield the logs of a folder, each with what differs when it has grown: its size and time.

    What cannot be looked at is left out.
    """
    for path in sorted(_entries(folder), key=lambda one: one.name):
        if path.name.startswith("."):
            continue
        try:
            found = _stamp(path)
        except Exception as error:
            # At each look: warnings would fill the log.
            _logger.debug("%r is not read: %s", str(path), error)
            continue
        if found is not None:
            yield path, found


def _entries(folder: Entry) -> Iterator[Entry]:
    yield from folder.entries() if isinstance(folder, RemoteEntry) else folder.iterdir()


def _stamp(path: Entry) -> tuple[int, int] | None:
    if isinstance(path, RemoteEntry):
        if not path.is_folder:
            return path.stamp
        if not path.name.startswith(_ROLLING):
            return None
        parts = [one.stamp for one in path.entries() if _ROLLED.match(one.name)]
        return sum(size for size, _ in parts), max((time for _, time in parts), default=0)
    told = path.stat()
    if stat.S_ISREG(told.st_mode):
        return told.st_size, told.st_mtime_ns
    if stat.S_ISDIR(told.st_mode) and path.name.startswith(_ROLLING):
        stats = [one.stat() for one in path.iterdir() if _ROLLED.match(one.name)]
        newest = max((one.st_mtime_ns for one in stats), default=0)
        return sum(one.st_size for one in stats), newest
    return None


def read_log(path: Entry) -> Application:
    """Return what a log tells: a file, or the folder of a rolling one.

    Raises
    ------
    ValueError
        It is no event log, it is too large, or its compression needs a package that is not installed: that is named.
    OSError
        It cannot be read, or is no regular file.
    """
    return read_application(_bounded(path))


def _bounded(path: Entry) -> Iterator[bytes]:
    stamp = _stamp(path)
    packed = stamp[0] if stamp is not None else 0
    most = min(_MOST_BYTES, max(_ALWAYS_BYTES, _MOST_TIMES * packed))
    left = most
    for line in _lines(path):
        left -= len(line)
        if left < 0:
            raise ValueError(f"it has more than {most} bytes when it is not compressed")
        yield line


def _lines(path: Entry) -> Iterator[bytes]:
    if not (path.is_folder if isinstance(path, RemoteEntry) else path.is_dir()):
        yield from _lines_of_file(path)
        return
    parts = [(found, one) for one in _entries(path) if (found := _ROLLED.match(one.name))]
    # By number: 10 comes after 9.
    for _, part in sorted(parts, key=lambda pair: int(pair[0][1])):
        yield from _lines_of_file(part)


def _lines_of_file(path: Entry) -> Iterator[bytes]:
    with _raw(path) as raw:
        stream = _opened(path.name, raw)
        while line := _line(stream):
            if len(line) == _LONGEST_LINE:
                raise ValueError(f"{path.name} has a line of {_LONGEST_LINE} bytes or more")
            yield line


@contextmanager
def _raw(path: Entry) -> Iterator[IO[bytes]]:
    if isinstance(path, RemoteEntry):
        with path.open() as raw:
            yield raw
        return
    # A pipe would wait for somebody who writes.
    with open(path, "rb", opener=_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path.name} is no regular file")
        yield file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _line(stream: Any) -> bytes:
    try:
        return bytes(stream.readline(_LONGEST_LINE))
    except Exception as error:
        # A compressed file that is still written ends within a frame. One that is damaged is read up to there.
        damaged = (EOFError, OSError, RuntimeError, zlib.error)
        if isinstance(error, damaged) or "zstd" in str(error):
            return b""
        raise


def _opened(name: str, raw: IO[bytes]) -> Any:
    codec = name.removesuffix(".inprogress").rpartition(".")[2].lower()
    try:
        if codec in ("zst", "zstd"):
            import zstandard

            reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            return io.BufferedReader(reader)
        if codec == "lz4":
            return _Lz4Blocks(raw).buffered()
        if codec == "snappy":
            return _SnappyBlocks(raw).buffered()
    except ImportError as error:
        raise ValueError(f"{name}: to read it, pip install {error.name}") from None
    if codec == "gz":
        return gzip.GzipFile(fileobj=raw)
    if codec == "lzf":
        raise ValueError(f"{name}: lzf is not read; set spark.eventLog.compression.codec=zstd")
    return raw


class _Blocks(io.RawIOBase):
    """A stream of blocks, each decompressed by itself."""

    _LARGEST = 32 * 2**20

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._left = memoryview(b"")

    def _next(self) -> bytes | None:
        """Return the next block; None: there is no whole one."""
        raise NotImplementedError

    def buffered(self) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            found = self._next()
            if found is None:
                return 0
            self._left = memoryview(found)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


class _Lz4Blocks(_Blocks):
    """The blocks of lz4-java, which Spark writes: a magic word, a token, two lengths and a checksum before each."""

    _MAGIC = b"LZ4Block"

    def __init__(self, raw: IO[bytes]) -> None:
        import lz4.block

        super().__init__(raw)
        self._decompress = lz4.block.decompress

    def _next(self) -> bytes | None:
        head = self._raw.read(21)
        if len(head) < 21 or head[:8] != self._MAGIC:
            return None
        packed, plain = (int.from_bytes(head[at : at + 4], "little") for at in (9, 13))
        if not 0 <= packed <= self._LARGEST or not 0 <= plain <= self._LARGEST:
            raise EOFError("a block's length is damaged")
        data = self._raw.read(packed)
        if len(data) < packed:
            return None
        if head[8] & 0xF0 == 0x10:
            return data
        return bytes(self._decompress(data, uncompressed_size=plain))


class _SnappyBlocks(_Blocks):
    """The blocks of snappy-java, which Spark writes: a head of 16 bytes, then a length before each.

    Each flush of Spark may begin anew, with a head.
    """

    _MAGIC = b"\x82SNAPPY\0"

    def __init__(self, raw: IO[bytes]) -> None:
        import pyarrow

        super().__init__(raw)
        self._decompress = pyarrow.Codec("snappy").decompress

    def _next(self) -> bytes | None:
        head = self._raw.read(4)
        if head == self._MAGIC[:4]:
            if len(self._raw.read(12)) < 12:
                return None
            head = self._raw.read(4)
        if len(head) < 4:
            return None
        packed = int.from_bytes(head, "big")
        if packed > self._LARGEST:
            raise EOFError("a block's length is damaged")
        data = self._raw.read(packed)
        if len(data) < packed:
            return None
        plain = _varint(data)
        if plain > self._LARGEST:
            raise EOFError("a block's length is damaged")
        return bytes(self._decompress(data, plain, asbytes=True))


def _varint(data: bytes) -> int:
    """Return the number that a block of snappy begins with: how long it is when it is not compressed."""
    found = 0
    for at, byte in enumerate(data[:5]):
        found |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return found
    raise EOFError("a block's length is damaged")
