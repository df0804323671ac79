"""HTTP's parser of the coordinator: httptools, with a bound on what comes before a body."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["BoundedProtocol"]

# As h11's: httptools itself has no bound, and keeps what comes until the head is whole.
_LARGEST_HEAD = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """Ends a connection whose request has a head of more than 64 KiB."""

    _is_in_head = True
    _head = 0

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        if self._is_in_head:
            self._head += len(data)
        super().data_received(data)
        if self._is_in_head and self._head > _LARGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("the head of a request has at most 64 KiB")

    def on_headers_complete(self) -> None:
        """Begin to count anew."""
        self._is_in_head, self._head = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """What comes next is another request's head."""
        self._is_in_head = True
        super().on_message_complete()
