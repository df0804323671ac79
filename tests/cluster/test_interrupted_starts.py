"""A client or a cluster whose start is interrupted, and a client that nobody has, leave nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import dask
import psutil
import pytest

import treadle
from client_support import SOON
from treadle.client import _defaults
from treadle.client._connected import connected
from treadle.cluster import _templates
from treadle.common._loop import made_apart, made_off_loop
from treadle.scheduler import SupervisedSidecar
from waiting import until


def processes() -> set[int]:
    """The processes that this one has started."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def loops() -> int:
    return sum(thread.name == "IO loop" for thread in threading.enumerate())


def interrupted(call: Callable[[], Any], when: Callable[[], object]) -> None:
    """Call something that Ctrl-C interrupts when something is so."""

    def interrupt() -> None:
        until(when)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    other = threading.Thread(target=interrupt)

    def calls() -> None:
        other.start()
        call()
        other.join()

    try:
        with pytest.raises(KeyboardInterrupt):
            calls()
    finally:
        other.join()
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("started", [0, 1, 2, 3])
@pytest.mark.parametrize("start", [treadle.Client, treadle.LocalCluster])
def test_what_is_interrupted_while_its_workers_start(
    start: type, started: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """`started` counts their template."""
    _templates.release()
    before, threads = processes(), loops()
    clients = set(connected)
    interrupted(
        lambda: start(n_workers=2, threads_per_worker=1),
        lambda: len(processes() - before) >= started,
    )
    _templates.release()
    until(lambda: processes() <= before, lambda: f"left: {processes() - before}")
    until(lambda: dask.config.get("scheduler", None) is None)
    # If the start of a loop is interrupted, distributed's `LoopRunner` forgets the thread of it.
    until(lambda: loops() <= threads + (started == 0))
    until(lambda: all(client.status == "closed" for client in set(connected) - clients))
    with treadle.Client(n_workers=1, threads_per_worker=1) as client:
        assert client.submit(abs, -1).result(timeout=SOON) == 1
    assert "Aborted" not in "".join(capfd.readouterr()), "workers that end say nothing"


def test_a_client_that_is_interrupted_before_it_is_connected() -> None:
    threads = loops()
    clients = set(connected)
    with treadle.LocalCluster(1, threads_per_worker=1, processes=False) as cluster:

        def begun() -> bool:
            return any(client.status == "connecting" for client in set(connected) - clients)

        # Nothing listens there: it tries until it is interrupted.
        interrupted(lambda: treadle.Client("treadle://127.0.0.1:9", timeout=SOON), begun)
        until(lambda: loops() <= threads)
        until(lambda: dask.config.get("scheduler", None) is None)
        with treadle.Client(cluster) as client:
            assert client.submit(abs, -1).result(timeout=SOON) == 1


def test_the_finaliser_of_a_client_waits_for_nobody() -> None:
    """It may come wherever something is allocated, also in a thread that has a lock."""
    with treadle.LocalCluster(1, threads_per_worker=1, processes=False) as cluster:
        client = treadle.Client(cluster)
        with _defaults._lock:
            # This lock is taken where the client is closed.
            client.__del__()
            assert client.status != "closed"
        until(lambda: client.status == "closed")
        assert dask.config.get("scheduler", None) is None


def test_what_is_made_for_an_interrupted_thread_is_ended() -> None:
    making, go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def make() -> str:
        making.set()
        assert go_on.wait(SOON)
        return "it"

    interrupted(lambda: made_apart(make, ended.append), making.is_set)
    assert not ended
    go_on.set()
    until(lambda: ended == ["it"], lambda: str(ended))


def test_what_cannot_be_made_apart_raises() -> None:
    def make() -> None:
        raise ValueError("not this")

    with pytest.raises(ValueError, match="not this"):
        made_apart(make, print)
    assert made_apart(lambda: 5, print) == 5


@pytest.mark.parametrize("cancelled", ["while it is made", "when it is made"])
def test_what_is_made_for_nobody_is_ended(cancelled: str) -> None:
    made, go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def make() -> str:
        made.set()
        assert go_on.wait(SOON)
        return "it"

    async def give_up() -> None:
        making = asyncio.ensure_future(made_off_loop(make, ended.append))
        await asyncio.to_thread(made.wait, SOON)
        if cancelled == "when it is made":
            go_on.set()
            # The loop learns of both together.
            time.sleep(0.1)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        go_on.set()

    asyncio.run(give_up())
    until(lambda: ended == ["it"], lambda: str(ended))


def test_a_sidecar_whose_connection_ends_at_once() -> None:
    with treadle.LocalCluster(0) as cluster:

        def connect(handlers: Any) -> Any:
            handlers.on_closed("it was interrupted")
            return cluster._scheduler.connect_sidecar(handlers)

        cluster._scheduler.sidecar.close()  # type: ignore[union-attr]
        sidecar = SupervisedSidecar(connect)
        sidecar.close()
