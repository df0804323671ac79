"""Timeouts, cancellation, Ctrl-C, progress, and what a slow receiver means for its sender."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pytest
from transfer_support import LIMIT, Peer, pair

from treadle import transfer

Pair = tuple[transfer.Connection, transfer.Connection]

LARGE = np.arange(8_000_000.0)


@pytest.fixture
def ends() -> Iterator[Pair]:
    with pair(prefetch=0) as ends:
        yield ends


class TestTimeouts:
    def test_nothing_arrives(self, ends: Pair) -> None:
        one, _ = ends
        for receive in (
            one.recv,
            one.recv_many,
            lambda timeout: one.recv_into(LARGE, timeout=timeout),
        ):
            began = time.monotonic()
            with pytest.raises(TimeoutError, match="receiving from"):
                receive(timeout=0.05)
            assert time.monotonic() - began >= 0.05

    def test_nobody_connects(self) -> None:
        with transfer.listen() as listener, pytest.raises(TimeoutError, match="accepting at"):
            listener.accept(0.05)

    def test_nobody_receives(self, ends: Pair) -> None:
        one, other = ends
        with pytest.raises(TimeoutError, match="sending to"):
            one.send(LARGE, timeout=0.05)
        one.send("next")
        # Given up on both sides.
        assert other.recv(timeout=LIMIT) == "next"
        assert one.stats()["pending"] == 0

    def test_zero_takes_what_is_here(self, ends: Pair, eventually: Callable) -> None:
        one, other = ends
        one.send(1)

        def received() -> bool:
            try:
                return other.recv(timeout=0) == 1
            except TimeoutError:
                return False

        eventually(received)

    @pytest.mark.parametrize("timeout", [-1, float("nan"), -0.001])
    def test_what_is_no_time(self, ends: Pair, timeout: float) -> None:
        with pytest.raises(ValueError, match="timeout"):
            ends[0].recv(timeout=timeout)

    def test_nothing_is_lost(self, ends: Pair) -> None:
        one, other = ends
        started = [one.start_send(LARGE), one.start_send("after")]
        timeouts = 0
        while True:
            try:
                received = other.recv(timeout=0.002)
                break
            except TimeoutError:
                timeouts += 1
        assert timeouts
        assert (received == LARGE).all()
        assert other.recv(timeout=LIMIT) == "after"
        for one_started in started:
            one_started.result(LIMIT)


class TestCancel:
    def test_before_it_is_received(self, ends: Pair) -> None:
        one, other = ends
        started = one.start_send(LARGE)
        assert not started.done()
        assert started.cancel()
        assert started.done()
        assert started.cancelled()
        assert isinstance(started.exception(), transfer.TransferCancelled)
        with pytest.raises(transfer.TransferCancelled):
            started.result()
        one.send("next")
        assert other.recv(timeout=LIMIT) == "next"

    def test_when_it_is_done(self, ends: Pair) -> None:
        one, _ = ends
        started = one.start_send("small")
        started.result(LIMIT)
        assert not started.cancel()
        assert started.exception() is None
        assert not started.cancelled()

    def test_while_somebody_receives_it(self, ends: Pair) -> None:
        one, other = ends
        big = np.zeros(1 << 28, np.uint8)
        started = one.start_send(big)
        received: list[object] = []

        def receive() -> None:
            while str not in map(type, received):
                received.append(other.recv(timeout=LIMIT))

        receiver = threading.Thread(target=receive)
        receiver.start()
        whole = 0
        while True:
            while not started.progress[0]:
                time.sleep(0.001)
            if started.cancel():
                break
            # It was faster.
            whole += 1
            started = one.start_send(big)
        one.send("next")
        receiver.join(LIMIT)
        assert len(received) == whole + 1
        assert received[-1] == "next"

    def test_a_transfer_outlives_what_it_was_made_from(self) -> None:
        with transfer.listen() as listener:
            one = transfer.connect(listener.address)
            with listener.accept(LIMIT) as other:
                started = one.start_send(LARGE)
                del one
                assert (other.recv(timeout=LIMIT) == LARGE).all()
                started.result(LIMIT)


class TestProgress:
    def test_both_sides(self, ends: Pair) -> None:
        one, other = ends
        big = np.zeros(1 << 26, np.uint8)
        sent: list[tuple[int, int]] = []
        received: list[tuple[int, int]] = []
        thread = threading.Thread(
            target=one.send, args=(big,), kwargs={"progress": lambda *n: sent.append(n)}
        )
        thread.start()
        other.recv(timeout=LIMIT, progress=lambda *n: received.append(n))
        thread.join(LIMIT)
        for reports in sent, received:
            done, total = reports[-1]
            assert done == total >= big.nbytes
            assert [n for n, _ in reports] == sorted(n for n, _ in reports)

    def test_an_error_ends_the_transfer(self, ends: Pair) -> None:
        one, other = ends

        def fail(done: int, total: int) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            one.send(LARGE, progress=fail)
        one.send("next")
        assert other.recv(timeout=LIMIT) == "next"

    def test_an_error_while_receiving_loses_nothing(self, ends: Pair) -> None:
        one, other = ends

        def fail(done: int, total: int) -> None:
            raise ZeroDivisionError

        started = one.start_send(LARGE)
        with pytest.raises(ZeroDivisionError):
            other.recv(progress=fail, timeout=LIMIT)
        assert (other.recv(timeout=LIMIT) == LARGE).all()
        started.result(LIMIT)

    def test_a_bar(self, ends: Pair, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("rich")
        one, other = ends
        started = one.start_send(LARGE)
        other.recv(timeout=LIMIT, progress=True)
        started.result(LIMIT)
        assert "Receiving" in capsys.readouterr().out

    def test_a_bar_without_rich(self, ends: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "rich.progress", None)
        with pytest.raises(ImportError, match="pip install rich"):
            ends[0].send(LARGE, progress=True)

    def test_of_a_transfer(self, ends: Pair) -> None:
        one, other = ends
        started = one.start_send(LARGE)
        assert started.progress[1] >= LARGE.nbytes
        assert started.timings is None
        other.recv(timeout=LIMIT)
        started.result(LIMIT)
        done, total = started.progress
        assert done == total
        assert started.timings is not None
        assert started.timings["bytes"] == total


class TestInterrupts:
    """A real SIGINT, in a process of its own."""

    def test_while_sending(self) -> None:
        code = """
        big = np.zeros(1 << 28, np.uint8)
        print("ready", flush=True)
        try:
            while True:
                conn.send(big)
        except KeyboardInterrupt:
            conn.send("interrupted")
            print(conn.stats()["pending"])
        """
        with Peer(code, prefetch=0) as peer:
            assert peer.process.stdout is not None
            assert peer.process.stdout.readline() == "ready\n"
            # It begins; the next one does not.
            with suppress(TimeoutError):
                peer.conn.recv(timeout=0.01)
            peer.process.send_signal(signal.SIGINT)
            received = peer.conn.recv(timeout=LIMIT)
            while not isinstance(received, str):
                received = peer.conn.recv(timeout=LIMIT)
            assert received == "interrupted"
            assert peer.finish() == "0\n"

    @pytest.mark.parametrize(
        "call",
        [
            "conn.recv()",
            "conn.recv_many()",
            "conn.recv_into(np.zeros(100))",
            "conn.start_send(np.zeros(10**7)).result()",
            "transfer.listen().accept()",
            "next(transfer.listen())",
        ],
    )
    def test_while_waiting(self, call: str) -> None:
        code = f"""
        try:
            print("ready", flush=True)
            {call}
        except KeyboardInterrupt:
            print("interrupted")
        """
        with Peer(code, prefetch=0) as peer:
            assert peer.process.stdout is not None
            assert peer.process.stdout.readline() == "ready\n"
            time.sleep(0.05)
            began = time.monotonic()
            peer.process.send_signal(signal.SIGINT)
            assert peer.process.stdout.readline() == "interrupted\n"
            assert time.monotonic() - began < LIMIT
            peer.finish()

    def test_a_signal_handler_runs_and_the_call_goes_on(self) -> None:
        code = """
        seen = []
        signal.signal(signal.SIGUSR1, lambda *args: (seen.append(1), conn.send("signal")))
        print("ready", flush=True)
        conn.send((conn.recv(), seen))
        """
        with Peer(code) as peer:
            assert peer.process.stdout is not None
            assert peer.process.stdout.readline() == "ready\n"
            peer.process.send_signal(signal.SIGUSR1)
            assert peer.conn.recv(timeout=LIMIT) == "signal"
            peer.conn.send("go on")
            assert peer.conn.recv(timeout=LIMIT) == ("go on", [1])
            peer.finish()


class TestSlowReceivers:
    def test_the_senders_memory_is_bounded(self) -> None:
        """Large objects wait at the sender, in their own memory; small ones in bounded queues."""
        code = """
        import resource
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        one = bytes(1 << 10)
        conn.recv()
        before = peak()
        try:
            while True:
                conn.send_many([one] * 1000, timeout=0.5)
        except TimeoutError:
            pass
        try:
            for _ in range(10**6):
                conn.send(one, timeout=0.2)
        except TimeoutError:
            pass
        big = np.zeros(1 << 26, np.uint8)
        big_before = peak()
        for _ in range(3):
            try:
                conn.send(big, timeout=0.2)
            except TimeoutError:
                print("timeout")
        print((big_before - before) >> 20, (peak() - big_before) >> 20)
        os._exit(0)
        """
        with Peer(code) as peer:
            peer.conn.send("go")
            out = peer.finish().split()
            assert out[:3] == ["timeout"] * 3
            assert int(out[3]) < 64 + 64
            assert int(out[4]) < 32

    def test_start_send_waits_for_room(self, ends: Pair) -> None:
        one, other = ends
        count = 100_000
        block = bytes(1000)

        def send() -> None:
            for _ in range(count):
                one.start_send(block)

        sender = threading.Thread(target=send)
        sender.start()
        sender.join(1)
        assert sender.is_alive(), "100 MB of small objects are on their way"
        received = 0
        while received < count:
            received += len(other.recv_many(timeout=LIMIT))
        sender.join(LIMIT)
        assert not sender.is_alive()


def test_threads_share_a_connection(ends: Pair) -> None:
    one, other = ends
    count = 40
    received: list[tuple[int, int, float]] = []
    errors: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    def send(thread: int) -> None:
        for number in range(count):
            size = 10 ** (number % 6)
            one.send((thread, number, np.full(size, thread * 1000.0 + number)), timeout=LIMIT)

    def receive() -> None:
        for _ in range(count):
            thread, number, array = other.recv(timeout=LIMIT)
            assert (array == thread * 1000.0 + number).all()
            received.append((thread, number, array[0]))

    threads = [threading.Thread(target=run, args=(lambda i=i: send(i),)) for i in range(4)]
    threads += [threading.Thread(target=run, args=(receive,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not errors
    assert sorted((a, b) for a, b, _ in received) == [
        (a, b) for a in range(4) for b in range(count)
    ]


def test_both_directions_at_once(ends: Pair) -> None:
    one, other = ends
    started = [one.start_send(LARGE), other.start_send(LARGE + 1)]
    results: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: results.append(other.recv(timeout=LIMIT)))
    thread.start()
    assert (one.recv(timeout=LIMIT) == LARGE + 1).all()
    thread.join(LIMIT)
    assert (results[0] == LARGE).all()
    for each in started:
        each.result(LIMIT)
