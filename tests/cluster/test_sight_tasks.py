"""What the pages, histories and `treadle observe` say of tasks while they wait and run, and of why they failed."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import time
import weakref
from pathlib import Path

import dask
import numpy as np
import pytest

import treadle
from client_support import AGAINST, inc
from process_support import kill
from test_sight import MB, divide, fetch, get, group, observed, picture, two
from treadle import _core
from treadle.sight._pages import Pages
from treadle.sight._report import answers
from treadle.worker._profile import Profiler
from waiting import SOON, until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the pages are Treadle's")

# The kind of rectangles of what is not over.
_RUNNING = 6


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
        assert [found[one] for one in ("ready", "assigned", "memory", "released", "erred")] == [
            0
        ] * 5
        found = group(link, "hold")
        assert found["assigned"] >= 2
        assert found["ready"] + found["assigned"] == found["total"] == 6
        text = observed(link, "groups")
        (line,) = (line for line in text.splitlines() if line.startswith("inc "))
        assert line.split()[1:6] == ["6", "6", "0", "0", "0"]
        path.touch()
        assert client.gather(after) == [2] * 6
        states(link, "inc", memory=6, waiting=0, released=0)
        del after[2:], held
        states(link, "inc", memory=2, released=4)
        states(link, "hold", memory=0, assigned=0, ready=0, released=6)
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
        # It is drawn until now, and who clicks on it learns the key.
        now = get(link, "/sight/overview")["now"]
        head, rectangles = picture(link, f"from=0&to={now}&width=1000&by=worker")
        ((lane, _, start, length, *_),) = (one for one in rectangles if one[4] == _RUNNING)
        assert (found["worker_id"], found["lane"]) == tuple(
            head["lanes"][lane][name] for name in ("worker", "lane")
        )
        assert start + length == pytest.approx(1, abs=1e-3)
        where = f"at={now}&worker={found['worker_id']}&lane={found['lane']}"
        one = get(link, "/sight/span", where)
        assert (one["key"], one["kind"], one["running"]) == (str(key), "task", True)
        path.touch()
        assert held.result(SOON) == 1
        until(lambda: get(link, "/sight/overview")["running"] == [], "nothing runs")
        assert "no task" in observed(link, "running")
        # Then it has an end.
        one = until(lambda: ended(link, where), "it has ended")
        assert one["key"] == str(key)
        assert one["bytes"] > 0


def ended(link, where):
    """A span at a place, if it is over."""
    status, found = fetch(link, "/sight/span", where)
    return status == 200 and "running" not in (one := json.loads(found)) and one


def casts(link):
    return get(link, "/sight/overview")["casts"]


def test_casts_are_told_while_they_run_and_after(tmp_path):
    pytest.importorskip("ipyparallel")
    path, history = tmp_path / "go", tmp_path / "history"

    def sent(link):
        return [one for one in casts(link) if one["receivers"] == 2 and one["bytes"] > MB]

    with two(True, history=history) as (client, link):
        view = client[:]
        view.push({"there": np.ones(MB // 4)}, block=True)
        (cast,) = until(lambda: sent(link), "both have told of it")
        assert cast["what"] == "calls of views"
        assert (cast["running"], cast["bytes"] < 3 * MB) == (0, True)
        assert cast["rate"] > 0
        assert 0 < cast["given_seconds"] <= cast["seconds"]
        going = view.apply_async(hold, str(path))
        until(lambda: casts(link)[0]["running"] == 2, "it runs at both")
        assert "at 2" in observed(link, "casts")
        now = get(link, "/sight/overview")["now"]
        head, rectangles = picture(link, f"from=0&to={now}&width=1000&by=worker")
        lanes = {head["lanes"][one[0]]["name"].rpartition(" · ")[2] for one in rectangles if one[4] == _RUNNING}  # fmt: skip
        assert lanes == {"casts"}
        path.touch()
        assert going.get(SOON) == [1, 1]
        until(lambda: not any(one["running"] for one in casts(link)), "none runs")
    shown = _core.History(history)
    try:
        assert sent(shown.http) == [cast]
        assert "calls of views" in observed(str(history), "casts")
    finally:
        shown.close()


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


def spin(path):
    """Run Python until there is a file."""
    deadline = time.monotonic() + 10 * SOON
    while not Path(path).exists() and time.monotonic() < deadline:
        # Between these, its own lines are what is seen: looking at a file lets other threads run.
        for _ in range(1000):
            sum(range(1000))
    return 1


def says(text):
    logging.getLogger("distributed.worker").warning("%s", text)
    return 1


def places(flame):
    """The places of a profile, by the end of their names: what called them, and seconds."""
    names = flame["names"]
    nodes = [(parent, names[name], seconds) for parent, name, seconds in flame["nodes"]]
    return {name.partition(" ")[0]: (parent, seconds) for parent, name, seconds in nodes}


def test_where_tasks_spend_their_time_is_always_known(tmp_path):
    path, history = tmp_path / "go", tmp_path / "history"
    with two(False, history=history) as (client, link):
        spinning = client.submit(spin, str(path), key="spin-1")
        flame = until(
            lambda: (f := get(link, "/sight/profile", "group=spin"))["nodes"] and f, "it is seen"
        )
        found = places(flame)
        assert {"spin"} <= set(found)
        assert found["spin"][1] > 0
        # The group is the root, and what it ran is called from there.
        assert flame["nodes"][0][0] == -1
        assert all(parent < place for place, (parent, *_) in enumerate(flame["nodes"]))
        assert "test_sight_tasks.py" in observed(link, "profile", "spin")
        assert get(link, "/sight/profile", "group=nobody")["nodes"] == []
        whole = get(link, "/sight/profile")
        assert whole["nodes"][0][2] >= found["spin"][1]
        assert get(link, "/sight/profile", f"from={2**62}&to={2**63 - 1}")["nodes"] == []
        now = get(link, "/sight/overview")["now"]
        recent = get(link, "/sight/profile", f"group=spin&from=0&to={now}")
        assert recent["nodes"]
        # A report about a block has what was told after it began.
        assert answers(Pages(link))["sight/profile"]["nodes"]
        assert answers(Pages(link), 2**62)["sight/profile"]["nodes"] == []
        path.touch()
        assert spinning.result(SOON) == 1
    shown = _core.History(history)
    try:
        assert places(get(shown.http, "/sight/profile", "group=spin"))["spin"][1] > 0
    finally:
        shown.close()


class Thing:
    """Something that can be referred to weakly."""


def test_looking_at_threads_keeps_nothing_alive():
    told, over = [], threading.Event()
    things = []

    def run():
        thing = Thing()
        things.append(weakref.ref(thing))
        over.wait(10 * SOON)

    thread = threading.Thread(target=run)
    thread.start()
    profiler = Profiler(lambda: {thread.ident: "run-1"})
    gc.collect()
    gc.disable()
    try:
        profiler.begin(lambda *found: told.append(found))
        ((_, places), *_) = until(lambda: told)
        assert places[0][:2] == (-1, "run")
        assert any("test_sight_tasks.py" in name for _, name, _ in places)
        over.set()
        thread.join()
        until(lambda: things[0]() is None, "its local is gone")
    finally:
        gc.enable()
        over.set()
        profiler.close()


@pytest.mark.parametrize("processes", [False, True])
def test_lines_of_logs_are_found(tmp_path, processes):
    history = tmp_path / "history"
    html = "<img src=x>\x1b[2J needle"
    with two(processes, history=history) as (client, link):
        assert client.submit(says, html, key="says-1").result(SOON) == 1

        def found(query):
            return get(link, "/sight/logs", query)["lines"]

        line = until(lambda: found("find=NEEDLE"), "the line has come")[0]
        assert html in line["text"]
        assert line["level"] == "WARNING"
        workers = {one["name"]: one["id"] for one in get(link, "/sight/overview")["workers"]}
        assert line["worker_id"] == workers[line["worker"]]
        assert 0 < line["time"] <= get(link, "/sight/overview")["now"]
        assert found("find=needle&level=error") == []
        assert found(f"find=needle&worker={line['worker_id']}")
        if processes:
            # In one process, all have the same log.
            (other,) = set(workers.values()) - {line["worker_id"]}
            assert found(f"find=needle&worker={other}") == []
        text = observed(link, "logs", "needle")
        assert "needle" in text
        assert "\x1b" not in text
    shown = _core.History(history)
    try:
        assert get(shown.http, "/sight/logs", "find=needle")["lines"]
    finally:
        shown.close()


def test_a_task_leads_to_the_lines_of_its_time():
    with two(True) as (client, link):
        first = client.submit(says, "spoke at first", key="says-1")
        assert first.result(SOON) == 1
        (places,) = client.who_has([first]).values()
        second = client.submit(says, "spoke again", key="says-2", workers=list(places))
        assert second.result(SOON) == 1

        def lines(key):
            return [one["text"] for one in get(link, "/sight/task", f"key={key}").get("log", [])]

        assert "spoke at first" in until(lambda: lines("says-1"))[0]
        told = until(lambda: lines("says-2"))
        # What came before it is not of its time.
        assert "spoke again" in told[0]
        assert not any("spoke at first" in one for one in told)
        assert "spoke at first" in observed(link, "task", "says-1")
        (line,) = get(link, "/sight/logs", "find=spoke+at+first")["lines"]
        window = f"worker={line['worker_id']}&from={line['time']}&to={line['time'] + 1}"
        assert get(link, "/sight/logs", window)["lines"] == [line]
        assert fetch(link, "/sight/logs", "from=5&to=4")[0] == 400


def test_the_scheduler_has_lines_too(start, join):
    scheduler = start("scheduler", "--port", "0")
    worker = start("worker", scheduler.address, "--name", "one")
    join(scheduler).wait_for_workers(1)
    kill(worker.pid)
    lines = until(lambda: get(scheduler.link, "/sight/logs", "find=is+lost")["lines"])
    assert lines[0]["worker"] == "scheduler"
    assert "worker one" in lines[0]["text"]
