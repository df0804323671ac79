"""Arrays in shared memory, between two processes of one host."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from transfer_support import LIMIT, Peer, pair

from treadle import _core
from treadle.common._shared_memory import empty, is_shared, shared_arrays


@pytest.fixture(autouse=True)
def no_leak(eventually: Callable) -> Iterator[None]:
    """Every segment is freed, also those that a peer had."""
    gc.collect()
    before = _core.shared_memory_stats()["live_bytes"]
    yield

    def freed() -> bool:
        gc.collect()
        return _core.shared_memory_stats()["live_bytes"] <= before

    eventually(freed)


ECHO = """
while True:
    try:
        conn.send(conn.recv())
    except EOFError:
        break
"""


def born_shared(size: int) -> np.ndarray:
    array = empty(size)
    array[:] = np.arange(size)
    return array


def channel_to(peer: Peer) -> None:
    """Wait until descriptors can be passed to one that answers nothing yet."""
    deadline = time.monotonic() + LIMIT
    while not shared_bytes(peer.conn):
        assert time.monotonic() < deadline, "nothing is shared"
        peer.conn.send(empty(10_000))


def shared_bytes(conn: object) -> int:
    return conn.stats()["bytes_shared"]  # type: ignore[attr-defined]


def channel(peer: Peer) -> None:
    """Wait until descriptors can be passed: it takes a moment after connecting."""
    probe = empty(10_000)
    for _ in range(200):
        peer.conn.send(probe)
        peer.conn.recv(timeout=LIMIT)
        if shared_bytes(peer.conn):
            return
    raise AssertionError("nothing is shared")


def test_an_array_is_mapped() -> None:
    with Peer(ECHO) as peer:
        channel(peer)
        array = born_shared(1_000_000)
        assert is_shared(array)
        before = peer.conn.stats()
        peer.conn.send(array)
        received = peer.conn.recv(timeout=LIMIT)
        after = peer.conn.stats()
        assert after["bytes_sent"] == before["bytes_sent"]
        # There and back: the peer hands what it maps on.
        assert after["bytes_shared"] - before["bytes_shared"] == 2 * array.nbytes
        assert (received == array).all()
        assert received.flags.writeable


def test_nested_ones_too() -> None:
    with Peer(ECHO) as peer:
        channel(peer)
        obj = {"a": born_shared(100_000), "b": [born_shared(50_000)]}
        before = shared_bytes(peer.conn)
        peer.conn.send(obj)
        received = peer.conn.recv(timeout=LIMIT)
        assert shared_bytes(peer.conn) - before == 2 * 150_000 * 8
        assert (received["a"] == obj["a"]).all()


def test_both_sides_may_write() -> None:
    code = """
    array = conn.recv()
    array[:10] = -1
    conn.send("written")
    conn.recv()
    conn.send(float(array[10:].sum()))
    """
    with Peer(code) as peer:
        array = born_shared(100_000)
        total = array[10:].sum()
        peer.conn.send(array)
        assert peer.conn.recv(timeout=LIMIT) == "written"
        assert array[0] == 0
        array[10:] = 0
        peer.conn.send("go on")
        assert peer.conn.recv(timeout=LIMIT) == total
        peer.finish()


def test_it_outlives_its_sender() -> None:
    code = """
    from treadle.common._shared_memory import empty
    array = empty(1_000_000)
    array[:] = 7
    conn.send(array)
    conn.send(conn.stats()["bytes_shared"])
    conn.recv()
    """
    with Peer(code) as peer:
        received = peer.conn.recv(timeout=LIMIT)
        peer.conn.recv(timeout=LIMIT)
        peer.process.kill()
        peer.process.wait(LIMIT)
        assert (received == 7).all()
        received[:] = 8
        assert (received == 8).all()


@pytest.mark.parametrize("victim", ["while it has it", "before it asks"])
def test_a_receiver_that_is_killed_leaves_nothing_behind(victim: str) -> None:
    code = """
    array = conn.recv() if VICTIM == "while it has it" else None
    conn.send("here")
    time.sleep(60)
    """.replace("VICTIM", repr(victim))
    with Peer(code) as peer:
        array = born_shared(1_000_000)
        peer.conn.start_send(array)
        peer.conn.recv(timeout=LIMIT)
        peer.process.send_signal(signal.SIGKILL)
        peer.process.wait(LIMIT)
        assert array.sum() == sum(range(1_000_000))
        del array


def test_into_an_array() -> None:
    with pair() as (one, other):
        array = born_shared(300_000)
        started = one.start_send(array)
        target = np.zeros(300_000)
        other.recv_into(target, timeout=LIMIT)
        started.result(LIMIT)
        assert (target == array).all()


def test_not_wanted() -> None:
    with pair(shared_memory=False) as (one, other):
        array = born_shared(300_000)
        started = one.start_send(array)
        assert (other.recv(timeout=LIMIT) == array).all()
        started.result(LIMIT)
        assert shared_bytes(one) == 0


def test_results_of_numpy() -> None:
    with Peer(ECHO) as peer:
        channel(peer)
        with shared_arrays():
            array = np.arange(1_000_000) * 2
        before = shared_bytes(peer.conn)
        peer.conn.send(array)
        assert (peer.conn.recv(timeout=LIMIT) == array).all()
        assert shared_bytes(peer.conn) - before == 2 * array.nbytes


def test_many() -> None:
    with Peer("for _ in range(300):\n    conn.send(float(conn.recv()[-1]))") as peer:
        for i in range(300):
            array = empty(20_000 + i)
            array[:] = i
            peer.conn.send(array)
            del array
            assert peer.conn.recv(timeout=LIMIT) == i
        peer.finish()


# The middle one of three: hands what it maps on to whom it lets in.
MIDDLE = """
listener = transfer.listen()
conn.send(listener.address)
other = listener.accept(20)
from treadle.common._shared_memory import empty
while not other.stats()["bytes_shared"]:
    other.send(empty(10_000))
    other.recv()
