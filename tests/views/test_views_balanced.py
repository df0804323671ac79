"""Load-balanced views."""

from __future__ import annotations

import os
import time
from typing import Any

import ipyparallel
import pytest
from ipyparallel import AsyncMapResult, RemoteError, TaskAborted, interactive

from views_support import SOON, endless


def test_calls_run_somewhere(client: Any) -> None:
    view = client.load_balanced_view()
    assert view.apply_sync(pow, 2, 3) == 8
    result = view.apply_async(os.getpid)
    assert result.get(SOON) in client[:].apply_sync(os.getpid)
    assert result.engine_id in client.ids
    assert len(view) == 3


def test_map(client: Any) -> None:
    view = client.load_balanced_view()
    result = view.map_async(lambda x: 2 * x, range(20), chunksize=3)
    assert isinstance(result, AsyncMapResult)
    assert len(result) == 20
    assert result.get(SOON) == [2 * x for x in range(20)]
    assert sorted(view.map(lambda x: x, range(9), ordered=False)) == list(range(9))
    assert list(view.imap(lambda x: x + 1, iter(range(9)))) == list(range(1, 10))
    assert view.map_sync(pow, range(4), [2, 2]) == [0, 1]

    @view.parallel(block=True)
    def squared(x: Any) -> Any:
        return [one**2 for one in x]

    assert squared.map([[1], [2]]) == [[1], [4]]


def test_a_call_uses_the_namespace(client: Any) -> None:
    client[:].push({"there": 5}, block=True)
    view = client.load_balanced_view()
    assert view.apply_sync(interactive(lambda: there)) == 5  # noqa: F821
    view.apply_sync(interactive(lambda: globals().update(here=1)))
    assert any(
        name == 1 for name in client[:].apply_sync(interactive(lambda: globals().get("here")))
    )


def test_outputs_come_with_the_result(client: Any) -> None:
    result = client.load_balanced_view().apply_async(print, "spoken")
    result.get(SOON)
    assert result.stdout == "spoken\n"


def test_targets(client: Any) -> None:
    engine = client.ids[1]
    view = client.load_balanced_view(engine)
    results = [view.apply_async(os.getpid) for _ in range(6)]
    assert {result.get(SOON) for result in results} == {client[engine].apply_sync(os.getpid)}
    assert {result.engine_id for result in results} == {engine}


def test_errors_and_retries(client: Any, tmp_path: Any) -> None:
    tries = tmp_path / "tries"

    def fail(path: str, until: int) -> str:
        with open(path, "a") as file:
            file.write("x")
        with open(path) as file:
            if len(file.read()) < until:
                raise ValueError("not yet")
        return "done"

    view = client.load_balanced_view()
    with pytest.raises(RemoteError, match="ValueError: not yet"):
        view.apply_sync(fail, str(tries), 5)
    with view.temp_flags(retries=2), pytest.raises(RemoteError, match="not yet"):
        view.apply_sync(fail, str(tries), 5)
    assert len(tries.read_text()) == 4
    with view.temp_flags(retries=2):
        assert view.apply_sync(fail, str(tries), 6) == "done"


def test_after_and_follow(client: Any) -> None:
    view = client.load_balanced_view()
    first = view.apply_async(time.sleep, 0.1)
    with view.temp_flags(after=first):
        second = view.apply_async(len, [])
    second.get(SOON)
    assert second.started >= first.completed
    direct = client[client.ids[2]].apply_async(len, [])
    with view.temp_flags(follow=direct):
        followers = [view.apply_async(len, []) for _ in range(4)]
    for follower in followers:
        follower.get(SOON)
        assert follower.engine_id == client.ids[2]


def test_dependencies_that_cannot_be_met(client: Any) -> None:
    view = client.load_balanced_view()
    with view.temp_flags(after="nobody"), pytest.raises(RemoteError, match="InvalidDependency"):
        view.apply_sync(len, [])
    failed = view.apply_async(lambda: 1 / 0)
    with view.temp_flags(after=failed), pytest.raises(RemoteError, match="ImpossibleDependency"):
        view.apply_sync(len, [])
    either = ipyparallel.Dependency(failed, success=True, failure=True)
    with view.temp_flags(after=either):
        assert view.apply_sync(len, []) == 0
    busy = endless(client[0])
    with (
        view.temp_flags(after=busy, timeout=0.05),
        pytest.raises(RemoteError, match="TaskTimeout"),
    ):
        view.apply_sync(len, [])
    client.interrupt()
    with pytest.raises(RemoteError):
        busy.get(SOON)


def test_abort(client: Any) -> None:
    busy = endless(client[:])
    view = client.load_balanced_view()
    waiting = [view.apply_async(interactive(lambda: globals().update(ran=1))) for _ in range(9)]
    view.abort(waiting)
    for result in waiting:
        with pytest.raises(TaskAborted):
            result.get(SOON)
    client.interrupt()
    with pytest.raises(RemoteError):
        busy.get(SOON)
    assert client[:].apply_sync(interactive(lambda: globals().get("ran"))) == [None] * 3


def test_what_an_engine_lacks_another_has(client: Any) -> None:
    client[1].push({"fitting": True}, block=True)

    @interactive
    def fits() -> bool:
        return "fitting" in globals()

    @ipyparallel.depend(fits)
    @interactive
    def found() -> int:
        return 1

    view = client.load_balanced_view()
    results = [view.apply_async(found) for _ in range(6)]
    for result in results:
        assert result.get(SOON) == 1
        assert result.engine_id == client.ids[1]
    client[1].execute("del fitting", block=True)
    with pytest.raises(RemoteError, match="ImpossibleDependency"):
        view.apply_sync(found)
