"""Unpickling, signal handlers and finalisers that ask the scheduler, while their thread waits."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import dask
import distributed
import pytest
from dask import delayed
from distributed import Event, Lock, Queue, Semaphore, Variable, as_completed, get_client

from client_support import AGAINST, SOON, inc
from treadle.client._nested_timeouts import shorter
from waiting import until


def client_here() -> distributed.Client:
    return get_client()


class Asks:
    """Asks the scheduler how many workers there are when it is unpickled."""

    def __init__(self, size: int = 0) -> None:
        self.padding = b"x" * size

    def __getstate__(self) -> Any:
        return self.padding

    def __setstate__(self, state: Any) -> None:
        self.padding = state
        self.answer = len(client_here().scheduler_info(n_workers=-1)["workers"])


class Computes:
    """Waits for a task when it is unpickled."""

    def __getstate__(self) -> Any:
        return 1

    def __setstate__(self, state: Any) -> None:
        self.answer = client_here().submit(inc, state, pure=False).result(SOON)


class ComputesElsewhere:
    """Waits for a thread that waits for a task when it is unpickled."""

    def __getstate__(self) -> Any:
        return 1

    def __setstate__(self, state: Any) -> None:
        client, found = client_here(), []

        def run() -> None:
            found.append(client.submit(inc, state, pure=False).result(SOON))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(SOON)
        (self.answer,) = found


async def _never() -> None:
    await asyncio.Event().wait()


class AsksInVain:
    """Asks for what nobody answers when it is unpickled."""

    def __getstate__(self) -> Any:
        return 1

    def __setstate__(self, _state: Any) -> None:
        client_here().sync(_never)


class WaitsInVain:
    """Waits for a task that does not run when it is unpickled."""

    def __getstate__(self) -> Any:
        return 1

    def __setstate__(self, _state: Any) -> None:
        client_here().submit(inc, 1, resources={"none": 1}, pure=False).result()


MAKERS = [
    lambda: Queue("queue-here"),
    lambda: Variable("variable-here"),
    lambda: Event("event-here"),
    lambda: Lock("lock-here"),
    lambda: Semaphore(2, name="semaphore-here"),
    Asks,
    lambda: Asks(1_000_000),
    Computes,
    ComputesElsewhere,
]
KINDS = [Queue, Variable, Event, Lock, Semaphore, Asks, Asks, Computes, ComputesElsewhere]


def by_result(client: distributed.Client, make: Any) -> Any:
    return client.submit(make, pure=False).result(SOON)


def by_gather(client: distributed.Client, make: Any) -> Any:
    futures = [client.submit(make, pure=False) for _ in range(3)]
    return client.gather({"a": futures})["a"][2]


def by_compute(client: distributed.Client, make: Any) -> Any:
    with dask.config.set(scheduler=client):
        return delayed(make)().compute()


def by_get(client: distributed.Client, make: Any) -> Any:
    return client.get({"x": (make,), "y": (inc, 1)}, ["y", "x"])[1]


def by_as_completed(client: distributed.Client, make: Any) -> Any:
    futures = [client.submit(make, pure=False) for _ in range(3)]
    return [value for _, value in as_completed(futures, with_results=True)][2]


def by_executor(client: distributed.Client, make: Any) -> Any:
    with client.get_executor(pure=False) as executor:
        return list(executor.map(lambda _: make(), range(3), timeout=SOON))[2]


WAYS = [by_result, by_gather, by_compute, by_get, by_as_completed, by_executor]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(
    "case", range(len(MAKERS)), ids=lambda case: f"{case}-{KINDS[case].__name__}"
)
def test_a_value_may_ask_when_it_is_unpickled(
    client: distributed.Client, way: Any, case: int
) -> None:
    found = way(client, MAKERS[case])
    assert isinstance(found, KINDS[case])
    assert getattr(found, "answer", 2) == 2


@pytest.mark.parametrize(
    "way", [by_result, by_gather, by_as_completed], ids=lambda way: way.__name__
)
@pytest.mark.parametrize("case", [0, 5, 7, 8])
def test_and_in_a_task(client: distributed.Client, way: Any, case: int) -> None:
    make, kind = MAKERS[case], KINDS[case]

    def run() -> bool:
        with distributed.worker_client() as inner:
            return isinstance(way(inner, make), kind)

    assert client.submit(run, pure=False).result(SOON)


@pytest.mark.parametrize("case", range(len(MAKERS)))
def test_and_as_an_argument(client: distributed.Client, case: int) -> None:
    made, kind = client.submit(MAKERS[case], pure=False), KINDS[case]
    assert client.submit(lambda value: isinstance(value, kind), made, pure=False).result(SOON)


def test_and_in_the_closure_of_a_function(client: distributed.Client) -> None:
    queue = Queue("queue-of-closure")
    client.submit(lambda: queue.put(1), pure=False).result(SOON)
    assert queue.get(timeout=SOON) == 1


class Keeper:
    def __init__(self, make: Any) -> None:
        self._made = make()
        self._make = make

    def made(self) -> Any:
        return self._made

    def make(self) -> Any:
        return self._make()


@pytest.mark.parametrize("case", [0, 1, 3])
def test_and_of_an_actor(client: distributed.Client, case: int) -> None:
    keeper = client.submit(Keeper, MAKERS[case], actor=True, pure=False).result(SOON)
    assert isinstance(keeper.made().result(SOON), KINDS[case])
    assert isinstance(keeper.make().result(SOON), KINDS[case])


@pytest.mark.skipif(AGAINST != "treadle", reason="distributed has no views")
@pytest.mark.parametrize("case", [0, 5, 7])
def test_and_of_views(client: distributed.Client, case: int) -> None:
    make, kind = MAKERS[case], KINDS[case]
    found = client.engines[:].apply_sync(make)
    assert all(isinstance(one, kind) for one in found)
    assert isinstance(client.engines.load_balanced_view().apply_sync(make), kind)


@pytest.mark.skipif(AGAINST != "treadle", reason="distributed has no views")
def test_and_of_views_where_nobody_waits_for_what_comes(client: distributed.Client) -> None:
    waits = [client.engines[:].apply_async(Computes), client.engines[1].apply_async(Computes)]
    balanced = client.engines.load_balanced_view().apply_async(Computes)
    until(lambda: all(one.done() for one in (*waits, balanced)))
    values = [*waits[0].get(SOON), waits[1].get(SOON), balanced.get(SOON)]
    assert [one.answer for one in values] == [2] * 4


@pytest.mark.skipif(AGAINST != "treadle", reason="distributed has no views")
def test_and_of_views_when_the_loop_has_taken_it(client: distributed.Client) -> None:
    apart = client.engines._apart
    # Its own thread never gets to it.
    apart._thread = SimpleNamespace(process=os.getpid(), put=lambda _: None)
    result = client.engines[:].apply_async(Computes)
    until(lambda: apart._left)
    assert not result.ready()
    assert [one.answer for one in result.get(SOON)] == [2, 2]
    apart._thread = None


@pytest.mark.parametrize("kind", [AsksInVain, WaitsInVain])
def test_a_timeout_ends_what_unpickling_waits_for(client: distributed.Client, kind: Any) -> None:
    future = client.submit(kind, pure=False)
    distributed.wait(future)
    with pytest.raises(TimeoutError):
        future.result(1)
    # The client goes on.
    assert client.submit(inc, 1, pure=False).result(SOON) == 2


@pytest.mark.skipif(AGAINST != "treadle", reason="it is about Treadle's own waits")
def test_a_wait_that_was_interrupted_ends_no_later_one(client: distributed.Client) -> None:
    future = client.submit(inc, 1, pure=False)
    distributed.wait(future)

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_name == "__exit__" and frame.f_code.co_filename.endswith(
            "_nested_timeouts.py"
        ):
            raise KeyboardInterrupt
        return None

    # As a signal handler that raises just then.
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            future.result(0.1)
    finally:
        sys.settrace(before)
    until(lambda: shorter(SOON) == SOON, "the wait is over")
    later = client.submit(time.sleep, 0.3, pure=False)
    assert later.result(SOON) is None


def test_a_signal_handler_may_ask(client: distributed.Client) -> None:
    answers: list[int] = []

    def handle(*_: Any) -> None:
        answers.append(len(client.scheduler_info(n_workers=-1)["workers"]))
        answers.append(client.submit(inc, 1, pure=False).result(SOON))

    before = signal.signal(signal.SIGUSR1, handle)
    event = Event("event-of-signal")
    event.clear()
    try:
        future = client.submit(lambda: Event("event-of-signal").wait(SOON), pure=False)

        def interrupt() -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            until(lambda: len(answers) == 2, "it has answered")
            event.set()

        thread = threading.Thread(target=interrupt)
        thread.start()
        assert future.result(SOON)
        thread.join(SOON)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert answers == [2, 2]


def test_a_finaliser_may_ask(client: distributed.Client) -> None:
    answers: list[int] = []

    class Asking:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            answers.append(len(client.scheduler_info(n_workers=-1)["workers"]))
            answers.append(client.submit(inc, 1, pure=False).result(SOON))

    class Collecting:
        """Collects garbage where it is unpickled."""

        def __reduce__(self) -> Any:
            return gc.collect, ()

    Asking()
    gc.disable()
    try:
        client.submit(Collecting, pure=False).result(SOON)
        until(lambda: gc.collect() >= 0 and len(answers) == 2, "it has asked")
    finally:
        gc.enable()
    assert answers == [2, 2]
