"""Why a way is slow, as the kernel's numbers of a connection say it."""

from __future__ import annotations

import socket
import sys
import time

import pytest

from treadle import transfer
from treadle._core import spun_seconds
from treadle.cli._tcp_info import Watch, _times, busiest, cause_of, open_sockets

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux has TCP_INFO")

# A connection that nothing limits.
FREE = {
    "retransmits": 0,
    "retransmitted_share": 0.0,
    "round_trip_seconds": 40e-6,
    "least_round_trip_seconds": 20e-6,
    "in_flight": 3_000_000,
    "receive_window": 3_000_000,
    "pacing_limit": None,
    "busy": 0.9,
    "receive_window_limited": 0.0,
    "receive_window_filled": 0.0,
    "send_buffer_limited": 0.0,
}


@pytest.mark.parametrize(
    ("changed", "rate", "sender", "cause", "evidence"),
    [
        ({"pacing_limit": 175e6}, 170e6, 0.9, "pacing or policing", "paced to 175 MB/s"),
        ({"pacing_limit": 175e6}, 20e6, 0.9, "processor", "sender"),
        (
            {"retransmits": 70, "retransmitted_share": 0.01},
            1e9,
            0.9,
            "loss",
            "70 retransmits, 1.00%",
        ),
        (
            {"receive_window_limited": 0.8, "in_flight": 12_000},
            1e8,
            0.9,
            "window",
            "the receiver's window was full, with at most 12 kB",
        ),
        # BBR: what the window forbids is not counted, but little more than the window is under way.
        (
            {"receive_window_filled": 0.8, "in_flight": 12_000},
            1e8,
            0.1,
            "window",
            "80% of the time the receiver's window was full",
        ),
        # Both sides are busy with small pieces, and looks fall between them.
        (
            {"receive_window": 16_000, "receive_window_filled": 0.4},
            1e8,
            0.9,
            "window",
            "never more than 16 kB",
        ),
        ({"send_buffer_limited": 0.8, "in_flight": 12_000}, 1e8, 0.1, "window", "the send buffer"),
        # The receiver is slow, and its window, which is large, full for that.
        ({"receive_window_limited": 0.8}, 1e9, 0.1, "processor", "the receiver's"),
        (
            {"round_trip_seconds": 0.02},
            2.5e8,
            0.1,
            "pacing or policing",
            "from 20 to 20,000 µs without loss",
        ),
        ({}, 1e9, 0.1, "unknown", "busiest thread"),
    ],
)
def test_causes(changed, rate, sender, cause, evidence):
    receiver = 0.7 if cause == "processor" and sender < 0.5 else 0.2
    found, said = cause_of({**FREE, **changed}, rate, sender, receiver)
    assert (found, evidence in said) == (cause, True), said


def test_nothing_is_known():
    assert cause_of({}, 1e9, 0.9, 0.9)[0] == "unknown"


def test_connections_are_seen_that_are_made_later():
    watch = Watch(open_sockets())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        block = bytes(1 << 20)
        with near, far, busiest() as busy:
            # Until it was looked at twice.
            while not any(
                len(one.looks) > 1 and one.grown("bytes_sent") for one in watch._connections
            ):
                near.sendall(block[: 1 << 16])
                left = 1 << 16
                while left:
                    left -= len(far.recv(left))
            seen = watch.stop()
    assert seen["sockets"] == 1
    # The kernel sends again what a receiver that gets no processor does not acknowledge in time.
    assert 0 <= seen["retransmitted_share"] < 0.5
    assert seen["pacing_limit"] is None
    assert busy[0] > 0


def test_who_looks_again_and_again_whether_something_has_come_is_not_busy():
    with (
        transfer.listen() as listener,
        transfer.connect(listener.address),
        listener.accept(timeout=10) as far,
    ):
        spun, before = spun_seconds(), _times()
        with busiest() as busy:
            started = time.perf_counter()
            for _ in range(500):
                with pytest.raises(TimeoutError):
                    far.recv(timeout=50e-6)
            seconds = time.perf_counter() - started
        spun, after = spun_seconds() - spun, _times()
    ran = max(after[thread] - before.get(thread, 0) for thread in after) / 1e9
    if spun < 5e-3:
        # Who has waited longer than it wanted a few times does not spin any more.
        pytest.skip("other processes use this machine: the thread slept at once")
    assert busy[0] * seconds <= max(ran - spun, 0) + 1e-3
