"""What code that was written for ``ipyparallel.Client`` asks of a client itself."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from typing import Any

import distributed
import pytest
from ipyparallel.error import TaskAborted
from IPython.core.interactiveshell import InteractiveShell

import treadle
from views_support import SOON, endless
from waiting import until


def test_an_executor_of_engines(client: treadle.Client) -> None:
    executor = client.executor()
    assert isinstance(executor, Executor)
    assert executor.submit(pow, 2, 3).result(SOON) == 8
    assert list(client.executor([0, 2]).map(abs, range(-3, 3))) == [3, 2, 1, 0, 1, 2]


def test_waiting_for_calls(client: treadle.Client, view: Any, capsys: Any) -> None:
    first = view.apply_async(time.sleep, 1)
    last = view.apply_async(abs, -1)
    assert set(first.msg_ids) <= set(client.outstanding)
    assert not client.wait(first, 0)
    assert client.wait(timeout=SOON)
    assert not client.outstanding
    assert last.ready()
    assert list(client.history)[-3:] == list(last.msg_ids)
    assert client.get_result(last.msg_ids).get(SOON) == [1, 1, 1]
    shown = view.apply_async(abs, -1)
    client.wait_interactive(shown, timeout=SOON)
    assert shown.ready()
    assert "100%" in capsys.readouterr().out


@pytest.mark.parametrize("arrived", [False, True])
def test_calls_that_have_not_begun_are_aborted(
    client: treadle.Client, view: Any, arrived: bool
) -> None:
    running = endless(view)
    waiting = view.apply_async(abs, -1)
    if arrived:
        # A status is asked of each worker directly, a call goes through the tree: it may come later.
        until(
            lambda: all(client.queue_status(engine)["queue"] == 2 for engine in client.ids),
            "the calls wait",
            SOON,
        )
    client.abort(waiting, block=True)
    assert all(isinstance(one, TaskAborted) for one in waiting.get(SOON))
    client.interrupt()
    with pytest.raises(Exception, match="KeyboardInterrupt"):
        running.get(SOON)


def test_names_of_engines_are_cleared(client: treadle.Client, view: Any) -> None:
    view["a"] = 3
    client.clear(block=True)
    with pytest.raises(Exception, match="NameError"):
        view["a"]


def test_magics_of_some_engines(client: treadle.Client) -> None:
    shell = InteractiveShell.instance()
    view = client.activate([0, 1], suffix="_some")
    shell.run_line_magic("px_some", "b = 4")
    assert view["b"] == [4, 4]
    with pytest.raises(Exception, match="NameError"):
        client[2]["b"]


def test_a_client_is_one_of_dask(client: treadle.Client) -> None:
    assert client.become_dask() is client
    assert isinstance(client, distributed.Client)
