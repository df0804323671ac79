"""HTTP's parser of the coordinator: httptools, with a bound on what comes before a body."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["BoundedProtocol"]

# As h11's: httptools itself has no bound, and keeps what comes until the head is whole.
_LARGEST_HEAD = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose request has more than 64 KiB before its body, between its pieces, or behind it."""

    # Bytes that have come since something was whole.
    _kept = 0

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        self._kept += len(data)
        super().data_received(data)
        if self._kept > _LARGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("the head of a request has at most 64 KiB")

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._kept = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body has come."""
        self._kept = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """What comes next is another request's head."""
        self._kept = 0
        super().on_message_complete()
