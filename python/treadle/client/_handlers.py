"""What a connection tells its client: one object that does not keep the client alive."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from treadle._compat.distributed import current_client
from treadle.client._distributed import ClientOfDistributed
from treadle.common import _calls

if TYPE_CHECKING:
    from treadle.client._client import Client

__all__ = ["Handlers"]

logger = logging.getLogger("treadle.client")
# What its handlers raise is logged where it logs that.
of_distributed = logging.getLogger("distributed.client")


class Handlers:
    """Called by the connection, in whatever thread processes messages. Never raises."""

    # The connection sets it itself while it unpickles: Python code could be interrupted by a signal.
    current_client = current_client

    def __init__(self, client: Client) -> None:
        self.client = weakref.ref(client)

    def on_call(self, id: int, node: str, operation: str, argument: Any) -> None:  # noqa: A002
        """Somebody asks something."""
        client = self.client()
        # Once: another thread may be closing the client.
        connection = None if client is None else client._connection
        if client is None or connection is None:
            return
        if operation == "observe":
            client._observed = argument["submissions"]
        served = operation in ("observe", "begun-anew", "event")
        error = None if served else f"clients do not serve {operation!r}"
        # Nobody waits for it when the connection is over.
        with suppress(Exception):
            connection.answer(id, None, error)
        if operation == "begun-anew":
            self._begun_anew(client, _calls.unpack(argument, opening=True)["reason"])
            return
        if operation != "event":
            return
        try:
            event = _calls.unpack(argument, opening=True)
        except Exception:
            logger.exception("%s sent an event that cannot be unpickled", node)
            return
        topic = event["topic"]
        handler = ClientOfDistributed._default_event_handlers.get(topic)
        if handler is None or client._event_handlers.get(topic) is not handler:
            client._in_loop(client._event, topic, event["event"])
            return
        # What a task prints is printed before the task is done.
        try:
            handler(event["event"])
        except Exception:
            of_distributed.exception("%s of a task", topic)

    def _begun_anew(self, client: Client, reason: str) -> None:
        """The scheduler's Python side was replaced by another, which knows nothing of the past."""
        logger.error(
            "The scheduler's Python side has ended (%s) and was started again. Locks, semaphores, "
            "queues, variables, events, published data, metadata and plugins are gone; a lock that is "
            "held can be had by others. Tasks and futures go on.",
            reason,
        )
        client._observed = False
        for topic in list(client._topics):
            with suppress(Exception):
                client._send_to_scheduler({"op": "subscribe-topic", "topic": topic})

    def on_stuck(self, keys: list[Hashable], reason: str) -> None:
        """Nothing moves, and that will not change by itself."""
        shown = ", ".join(map(repr, keys[:5])) + (", …" if len(keys) > 5 else "")
        logger.warning("%s waits: %s", shown or "the cluster", reason)

    def on_restarted(self) -> None:
        """Everything was dropped."""
        client = self.client()
        if client is not None:
            client._handle_restart()

    def on_closed(self, reason: str) -> None:
        """The connection has ended."""
        client = self.client()
        if client is not None:
            client._lost_connection(reason)
