"""Files of Spark's event logs: single ones and rolling folders, compressed or not, finished or still written."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from treadle.coordinator._event_log import read_application
from treadle.coordinator._measures import Application

__all__ = ["logs_in", "read_log"]

_ROLLED = re.compile(r"events_(\d+)_")
_LONGEST_LINE = 64 * 2**20


def logs_in(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Yield the logs of a folder, each with what differs when it has grown: its size and time."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if path.name.startswith("eventlog_v2_"):
                stats = [one.stat() for one in path.iterdir()]
                newest = max((one.st_mtime_ns for one in stats), default=0)
                yield path, (sum(one.st_size for one in stats), newest)
        elif path.is_file():
            yield path, (path.stat().st_size, path.stat().st_mtime_ns)


def read_log(path: Path) -> Application:
    """Return what a log tells: a file, or the folder of a rolling one.

    Raises
    ------
    ValueError
        It is no event log, or its compression needs a package that is not installed: that is named.
    """
    return read_application(_lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    if not path.is_dir():
        yield from _lines_of_file(path)
        return
    parts = [(found, one) for one in path.iterdir() if (found := _ROLLED.match(one.name))]
    # By number: 10 comes after 9.
    for _, part in sorted(parts, key=lambda pair: int(pair[0][1])):
        yield from _lines_of_file(part)


def _lines_of_file(path: Path) -> Iterator[bytes]:
    with path.open("rb") as raw:
        stream = _opened(path, raw)
        try:
            while line := stream.readline(_LONGEST_LINE):
                yield line
        except Exception as error:
            # A compressed file that is still written ends within a frame.
            if not isinstance(error, (EOFError, OSError, RuntimeError)) and "zstd" not in str(
                error
            ):
                raise


def _opened(path: Path, raw: IO[bytes]) -> Any:
    codec = path.name.removesuffix(".inprogress").rpartition(".")[2].lower()
    try:
        if codec in ("zst", "zstd"):
            import zstandard

            reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            return io.BufferedReader(reader)
        if codec == "lz4":
            return _Lz4Blocks(raw).buffered()
    except ImportError as error:
        raise ValueError(f"{path.name}: to read it, pip install {error.name}") from None
    if codec == "gz":
        return gzip.GzipFile(fileobj=raw)
    if codec in ("snappy", "lzf"):
        raise ValueError(
            f"{path.name}: {codec} is not read; set spark.eventLog.compression.codec=zstd"
        )
    return raw


class _Lz4Blocks(io.RawIOBase):
    """The blocks of lz4-java, which Spark writes: a magic word, a token, two lengths and a checksum before each."""

    _MAGIC = b"LZ4Block"
    _LARGEST = 32 * 2**20

    def __init__(self, raw: IO[bytes]) -> None:
        import lz4.block

        self._decompress = lz4.block.decompress
        self._raw = raw
        self._left = b""

    def buffered(self) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            head = self._raw.read(21)
            if len(head) < 21 or head[:8] != self._MAGIC:
                return 0
            packed, plain = (int.from_bytes(head[at : at + 4], "little") for at in (9, 13))
            if not 0 <= packed <= self._LARGEST or not 0 <= plain <= self._LARGEST:
                raise EOFError("a block's length is damaged")
            data = self._raw.read(packed)
            if len(data) < packed:
                return 0
            is_raw = head[8] & 0xF0 == 0x10
            self._left = data if is_raw else self._decompress(data, uncompressed_size=plain)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
