"""How connections end: in order, by `kill -9`, in forked children, and at exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from transfer_support import LIMIT, Peer, pair

from treadle import transfer

LARGE = np.arange(4_000_000.0)


class TestClosing:
    def test_what_was_sent_can_be_received(self) -> None:
        with pair() as (one, other):
            one.send(LARGE[:1000])
            one.send("last")
            one.close()
            assert (other.recv(timeout=LIMIT) == LARGE[:1000]).all()
            assert other.recv(timeout=LIMIT) == "last"
            for error in transfer.ConnectionClosed, EOFError, ConnectionError, OSError:
                with pytest.raises(error, match="the peer closed the connection"):
                    other.recv(timeout=LIMIT)

    def test_both_sides_know(self, eventually: Callable) -> None:
        with pair() as (one, other):
            assert not one.closed
            assert not other.closed
            assert "open" in repr(one)
            one.close()
            one.close()
            assert one.closed
            assert "closed" in repr(one)
            eventually(lambda: other.closed)
            with pytest.raises(transfer.ConnectionClosed):
                other.send(1)

    def test_this_side(self) -> None:
        with pair() as (one, _):
            one.close()
            for call in (
                lambda: one.send(1),
                lambda: one.start_send(1),
                lambda: one.send_many([1]),
                one.recv,
                one.recv_many,
            ):
                with pytest.raises(transfer.ConnectionClosed, match="was closed here"):
                    call()

    def test_somebody_waits(self) -> None:
        with pair() as (one, _):
            errors: list[BaseException] = []

            def receive() -> None:
                try:
                    one.recv()
                except EOFError as error:
                    errors.append(error)

            thread = threading.Thread(target=receive)
            thread.start()
            time.sleep(0.02)
            one.close()
            thread.join(LIMIT)
            assert not thread.is_alive()
            assert len(errors) == 1

    def test_an_object_under_way(self) -> None:
        with pair(prefetch=0) as (one, other):
            started = one.start_send(LARGE)
            other.close()
            assert isinstance(started.exception(LIMIT), transfer.ConnectionClosed)

    def test_forgetting_it_closes_it(self) -> None:
        with transfer.listen() as listener:
            one = transfer.connect(listener.address)
            other = listener.accept(LIMIT)
            one.send("last")
            del one
            assert other.recv(timeout=LIMIT) == "last"
            with pytest.raises(EOFError):
                other.recv(timeout=LIMIT)

    def test_listeners(self) -> None:
        listener = transfer.listen()
        errors: list[BaseException] = []

        def accept() -> None:
            try:
                listener.accept()
            except transfer.ConnectionClosed as error:
                errors.append(error)

        threads = [
            threading.Thread(target=accept),
            threading.Thread(target=lambda: list(listener)),
        ]
        for thread in threads:
            thread.start()
        with transfer.connect(listener.address) as kept:
            time.sleep(0.02)
            listener.close()
            with pytest.raises(transfer.TransferError):
                transfer.connect(listener.address, connect_timeout=5)
            del kept
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive()

    def test_accepted_connections_outlive_their_listener(self) -> None:
        listener = transfer.listen()
        with transfer.connect(listener.address) as one, listener.accept(LIMIT) as other:
            listener.close()
            started = one.start_send(LARGE[:100])
            assert (other.recv(timeout=LIMIT) == LARGE[:100]).all()
            started.result(LIMIT)


class TestKilledPeers:
    @pytest.mark.parametrize("verb", ["recv", "send", "recv_into", "result"])
    def test_in_the_middle_of_a_transfer(self, verb: str) -> None:
        code = """
        big = np.zeros(1 << 28, np.uint8)
        while True:
            if VERB.startswith("recv"):
                conn.send(big)
            else:
                conn.recv()
        """.replace("VERB", repr(verb))
        with Peer(code, prefetch=0) as peer:
            big = np.zeros(1 << 28, np.uint8)

            def kill(done: int, total: int) -> None:
                if done:
                    peer.process.send_signal(signal.SIGKILL)

            def start() -> None:
                started = peer.conn.start_send(big)
                while not started.progress[0]:
                    time.sleep(0.001)
                kill(*started.progress)
                started.result(LIMIT)

            def repeat(call: Callable[[], object]) -> None:
                # The first may be over before the kill comes; then the next one is not.
                while True:
                    call()

            calls = {
                "recv": lambda: peer.conn.recv(progress=kill),
                "recv_into": lambda: peer.conn.recv_into(big, progress=kill),
                "send": lambda: peer.conn.send(big, progress=kill),
                "result": start,
            }
            began = time.monotonic()
            with pytest.raises(transfer.ConnectionEnded) as raised:
                repeat(calls[verb])
            assert time.monotonic() - began < LIMIT
            assert not isinstance(raised.value, EOFError), "that was no orderly end"
            assert peer.conn.closed

    def test_while_waiting(self) -> None:
        with Peer("time.sleep(60)") as peer:
            peer.process.kill()
            with pytest.raises(transfer.ConnectionEnded, match="broke"):
                peer.conn.recv(timeout=LIMIT)

    def test_a_peer_that_stops_is_gone_after_the_timeout(self) -> None:
        with Peer("time.sleep(60)", timeout=1.0) as peer:
            peer.process.send_signal(signal.SIGSTOP)
            with pytest.raises(transfer.ConnectionEnded, match="silent"):
                peer.conn.recv(timeout=LIMIT)


FORK = """
import os, sys, numpy as np
from treadle import transfer
listener = transfer.listen()
one = transfer.connect(listener.address)
other = listener.accept(20)
array = np.zeros(10**6)
started = one.start_send(array)
received = None
child = os.fork()
if child == 0:
    calls = [
        lambda: one.send(1),
        lambda: one.start_send(1),
        lambda: other.recv(timeout=1),
        lambda: other.recv_into(array, timeout=1),
        lambda: other.recv_many(timeout=1),
        lambda: listener.accept(1),
        one.close,
        one.stats,
        listener.close,
        started.result,
        started.cancel,
        lambda: transfer.listen(),
        lambda: transfer.connect(listener.address),
    ]
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError(call)
    repr(one), repr(started), repr(listener)
    # Neither dropping them nor the end of the interpreter touches the parent's.
    del one, other, listener, started, calls, call
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert (other.recv(timeout=20) == 0).all()
started.result(20)
one.send("still here")
assert other.recv(timeout=20) == "still here"
print("fine")
"""


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_a_forked_child_cannot_touch_them() -> None:
    assert run(FORK) == "fine\n"


class TestExit:
    def test_connections_are_closed_in_order(self) -> None:
        with Peer("keep = conn\nconn.send_many([bytes(1000)] * 5000)") as peer:
            received = 0
            while received < 5000:
                received += len(peer.conn.recv_many(timeout=LIMIT))
            with pytest.raises(EOFError):
                peer.conn.recv_many(timeout=LIMIT)
            peer.finish()

    def test_with_transfers_under_way(self) -> None:
        code = """
        keep = [conn.start_send(np.zeros(10**7)) for _ in range(3)]
        threading.Thread(target=conn.recv, daemon=True).start()
        """
        with Peer(code, prefetch=0) as peer:
            peer.finish()
            with pytest.raises(EOFError):
                peer.conn.recv(timeout=LIMIT)

    def test_after_an_exception(self) -> None:
        with Peer("os.close(2); keep = conn; raise SystemExit(3)") as peer:
            with pytest.raises(EOFError):
                peer.conn.recv(timeout=LIMIT)
            assert peer.process.wait(LIMIT) == 3


def test_importing_treadle_does_not_load_it() -> None:
    code = "import sys, treadle; print('treadle.transfer' in sys.modules)"
    assert run(code) == "False\n"


def test_names() -> None:
    with transfer.listen() as listener:
        assert listener.address.startswith("treadle://127.0.0.1:")
        assert listener.address in repr(listener)
        with transfer.connect(listener.address) as one, listener.accept(LIMIT) as other:
            assert one.address == listener.address
            # They meet through a Unix socket.
            assert other.address == f"process {os.getpid()} of this host"
            assert one.address in repr(one)
            assert "of 4 bytes, done" in repr(other.start_send(b"1234"))
    assert os.path.basename(transfer.__file__) == "__init__.py"


def test_connections_outlive_their_listener() -> None:
    listener = transfer.listen()
    with transfer.connect(listener.address) as one, listener.accept(LIMIT) as other:
        address = listener.address
        listener.close()
        # Large enough for stripes, which the closed listener still takes.
        data = np.arange(1 << 20)
        started = one.start_send(data)
        assert (other.recv(timeout=LIMIT) == data).all()
        started.result(LIMIT)
        with pytest.raises(transfer.HandshakeError, match="the listener is closed"):
            transfer.connect(address)
