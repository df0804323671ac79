"""Servers of HTTP in this process, for what a test has them answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from waiting import SOON


class Quiet(BaseHTTPRequestHandler):
    """Says nothing of what it is asked."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving(handler: Callable[..., Any]) -> Iterator[str]:
    """Serve in a thread. Yields the address, without a slash at its end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(SOON)
