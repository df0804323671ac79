"""What the kernel knows of a TCP connection (``TCP_INFO``), and why a way is slow.

Linux only. A way is watched while it is measured: the agent that sends reads its sockets from time to
time, and both agents say how busy their threads were. :func:`cause_of` judges from that.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from treadle import _core

__all__ = ["Watch", "busiest", "cause_of", "open_sockets"]

# The beginning of `struct tcp_info` (linux/tcp.h), and where its numbers are that are used here.
_LENGTH = 256
_FIELDS = {
    "snd_mss": (16, "I"),
    "unacked": (24, "I"),
    "rtt": (68, "I"),
    "snd_cwnd": (80, "I"),
    "total_retrans": (100, "I"),
    "pacing_rate": (104, "Q"),
    "max_pacing_rate": (112, "Q"),
    "min_rtt": (148, "I"),
    "delivery_rate": (160, "Q"),
    "busy_time": (168, "Q"),
    "rwnd_limited": (176, "Q"),
    "sndbuf_limited": (184, "Q"),
    "bytes_sent": (200, "Q"),
    "bytes_retrans": (208, "Q"),
    "snd_wnd": (228, "I"),
}
_UNPACED = 2**64 - 1

# Seconds between two looks.
_INTERVAL = 0.01


def read(sock: socket.socket) -> dict[str, int]:
    """Return the numbers of one connection; those that this kernel does not have are 0."""
    data = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH).ljust(_LENGTH, b"\0")
    return {
        name: struct.unpack_from(f"={form}", data, place)[0]
        for name, (place, form) in _FIELDS.items()
    }


class Watch:
    """Looks at connections of this process, from its making to :meth:`stop`.

    Parameters
    ----------
    known
        What :func:`open_sockets` returned before: these are none of the connections. Those that are made
        later are found when they are there.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._known = set(known)
        self._connections: list[_Connection] = []
        self._began = time.perf_counter()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="treadle-probe", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            for name, descriptor in open_sockets().items():
                if name not in self._known:
                    self._known.add(name)
                    self._connections += map(_Connection, _tcp(descriptor))
            for connection in self._connections:
                with suppress(OSError):
                    connection.looks.append(read(connection.socket))
            if self._over.wait(_INTERVAL):
                return

    def stop(self) -> dict[str, Any]:
        """Return what was seen of the connections that carried something; nothing, if none did."""
        self._over.set()
        self._thread.join()
        seconds = time.perf_counter() - self._began
        for connection in self._connections:
            connection.socket.close()
        sent = sum(connection.grown("bytes_sent") for connection in self._connections)
        # The others say nothing about the way: the control connection, for example.
        used = [one for one in self._connections if one.grown("bytes_sent") * 10 > sent]
        if not used:
            return {}

        def median(name: str) -> int:
            values = sorted(look[name] for look in looks)
            return values[len(values) // 2]

        def share(name: str) -> float:
            return sum(one.grown(name) for one in used) / 1e6 / seconds / len(used)

        looks = [look for one in used for look in one.looks]
        filled = sum(2 * look["unacked"] * look["snd_mss"] >= look["snd_wnd"] > 0 for look in looks)
        caps = [one.looks[-1]["max_pacing_rate"] for one in used]
        return {
            "seconds": seconds,
            "sockets": len(used),
            "retransmits": sum(one.grown("total_retrans") for one in used),
            "retransmitted_share": sum(one.grown("bytes_retrans") for one in used) / sent,
            "round_trip_seconds": median("rtt") / 1e6,
            "least_round_trip_seconds": min(one.looks[-1]["min_rtt"] for one in used) / 1e6,
            "congestion_window": median("snd_cwnd") * median("snd_mss"),
            "in_flight": max(look["unacked"] * look["snd_mss"] for look in looks),
            "receive_window": max(look["snd_wnd"] for look in looks),
            "receive_window_filled": filled / len(looks),
            "delivery_rate": sum(one.looks[-1]["delivery_rate"] for one in used),
            "pacing_limit": None if _UNPACED in caps else max(caps),
            "busy": share("busy_time"),
            "receive_window_limited": share("rwnd_limited"),
            "send_buffer_limited": share("sndbuf_limited"),
        }


class _Connection:
    """A socket, and what was seen of it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.looks: list[dict[str, int]] = []

    def grown(self, name: str) -> int:
        return self.looks[-1][name] - self.looks[0][name] if self.looks else 0


def open_sockets() -> dict[str, int]:
    """Return a descriptor of each of this process's sockets, by the socket's own name."""
    found = {}
    with suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                name = os.readlink(f"/proc/self/fd/{descriptor}")
                if name.startswith("socket:"):
                    found[name] = int(descriptor)
    return found


def _tcp(descriptor: int) -> Iterator[socket.socket]:
    """Yield the socket of a descriptor, duplicated, if it is a TCP connection."""
    try:
        one = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return
    try:
        is_tcp = one.family in (socket.AF_INET, socket.AF_INET6) and bool(one.getpeername())
    except OSError:
        is_tcp = False
    if is_tcp and one.type == socket.SOCK_STREAM:
        yield one
    else:
        one.close()


@contextmanager
def busiest() -> Iterator[list[float]]:
    """Yield a list that has, afterwards, the share of the time in which the busiest thread ran or waited to.

    A thread that looks again and again whether something has come, instead of sleeping, is not busy.
    """
    found: list[float] = []
    before, spun, began = _times(), _core.spun_seconds(), time.perf_counter()
    try:
        yield found
    finally:
        seconds = max(time.perf_counter() - began, 1e-9)
        after, spun = _times(), _core.spun_seconds() - spun
        busy = max(((after[thread] - before.get(thread, 0)) / 1e9 for thread in after), default=0.0)
        found.append(max(busy - spun, 0.0) / seconds)


def _times() -> dict[str, int]:
    """Nanoseconds in which each thread of this process has run, or waited for a processor."""
    found = {}
    with suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:
                    ran, waited = file.read().split()[:2]
                found[thread] = int(ran) + int(waited)
    return found


# Of all bytes, sent again.
_LOSSY = 1e-3
# Of the time of a measurement.
_PACED = 0.6
_LIMITED = 0.5
_BUSY = 0.65
# A window that is full with less (bytes) is too small, whoever else is busy. A larger one fills also
# where the receiver is too slow.
_SMALL = 512 << 10
# A receiver that never offers more than this keeps both sides busy with small pieces, and is often looked
# at between them.
_TINY = 64 << 10
# A queue that makes the round trip so many times as long belongs to a link that is full.
_QUEUED = 5.0
_LONG = 1e-3  # seconds


def cause_of(seen: dict[str, Any], rate: float, sender: float, receiver: float) -> tuple[str, str]:
    """Return why a way carries no more, and the numbers that say so.

    The causes are ``"loss"``, ``"pacing or policing"``, ``"window"``, ``"processor"`` and
    ``"unknown"``.

    Parameters
    ----------
    seen
        What :meth:`Watch.stop` returned.
    rate
        Bytes a second.
    sender, receiver
        The shares of the busiest threads.
    """
    if not seen:
        return "unknown", "this system has no TCP_INFO"
    trip, least = seen["round_trip_seconds"], seen["least_round_trip_seconds"]
    limit = seen["pacing_limit"]
    if limit is not None and rate >= _PACED * limit:
        return "pacing or policing", f"each socket is paced to {limit / 1e6:,.0f} MB/s"
    if seen["retransmitted_share"] >= _LOSSY:
        share = seen["retransmitted_share"]
        return "loss", f"{seen['retransmits']:,} retransmits, {share:.2%} of the bytes"
    waited, buffered = (
        seen[name] / max(seen["busy"], 1e-9)
        for name in ("receive_window_limited", "send_buffer_limited")
    )
    # Where congestion control paces (BBR), the kernel does not count what the window forbids.
    waited = max(waited, seen["receive_window_filled"])
    full = max(waited, buffered)
    busy = max(sender, receiver)
    window = seen["receive_window"]
    if busy >= _BUSY and full < _LIMITED and 0 < window <= _TINY:
        return "window", (
            f"the receiver's window had never more than {window / 1e3:,.0f} kB; "
            f"the busiest thread has no time left ({busy:.0%}), as pieces are that small"
        )
    if busy >= _BUSY and not (full >= _LIMITED and seen["in_flight"] < _SMALL):
        who = "sender" if sender >= receiver else "receiver"
        return "processor", f"the {who}'s busiest thread has no time left ({busy:.0%})"
    if full >= _LIMITED:
        what = "the receiver's window" if waited >= buffered else "the send buffer"
        return "window", (
            f"{full:.0%} of the time {what} was full, with at most "
            f"{seen['in_flight'] / 1e3:,.0f} kB under way"
        )
    if trip >= _LONG and trip >= _QUEUED * max(least, 1e-6):
        return "pacing or policing", (
            f"the round trip grew from {least * 1e6:,.0f} to {trip * 1e6:,.0f} µs without loss: a queue before a "
            "limited rate"
        )
    return (
        "unknown",
        f"busiest thread {busy:.0%}, window full {full:.0%} of the time",
    )
