"""Servers whose disks are given up for a remote store, beside the store's own tool.

A directory here is measured always, the stores of ``TREADLE_TEST_REMOTES`` where there are some:
``python tests/remote.py --bench`` starts an S3-compatible server and HDFS.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from figures import Figure, time_of
from jobs import shuffled
from larger import LIMIT, TIMES
from treadle.shuffle import Service

SERVERS = 2
BAR = 0.6


def ran(*command: Any) -> float:
    """Run a command; return its seconds."""
    began = time.perf_counter()
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


class Tool:
    """What a store's users copy files with."""

    def __init__(self, url: str) -> None:
        self.name, place = url.partition("://")[::2]
        self.place, _, self.options = place.partition("?")

    @property
    def is_here(self) -> bool:
        return {
            "file": True,
            "s3": shutil.which("aws") is not None,
            "hdfs": "TREADLE_TEST_HADOOP" in os.environ,
        }.get(self.name, False)

    def _copy(self, source: Path, target: Path, name: str, puts: bool) -> tuple[Any, ...]:
        if self.name == "file":
            remote = Path("/", self.place.lstrip("/"), name)
            remote.parent.mkdir(parents=True, exist_ok=True)
            return ("cp", source, remote) if puts else ("cp", remote, target)
        if self.name == "s3":
            endpoint = self.options.removeprefix("endpoint=").partition("&")[0]
            remote = f"s3://{self.place}/{name}"
            pair = (source, remote) if puts else (remote, target)
            return ("aws", "--endpoint-url", endpoint, "--region", "us-east-1", "s3", "cp", *pair)
        node, _, path = self.place.partition("/")
        pair = ("-put", "-f", source) if puts else ("-get", "-f")
        shell = (*self._hadoop(node), *pair, f"/{path}/{name}")
        return shell if puts else (*shell, target)

    def _hadoop(self, node: str) -> tuple[str, ...]:
        classes = os.environ["TREADLE_TEST_HADOOP"]
        return ("java", "-cp", classes, "org.apache.hadoop.fs.FsShell", "-fs", f"hdfs://{node}")

    def idle(self) -> float:
        """Seconds that the tool takes to do nothing."""
        if self.name == "s3":
            return ran("aws", "--version")
        if self.name == "hdfs":
            node, _, path = self.place.partition("/")
            ran(*self._hadoop(node), "-mkdir", "-p", f"/{path}")
            return ran(*self._hadoop(node), "-test", "-d", f"/{path}")
        return 0.0

    def seconds(self, folder: Path, nbytes: int) -> float:
        """Seconds to put and to get so many bytes, in as many files at once as there are servers."""
        start = self.idle()
        files = [folder / f"tool-{number}" for number in range(SERVERS)]
        for path in files:
            with path.open("wb") as file:
                for _ in range(nbytes // SERVERS >> 20):
                    file.write(os.urandom(1 << 20))
        with ThreadPoolExecutor(SERVERS) as pool:
            began = time.perf_counter()
            for puts in (True, False):
                copies = [self._copy(path, path, path.name, puts) for path in files]
                list(pool.map(lambda command: ran(*command), copies))
            took = time.perf_counter() - began
        return took - 2 * start


@contextmanager
def service(url: str) -> Iterator[tuple[Service, Path]]:
    """A service whose rows go to a remote store, and a folder."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Service(
            servers=SERVERS,
            memory_limit=LIMIT,
            local_directory=folder,
            remote=url,
            storage="remote",
            timeout=600,
        ) as running,
    ):
        yield running, Path(folder)


def measure(quick: bool) -> Iterator[Figure]:
    """Yield a figure for each store."""
    size = SERVERS * TIMES * LIMIT // (4 if quick else 1)
    with tempfile.TemporaryDirectory() as place:
        named = os.environ.get("TREADLE_TEST_REMOTES", "").split()
        for url in (f"file://{place}", *named):
            tool = Tool(url)
            what = f"{size / 1e6:,.0f} MB through {tool.name}, {TIMES} × the memory of two servers"
            if not tool.is_here:
                print(f"the tool of {tool.name} is not here", file=sys.stderr)
                continue
            with service(url) as (running, folder):
                took = shuffled(running, folder, 100, 100, size, copies=1)
                assert took.files == 0, "rows went to local files"
            with tempfile.TemporaryDirectory() as folder:
                own = tool.seconds(Path(folder), size)
            ratio = own / took.whole
            yield Figure(
                what,
                f"{time_of(took.whole)}: {size / took.whole / 1e6:,.0f} MB/s written and read",
                f"its own tool {time_of(own)}",
                f"{ratio:.2f} ×",
                f"≥ {BAR} ×",
                ratio >= BAR,
            )
