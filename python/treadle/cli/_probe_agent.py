"""The agents of ``treadle probe``: each measures the ways from its own host."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle.cli._basics import reason, tell, told
from treadle.cli._tcp_info import Watch, busiest, cause_of, open_sockets

if TYPE_CHECKING:
    from treadle._core import Listener
    from treadle._core import TransferConnection as Connection

__all__ = ["CONNECT_TIMEOUT", "Agent"]

CONNECT_TIMEOUT = 5.0
_TIMEOUT = 60.0
_BLOCK = 4 << 20  # bytes
_UNDER_WAY = 4  # blocks: the way is never empty while one is acknowledged
_ROUND_TRIPS = 50
_WARMUP = 0.25  # of the time


class Agent:
    """Answers a coordinator, and other agents."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    @classmethod
    def start(
        cls, address: str, options: dict[str, Any]
    ) -> tuple[Listener, Callable[[Connection], None]]:
        """Listen, and return what attends to the connections."""
        from treadle.transfer import listen

        listener = listen(address, shared_memory=False, max_stripes=64, **options)
        return listener, cls(options).attend

    def attend(self, connection: Connection) -> None:
        """Do what a connection asks for, until it ends."""
        while True:
            asked = told(connection)
            what = asked.pop("do", None)
            if what == "greet":
                tell(connection, ready=True)
            elif what == "measure":
                tell(connection, **self._measured(**asked))
            elif what == "receive":
                _receive(connection)
            else:
                raise ValueError(f"the peer asks for {what!r}: run the same version on all hosts")

    def _measured(self, to: str, sockets: int, seconds: float) -> dict[str, Any]:
        try:
            return self._measure(to, sockets, seconds)
        except (OSError, ValueError) as error:
            return {"error": reason(error)}

    def _measure(self, to: str, sockets: int, seconds: float) -> dict[str, Any]:
        from treadle.transfer import connect

        before = open_sockets()
        with connect(
            to,
            stripes=sockets,
            max_stripes=sockets,
            shared_memory=False,
            connect_timeout=CONNECT_TIMEOUT,
            **self._options,
        ) as connection:
            trips = []
            for _ in range(_ROUND_TRIPS):
                began = time.perf_counter()
                tell(connection, do="greet")
                told(connection, _TIMEOUT)
                trips.append(time.perf_counter() - began)
            watch = Watch(before)
            with busiest() as sender:
                rate, receiver = _send(connection, seconds)
            seen = watch.stop()
            cause, evidence = cause_of(seen, rate, sender[0], receiver)
            return {
                "mb_per_second": rate / 1e6,
                "round_trip_seconds": statistics.median(trips),
                "cause": cause,
                "evidence": evidence,
                "tcp": {**seen, "sender_busy": sender[0], "receiver_busy": receiver},
            }


def _send(connection: Connection, seconds: float) -> tuple[float, float]:
    """Send blocks for so long; return bytes a second, without the first part of the time, and the share
    of the time in which the receiver's busiest thread was busy.
    """
    block = memoryview(bytearray(_BLOCK))
    tell(connection, do="receive")
    under_way = deque([connection.start_send(block)])
    began = last = time.perf_counter()
    first: float | None = None
    blocks = 0
    # One block after the warm-up at least, however slow the way is.
    while blocks == 0 or last < began + seconds:
        while len(under_way) < _UNDER_WAY:
            under_way.append(connection.start_send(block))
        under_way.popleft().result(timeout=_TIMEOUT)
        last = time.perf_counter()
        if first is not None:
            blocks += 1
        elif last >= began + _WARMUP * seconds:
            first = last
    for transfer in under_way:
        transfer.result(timeout=_TIMEOUT)
    tell(connection, end=True)
    busy = told(connection, _TIMEOUT).get("busy", 0.0)
    assert first is not None
    return blocks * _BLOCK / (last - first), busy


def _receive(connection: Connection) -> None:
    """Receive blocks until something else comes."""
    with busiest() as busy:
        while isinstance(connection.recv(timeout=_TIMEOUT), memoryview):
            pass
    tell(connection, ready=True, busy=busy[0])