array = conn.recv()
while len(array) == 10_000:
    array = conn.recv()
before = other.stats()
other.send(array)
other.recv()
after = other.stats()
conn.send({name: after[name] - before[name] for name in ("bytes_shared", "bytes_sent")})
if conn.recv() == "forget":
    del array
    conn.send("forgotten")
    conn.recv()
array[:] = -1
conn.send("written")
conn.recv()
other.send(array)
other.recv()
conn.send(other.stats()["bytes_shared"] - after["bytes_shared"])
conn.recv()
"""

# The last one: says what it has.
LAST = """
middle = transfer.connect(conn.recv())
while True:
    array = middle.recv()
    if len(array) != 10_000:
        break
    middle.send(None)
middle.send(None)
while True:
    conn.send(int(array.sum()))
    command = conn.recv()
    if command == "write":
        array[::1000] = 7
    elif command == "again":
        array = middle.recv()
        middle.send(None)
    elif command == "drop":
        del array
        conn.send("dropped")
        conn.recv()
"""


def test_what_is_mapped_is_handed_on() -> None:
    with Peer(MIDDLE) as middle, Peer(LAST) as last:
        channel_to(middle)
        last.conn.send(middle.conn.recv(timeout=LIMIT))
        array = born_shared(1_000_000)
        total = int(array.sum())
        middle.conn.send(array)
        assert last.conn.recv(timeout=LIMIT) == total
        # By descriptor: no byte of it was copied.
        assert middle.conn.recv(timeout=LIMIT) == {
            "bytes_shared": array.nbytes,
            "bytes_sent": 0,
        }
        # What each of them writes, and what the first one writes, is its own.
        array[:] = -2
        middle.conn.send(None)
        assert middle.conn.recv(timeout=LIMIT) == "written"
        last.conn.send("write")
        written = total - int(np.arange(1_000_000)[::1000].sum()) + 7 * 1000
        assert last.conn.recv(timeout=LIMIT) == written
        # What was written to is not handed on, but sent.
        middle.conn.send(None)
        last.conn.send("again")
        assert last.conn.recv(timeout=LIMIT) == -1_000_000
        assert middle.conn.recv(timeout=LIMIT) == 0


def test_the_one_in_the_middle_is_killed() -> None:
    with Peer(MIDDLE) as middle, Peer(LAST) as last:
        channel_to(middle)
        last.conn.send(middle.conn.recv(timeout=LIMIT))
        array = born_shared(1_000_000)
        total = int(array.sum())
        middle.conn.send(array)
        assert last.conn.recv(timeout=LIMIT) == total
        middle.process.kill()
        middle.process.wait()
        # The memory is not used for anything else while the last one may have it.
        del array
        gc.collect()
        for _ in range(20):
            born_shared(1_000_000)
        last.conn.send("look")
        assert last.conn.recv(timeout=LIMIT) == total


def test_memory_goes_back_when_the_last_one_has_dropped_it(eventually: Callable) -> None:
    with Peer(MIDDLE) as middle, Peer(LAST) as last:
        channel_to(middle)
        last.conn.send(middle.conn.recv(timeout=LIMIT))
        array = born_shared(1_000_000)
        nbytes = array.nbytes
        total = int(array.sum())
        middle.conn.send(array)
        assert last.conn.recv(timeout=LIMIT) == total
        middle.conn.recv(timeout=LIMIT)
        # What other tests left behind goes back, too.
        eventually(lambda: _core.shared_memory_stats()["parked_bytes"] == 0)
        del array
        gc.collect()
        assert _core.shared_memory_stats()["parked_bytes"] >= nbytes
        middle.conn.send("forget")
        assert middle.conn.recv(timeout=LIMIT) == "forgotten"
        assert _core.shared_memory_stats()["parked_bytes"] >= nbytes
        last.conn.send("drop")
        assert last.conn.recv(timeout=LIMIT) == "dropped"
        eventually(lambda: _core.shared_memory_stats()["parked_bytes"] == 0)
