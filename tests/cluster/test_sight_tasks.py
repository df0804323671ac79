"""What the pages, histories and `treadle observe` say of tasks while they wait and run, and of why they failed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dask
import pytest

import treadle
from client_support import AGAINST, inc
from test_sight import divide, get, group, observed, two
from treadle import _core
from waiting import SOON, until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the pages are Treadle's")


def hold(path, *_):
    """Run until there is a file."""
    deadline = time.monotonic() + 10 * SOON
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return 1


def states(link, name, **wanted):
    """Wait until so many tasks of a group are in such states; return the group."""

    def are():
        found = group(link, name)
        return found if found and all(found.get(one) == n for one, n in wanted.items()) else None

    return until(are, f"{name}: {wanted}")


def test_tasks_are_counted_by_group_and_state(tmp_path):
    path, history = tmp_path / "go", tmp_path / "history"
    with two(False, history=history) as (client, link):
        # Two threads: what else is ready waits in a queue, or behind one of them.
        held = [client.submit(hold, str(path), key=f"hold-{number}") for number in range(6)]
        after = client.map(inc, held, pure=False)
        found = states(link, "inc", waiting=6)
        assert found["total"] == 6
        assert [found[one] for one in ("ready", "running", "memory", "released", "erred")] == [0] * 5
        found = group(link, "hold")
        assert found["running"] >= 2
        assert found["ready"] + found["running"] == found["total"] == 6
        text = observed(link, "groups")
        (line,) = (line for line in text.splitlines() if line.startswith("inc "))
        assert line.split()[1:6] == ["6", "6", "0", "0", "0"]
        path.touch()
        assert client.gather(after) == [2] * 6
        states(link, "inc", memory=6, waiting=0, released=0)
        del after[2:], held
        states(link, "inc", memory=2, released=4)
        states(link, "hold", memory=0, running=0, ready=0, released=6)
        bad = [client.submit(divide, 0, key=f"divide-{number}") for number in range(3)]
        assert all(one.exception(SOON) is not None for one in bad)
        states(link, "divide", erred=3)
        scattered = client.scatter([1, 2], hash=False)
        states(link, "int", memory=2)
        del bad, scattered
        states(link, "divide", erred=0, released=3)
    shown = _core.History(history)
    try:
        assert states(shown.http, "divide", released=3)["total"] == 3
    finally:
        shown.close()


@pytest.mark.parametrize("processes", [False, True])
def test_what_runs_is_told_with_its_key(tmp_path, processes):
    path = tmp_path / "go"
    with two(processes) as (client, link):
        key = ("hold-1", 3, "<b>")
        held = client.submit(hold, str(path), key=key)
        (found,) = until(lambda: get(link, "/sight/overview")["running"], "it runs")
        assert (found["key"], found["group"]) == (str(key), "hold")
        assert found["worker"] in {one["name"] for one in get(link, "/sight/overview")["workers"]}
        assert "hold-1" in observed(link, "running")
        assert "has run for" in observed(link, "workers")
        path.touch()
        assert held.result(SOON) == 1
        until(lambda: get(link, "/sight/overview")["running"] == [], "nothing runs")
        assert "no task" in observed(link, "running")


def end_of_process():
    os._exit(1)


def test_failures_are_told_once_with_their_number():
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        treadle.LocalCluster(1, threads_per_worker=1, processes=True) as cluster,
        treadle.Client(cluster) as client,
    ):
        link = client.dashboard_link
        bad = [client.submit(divide, 0, key=f"divide-{number}") for number in range(3)]
        assert all(one.exception(SOON) is not None for one in bad)

        def errors():
            return get(link, "/sight/overview")["errors"]

        (found,) = until(lambda: [one for one in errors() if one["count"] == 3], "three raised")
        assert found["raised"]
        assert "3 × divide-" in observed(link, "errors")
        killer = client.submit(end_of_process, key="killer-1")
        readers = client.map(inc, [killer] * 3, pure=False)
        assert all(one.exception(SOON) is not None for one in readers)
        (found,) = until(lambda: [one for one in errors() if not one["raised"]], "it is given up")
        assert found["key"] == "killer-1"
        assert "KilledWorker" in found["text"]
        assert found["count"] == 1
