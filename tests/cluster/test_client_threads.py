"""A client that several threads use at the same time, and that signals interrupt.

`stress_client.py` does the same for longer, from a command line.
"""

from __future__ import annotations

import copyreg
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from distributed import as_completed, wait
from distributed.client import FutureCancelledError

import stress_client
from client_support import AGAINST, SOON, Unpickled, inc
from treadle._compat.distributed import current_client
from treadle.client._future import Future

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="distributed promises neither")


@pytest.fixture
def in_finalisers() -> Iterator[None]:
    """Signal handlers raise in finalisers of the standard library, too, which report it.

    pytest keeps what is reported, and so the frames of its callers with the futures in them.
    """
    before = sys.unraisablehook
    sys.unraisablehook = sys.__unraisablehook__
    yield
    sys.unraisablehook = before


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def fail(number: int) -> None:
    raise ValueError(number)


class Meeting:
    """A number of retries that both threads look at before either goes on."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)

    def __int__(self) -> int:
        self.barrier.wait(SOON)
        return 1


@pytest.mark.parametrize("how", ["submit", "map"])
def test_threads_that_submit_the_same_call_share_its_future(client, how):
    def submit(meeting: Meeting) -> object:
        if how == "submit":
            return client.submit(inc, 1, retries=meeting)
        return client.map(inc, [1], retries=meeting)[0]

    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            futures = list(pool.map(submit, [Meeting()] * 2))
            assert len({future._state for future in futures}) == 1
            assert [future.result(timeout=SOON) for future in futures] == [2, 2]
            del futures


def test_a_submission_that_fails_leaves_the_others(client):
    """Whoever finds a key that another thread has not submitted submits it."""
    threads = 4
    barrier = threading.Barrier(threads)

    bad = threading.local()

    class Argument:
        """One of the threads cannot pickle it."""

        def __reduce__(self) -> tuple:
            if getattr(bad, "is_here", False):
                raise RuntimeError("not here")
            return int, (5,)

    def submit(turn: int, number: int) -> object:
        bad.is_here = number == 0
        barrier.wait(SOON)
        try:
            return client.submit(inc, Argument(), key=f"five-{turn}").result(timeout=SOON)
        except TypeError:
            return None

    with ThreadPoolExecutor(threads) as pool:
        for turn in range(20):
            results = list(pool.map(submit, [turn] * threads, range(threads)))
            # It may have found the key submitted.
            assert results[0] in (None, 6)
            assert results[1:] == [6] * (threads - 1)


def test_a_future_that_is_cancelled_while_it_is_submitted_leaves_the_next_one(client):
    """The submission goes on, after another thread has submitted the same key."""
    others: list[Future] = []

    def come_between() -> None:
        client.cancel(Future("between", client))
        others.append(client.submit(inc, 1, key="between"))

    class Argument:
        def __reduce__(self) -> tuple:
            if not others:
                other = threading.Thread(target=come_between)
                other.start()
                other.join(SOON)
            return int, (1,)

    first = client.submit(inc, Argument(), key="between")
    (second,) = others
    assert first.status == "cancelled"
    del first
    client._collect()
    assert client.submit(inc, second).result(timeout=SOON) == 3
    assert second.result(timeout=SOON) == 2
    # Not only when the garbage is collected.
    others.clear()


# What is done when the type of a value of `unreadable` becomes known to the client.
meanwhile: list[Callable[[], None]] = []


def unreadable() -> object:
    """Return a value whose type takes the client into `meanwhile` when it is unpickled."""

    class Type(type):
        pass

    class Value(metaclass=Type):
        def __init__(self) -> None:
            self.bytes = bytes(100_000)

    call = f"__import__('sys').modules[{__name__!r}].meanwhile.pop()()"
    copyreg.pickle(Type, lambda _: (eval, (call,)))  # type: ignore[arg-type]
    return Value()


@pytest.mark.parametrize("waited", [False, True])
def test_a_future_that_is_cancelled_while_its_end_is_delivered_is_cancelled(client, waited):
    delivered = threading.Event()
    ready = threading.Event()

    def cancel() -> None:
        assert ready.wait(SOON)
        other = threading.Thread(target=client.cancel, args=(future,))
        other.start()
        other.join(SOON)
        delivered.set()

    meanwhile.append(cancel)
    future = client.submit(unreadable, pure=False)
    if waited:
        future.add_done_callback(lambda _: None)
    ready.set()
    assert delivered.wait(SOON)
    # It is delivered after the end of the other.
    assert client.submit(inc, 1, pure=False).result(timeout=SOON) == 2
    assert future.status == "cancelled"
    with pytest.raises(FutureCancelledError):
        future.result(timeout=SOON)


@pytest.mark.usefixtures("in_finalisers")
@pytest.mark.parametrize("how", ["wakers", "as_completed"])
def test_interrupts_lose_no_failure(client, how):
    """They come while failures are delivered: the waiting thread calls Python for each of them."""
    signals = stress_client.Signals(seed=1, mean=2e-4)
    futures = client.map(fail, range(1000), pure=False)
    called = []
    if how == "wakers":
        for future in futures:
            future.add_done_callback(lambda future: called.append(future.key))
    came = as_completed(futures)

    def wait_for_all() -> None:
        if how == "wakers":
            wait(futures, timeout=SOON)
        else:
            while not came.is_empty():
                came._client._block(came._ready, SOON)
                called.extend(future.key for future in came.next_batch(block=False))

    with signals.arriving():
        while not all(future.done() for future in futures):
            signals.interrupt(wait_for_all)
    assert signals.count > 0 or not stress_client.INTERRUPTS
    assert {future.status for future in futures} == {"error"}
    if how == "wakers":
        deadline = threading.Event()
        while len(called) < len(futures) and not deadline.wait(0.01):
            pass
        assert sorted(called) == sorted(future.key for future in futures)


@pytest.mark.usefixtures("in_finalisers")
def test_interrupts_leave_no_client_the_current_one(client):
    """A value is unpickled with its own client as the current one."""
    signals = stress_client.Signals(seed=1, mean=2e-4)
    futures = client.map(stress_client.large, range(10))
    wait(futures, timeout=SOON)
    with signals.arriving():
        while signals.count < 1000:
            signals.interrupt(lambda: client.gather(futures))
            if current_client.get() is not None:
                break
    assert current_client.get() is None


@pytest.mark.usefixtures("in_finalisers")
def test_what_an_interrupted_gather_asked_for_is_not_waited_for(client):
    """Answers come in order: what was asked for before would be unpickled before the last one."""
    signals = stress_client.Signals(seed=1, mean=2e-3)
    futures = client.map(Unpickled, range(200))
    wait(futures, timeout=SOON)
    with signals.arriving():
        while signals.count < 50:
            signals.interrupt(lambda: client.gather(futures))
    before = Unpickled.count
    assert client.gather(futures[-2:])[0].number == 198
    # A second signal may come before the fetch is cancelled. If none were, there would be thousands.
    assert Unpickled.count - before <= 2 * len(futures)


def test_ctrl_c_is_not_lost_in_a_finaliser(client):
    """What is raised while a future ends is raised after it."""
    raised = 0
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for number in range(200):
            try:
                future = client.submit(inc, number)
                os.kill(os.getpid(), signal.SIGINT)
                del future
                sum(range(10))
            except KeyboardInterrupt:
                raised += 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert raised == 200


@pytest.mark.usefixtures("in_finalisers")
@pytest.mark.timeout(10 * SOON, method="signal")
@pytest.mark.parametrize("seed", range(4))
def test_every_future_ends_and_nothing_is_left(client, seed):
    done = stress_client.round_of(client, seed, threads=4, seconds=3.0)
    assert done["interrupts"] or not stress_client.INTERRUPTS
