"""Many objects at a time."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from transfer_support import LIMIT, Peer, pair

from treadle import transfer

Pair = tuple[transfer.Connection, transfer.Connection]


@pytest.fixture
def ends() -> Iterator[Pair]:
    with pair() as ends:
        yield ends


def receive(conn: transfer.Connection, count: int) -> list[Any]:
    received: list[Any] = []
    while len(received) < count:
        batch = conn.recv_many(timeout=LIMIT)
        assert batch
        received += batch
    assert len(received) == count
    return received


def test_between_processes() -> None:
    code = """
    received = []
    while len(received) < 100_000:
        received += conn.recv_many()
    assert received == [b"%d" % i for i in range(100_000)]
    conn.send_many(received)
    """
    with Peer(code) as peer:
        sent = [b"%d" % i for i in range(100_000)]
        peer.conn.send_many(sent)
        assert receive(peer.conn, 100_000) == sent
        peer.finish()


def test_small_and_large_ones_keep_their_order(ends: Pair) -> None:
    one, other = ends
    sent: list[Any] = []
    for i in range(300):
        sent += [b"%d" % i, i, {"n": i}, np.full(i * 100, i), bytes(i * 300), bytearray(b"%d" % i)]
    sender = threading.Thread(target=one.send_many, args=(sent,))
    sender.start()
    received = receive(other, len(sent))
    sender.join(LIMIT)
    for got, expected in zip(received, sent, strict=True):
        assert type(got) is type(expected)
        assert np.array_equal(got, expected) if isinstance(got, np.ndarray) else got == expected


def test_single_calls_see_the_same_objects(ends: Pair) -> None:
    one, other = ends
    one.send_many([b"a", b"b", "c"])
    one.send("d")
    assert [other.recv(timeout=LIMIT) for _ in range(4)] == [b"a", b"b", "c", "d"]


def test_at_most(ends: Pair) -> None:
    one, other = ends
    one.send_many([b"%d" % i for i in range(10)])
    received = []
    while len(received) < 10:
        batch = other.recv_many(3, timeout=LIMIT)
        assert 1 <= len(batch) <= 3
        received += batch
    assert received == [b"%d" % i for i in range(10)]
    with pytest.raises(ValueError, match="max=0"):
        other.recv_many(0)


def test_a_large_object_alone(ends: Pair) -> None:
    one, other = ends
    started = one.start_send(np.ones(5_000_000))
    one.send_many([b"after"])
    [array] = other.recv_many(timeout=LIMIT)
    assert array.sum() == 5_000_000
    assert other.recv_many(timeout=LIMIT) == [b"after"]
    started.result(LIMIT)


def test_any_iterable(ends: Pair) -> None:
    one, other = ends
    one.send_many(b"%d" % i for i in range(5))
    one.send_many(())
    assert receive(other, 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_an_iterable_that_fails(ends: Pair) -> None:
    one, other = ends

    def objects() -> Iterator[bytes]:
        yield b"1"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        one.send_many(objects())
    one.send(b"2")
    assert receive(other, 1) in ([b"1"], [b"2"])


def test_a_receiver_that_does_not_receive(ends: Pair) -> None:
    one, other = ends
    with pytest.raises(TimeoutError):
        one.send_many([bytes(1000)] * 100_000, timeout=1)
    # What was sent is here.
    assert len(other.recv_many(timeout=LIMIT)) > 100


def test_an_end(ends: Pair) -> None:
    one, other = ends
    one.send_many([b"x"] * 10)
    one.close()
    assert receive(other, 10) == [b"x"] * 10
    with pytest.raises(EOFError):
        other.recv_many(timeout=LIMIT)
    with pytest.raises(transfer.ConnectionClosed):
        other.send_many([b"x"] * 10)


@pytest.mark.parametrize("name", ["stripes", "max_stripes", "prefetch", "max_object"])
@pytest.mark.parametrize("given", [-1, 2**64, 1.5, "x"])
def test_numbers_of_connections_that_are_none_are_named(name: str, given: Any) -> None:
    for make in (transfer.listen, partial(transfer.connect, "127.0.0.1:1")):
        with pytest.raises(
            (TypeError, ValueError), match=f"^{name}=.*: give an integer from [01] to"
        ):
            make(**{name: given})


@pytest.mark.parametrize("given", [-1, 0, -(2**70), 1.5, "x", math.nan])
def test_how_many_are_received_at_most_is_checked(given: Any) -> None:
    with pair() as (one, other):
        one.send_many([1, 2])
        with pytest.raises((TypeError, ValueError), match=f"^max={re.escape(repr(given))}: "):
            other.recv_many(given)
        received = other.recv_many(2**70)
        while len(received) < 2:
            received += other.recv_many(2**64)
        assert received == [1, 2]
