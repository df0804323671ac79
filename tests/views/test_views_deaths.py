"""Engines that die."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from ipyparallel import CompositeError, Reference, RemoteError

from views_support import SOON


def test_an_engine_that_is_killed(client: Any) -> None:
    view = client[:]
    victim = view.targets[1]
    pids = view.apply_sync(os.getpid)

    def wait(victim: int, gate: str) -> int:
        import os
        import time

        while os.getpid() == victim:
            time.sleep(1)
        return os.getpid()

    result = view.apply_async(wait, pids[1], "")
    later = view.apply_async(os.getpid)
    first, _, third = result.split()
    assert first.get(SOON) == pids[0]
    assert third.get(SOON) == pids[2]
    os.kill(pids[1], signal.SIGKILL)
    for which in (result, later):
        with pytest.raises(CompositeError, match=f"Engine {victim} died") as caught:
            which.get(SOON)
        ((name, _, _, where),) = caught.value.elist
        assert name == "EngineError"
        assert where["engine_id"] == victim
        zero, error, two = which.get(return_exceptions=True)
        assert (zero, two) == (pids[0], pids[2])
        assert isinstance(error, RemoteError)
    client.engines.wait_for_engines(3, timeout=SOON)
    assert victim not in client.ids
    with pytest.raises(IndexError, match=f"No such engine: {victim}"):
        view.apply_sync(os.getpid)
    assert len(set(client[:].apply_sync(os.getpid))) == 3


def test_an_engine_that_ends_itself(client: Any) -> None:
    view = client[-1]
    with pytest.raises(RemoteError, match="EngineError"):
        view.apply_async(os._exit, 3).get(SOON)
    client.engines.wait_for_engines(3, timeout=SOON)
    assert view.targets not in client.ids


def test_an_exit_of_code_is_an_error(client: Any) -> None:
    view = client[0]

    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(RemoteError, match="SystemExit"):
        view.apply_sync(leave)
    assert view.apply_sync(len, []) == 0


STERN = """
class Stern(Exception):
    def __str__(self):
        raise SystemExit(3)

    __repr__ = __str__

def fail():
    raise Stern
"""


@pytest.mark.parametrize("operation", ["apply", "execute"])
def test_an_exception_that_cannot_be_shown_ends_no_engine(client: Any, operation: str) -> None:
    view = client[:]
    view.execute(STERN, block=True)
    pids = view.apply_sync(os.getpid)
    if operation == "execute":
        result = view.execute("fail()")
    else:
        result = view.apply_async(Reference("fail"))
    with pytest.raises(CompositeError) as caught:
        result.get(SOON)
    assert [name for name, *_ in caught.value.elist] == ["Stern"] * 3
    assert all("cannot be shown: SystemExit" in text for _, text, *_ in caught.value.elist)
    assert view.apply_sync(os.getpid) == pids


def test_signals(client: Any) -> None:
    engine = client.ids[0]
    result = client[0].apply_async(signal.pause)
    client.engines.send_signal("SIGKILL", engine)
    with pytest.raises(RemoteError, match=f"Engine {engine} died"):
        result.get(SOON)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_engine_that_is_paused(client: Any, which: int) -> None:
    """The others go on, even if it is the one through which they get theirs; it does its part later."""
    view = client[:]
    pids = view.apply_sync(os.getpid)
    os.kill(pids[which], signal.SIGSTOP)
    try:
        results = [view.apply_async(os.getpid) for _ in range(3)]
        for result in results:
            parts = list(result.split())
            paused = parts.pop(which)
            assert {part.get(SOON) for part in parts} == set(pids) - {pids[which]}
            assert not paused.ready()
    finally:
        os.kill(pids[which], signal.SIGCONT)
    for result in results:
        assert result.get(SOON) == pids


def test_a_connection_that_ends_while_a_call_is_sent(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call has its number, and is not known by it, when all calls are lost."""
    engines = client.engines
    send = engines._transport.cast

    def cast(*args: Any) -> int:
        number: int = send(*args)
        engines.disconnected("it is over")
        return number

    monkeypatch.setattr(engines, "_over", None)
    monkeypatch.setattr(engines._transport, "cast", cast)
    result = client[:].apply_async(time.sleep, 2)
    with pytest.raises(CompositeError, match="it is over"):
        result.get(1)
    assert not engines.outstanding
