"""The site that `make docs` builds: built once, served on loopback, and its links."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(into: Path, caches: Path) -> None:
    """Build the site as `make docs` does: a warning is an error."""
    command = (sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going")
    subprocess.run(
        [*command, "-c", ROOT / "docs" / "_site", "-d", caches, ROOT / "docs", into],
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder, and give the address."""
    handler = functools.partial(_Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Page(HTMLParser):
    """What a page refers to, and the places in it that others refer to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value is None:
                continue
            if name == "id":
                self.places.add(value)
            elif name == "href" and tag == "a":
                self.targets.append(value)
            elif (name == "src") or (name == "href" and tag == "link"):
                self.loaded.append(value)
