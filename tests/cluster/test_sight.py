"""What a cluster does, as its pages, its history and `treadle observe` show it."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import dask
import distributed
import numpy as np
import pytest

import treadle
from client_support import AGAINST, inc
from process_support import kill
from treadle import _core
from waiting import SOON, until

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the pages are Treadle's")

MB = 10**6
HTML = "<img src=x onerror=alert(1)>&\"'"


def fetch(link, path, query=""):
    """The status of a page, and its bytes."""
    base, _, token = link.partition("?")
    base = base.removesuffix("/").removesuffix("/status")
    parts = "&".join(part for part in (query, token) if part)
    try:
        with urllib.request.urlopen(f"{base}{path}?{parts}", timeout=SOON) as page:
            return page.status, page.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def get(link, path, query=""):
    status, found = fetch(link, path, query)
    assert status == 200, found
    return json.loads(found)


def picture(link, query):
    """The head of a picture, and its rectangles."""
    status, found = fetch(link, "/sight/spans", query)
    assert status == 200, found
    (length,) = struct.unpack_from("<I", found)
    head = json.loads(found[4 : 4 + length])
    start = -(-(4 + length) // 4) * 4
    return head, list(struct.iter_unpack("<IIffHH", found[start:]))


def group(link, name):
    """A group of the overview, if it is there."""
    found = get(link, "/sight/overview")["groups"]
    return next((one for one in found if one["name"] == name), None)


def ran(link, name, count):
    """Wait until a group has so many runs; return it."""

    def enough():
        found = group(link, name)
        return found if found and found["runs"] >= count else None

    return until(enough, f"{count} runs of {name}")


def divide(x):
    return 1 / x


def slow(x):
    time.sleep(0.05)
    return x


def ones(number, nbytes):
    return np.full(nbytes // 8, number)


def total(*arrays):
    return int(sum(array.sum() for array in arrays))


def rule_of(link, rule):
    """A verdict of the overview, if it is there."""
    verdicts = get(link, "/sight/overview")["verdicts"]
    return next((one for one in verdicts if one["rule"] == rule), None)


@contextmanager
def two(processes, **options):
    """A cluster of two workers, a client of it, and its link."""
    cluster = treadle.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=processes, **options
    )
    with cluster, treadle.Client(cluster) as client:
        yield client, client.dashboard_link


@pytest.mark.parametrize("processes", [False, True])
def test_tasks_and_transfers_are_seen(processes):
    with two(processes) as (client, link):
        values = client.map(slow, range(20), pure=False)
        summed = client.submit(sum, values, key="summed-1")
        assert summed.result() == sum(range(20))
        found = ran(link, "slow", 20)
        assert (found["total"], found["failed"]) == (20, 0)
        assert 0.04 < found["mean"] < found["max"] < SOON
        reader = ran(link, "summed", 1)
        assert reader["inputs"] == [found["id"]]
        view = get(link, "/sight/overview")
        assert view["live"]
        assert view["version"] == 1
        assert [one["status"] for one in view["workers"]] == ["running", "running"]
        assert until(lambda: get(link, "/sight/overview").get("tasks"))["failed"] == 0
        # All of the run is one picture, in which each task has its place.
        head, rectangles = picture(link, f"from=0&to={view['now'] + 10**9}&width=100000&by=worker")
        tasks = [one for one in rectangles if one[4] == 0]
        assert sum(one[5] for one in tasks) >= 21
        assert all(0 <= one[2] <= one[2] + one[3] <= 1.001 for one in rectangles)
        lanes = {one["worker"] for one in head["lanes"]}
        assert lanes == {one["id"] for one in view["workers"]}
        assert {"slow", "summed"} <= set(head["groups"].values())
        # Whoever clicks on one learns the key.
        lane, _, start, length, *_ = max(tasks, key=lambda one: one[3])
        at = int(head["from"] + (start + length / 2) * (head["to"] - head["from"]))
        where = head["lanes"][lane]
        one = get(link, "/sight/span", f"at={at}&worker={where['worker']}&lane={where['lane']}")
        assert one["kind"] == "task"
        assert one["ok"]
        assert one["from"] <= at <= one["to"]
        story = get(link, "/sight/task", f"key={quote(one['key'])}")
        assert story["state"] == "memory"
        assert [step["state"] for step in story["story"]][-1] == "memory"
        assert story["spans"][0]["worker"] == one["worker"]
        assert fetch(link, "/sight/task", "key=nobody")[0] == 404
        by_group, _ = picture(link, f"from=0&to={view['now'] + 10**9}&width=500&by=group")
        assert {"slow", "summed"} <= {one["name"] for one in by_group["lanes"]}
        if processes:
            first, other = (one["name"] for one in view["workers"])
            large = client.map(ones, range(4), nbytes=4 * MB, workers=[first], pure=False)
            assert client.submit(total, *large, workers=[other]).result() == 6 * MB // 2
            matrix = until(lambda: (m := get(link, "/sight/transfers"))["workers"] and m)
            assert sum(map(sum, matrix["bytes"])) >= 16 * MB
            received = [one["received"] for one in get(link, "/sight/overview")["workers"]]
            assert sorted(received) == [0, sum(map(sum, matrix["bytes"]))]


def test_errors_and_keys_are_text():
    with two(False) as (client, link):
        future = client.submit(divide, 0, key=HTML)
        with pytest.raises(ZeroDivisionError):
            future.result()
        errors = until(lambda: get(link, "/sight/overview")["errors"])
        assert errors[0]["key"] == HTML
        assert "division by zero" in errors[0]["text"]
        found = get(link, "/sight/task", f"key={quote(HTML, safe='')}")
        assert found["key"] == HTML
        assert found["state"] == "failed"
        assert "division by zero" in found["error"]
        # From where, without the engine's own frames.
        assert found["traceback"].count("File ") == 1
        assert "in divide" in found["traceback"]
        (kept,) = get(link, "/sight/errors")["errors"]
        assert kept["traceback"] == found["traceback"]
        assert "traceback" not in errors[0]
        for topic in (["errors"], ["task", HTML]):
            assert "in divide" in observed(link, *topic)
        assert until(lambda: rule_of(link, "errors"))["severity"] == "bad"
        key = ("part-1", 3, "it's")
        # The scheduler forgets tasks of which nobody has a future.
        known = client.submit(inc, 1, key=key)
        assert known.result() == 2
        story = get(link, "/sight/task", f"key={quote(str(key))}")
        assert story["key"] == str(key)


def test_a_lost_worker_is_named(start, join):
    scheduler = start("scheduler", "--port", "0")
    workers = [start("worker", scheduler.address, "--name", name) for name in ("one", "other")]
    client = join(scheduler)
    client.wait_for_workers(2)
    until(lambda: len(get(scheduler.link, "/sight/overview")["workers"]) == 2)
    kill(workers[0].pid)
    verdict = until(lambda: rule_of(scheduler.link, "lost-workers"))
    assert "one" in verdict["text"]
    assert verdict["severity"] == "bad"
    # What is added up is of those that are there, and the text says the same.
    view = get(scheduler.link, "/sight/overview")
    assert len(view["workers"]) == 2
    (there,) = [one for one in view["workers"] if one["status"] != "gone"]
    totals = view["totals"]
    assert (totals["workers"], totals["gone"]) == (1, 1)
    assert totals["threads"] == there["threads"]
    assert totals["memory_limit"] == there["memory_limit"]
    told = f"workers: 1 with {there['threads']} threads, 0 paused, 1 gone;"
    assert told in observed(scheduler.link)
    events = view["events"]
    assert {(one["kind"], one["worker"]) for one in events} >= {
        ("joined", "other"),
        ("lost", "one"),
    }
    # One that leaves as it should is no trouble.
    client.retire_workers(names=["other"])
    until(
        lambda: "left" in {one["kind"] for one in get(scheduler.link, "/sight/overview")["events"]}
    )
    assert "other" not in rule_of(scheduler.link, "lost-workers")["text"]


def test_spills_are_seen(start, join):
    scheduler = start("scheduler", "--port", "0")
    start("worker", scheduler.address, "--memory-limit", "400MB", "--nthreads", "1")
    client = join(scheduler)
    values = [client.submit(ones, number, 40 * MB, pure=False) for number in range(12)]
    distributed.wait(values, timeout=SOON)
    verdict = until(lambda: rule_of(scheduler.link, "spilling"))
    assert "disk" in verdict["text"]
    view = get(scheduler.link, "/sight/overview")
    head, rectangles = picture(scheduler.link, f"from=0&to={view['now']}&width=1000")
    assert any(one["lane"] == 0x8001 for one in head["lanes"])
    assert any(one[4] == 3 for one in rectangles)


def test_hostile_queries_are_refused():
    with two(False) as (client, link):
        assert client.submit(inc, 1).result() == 2
        ran(link, "inc", 1)
        for query in (
            "",
            "from=0",
            "from=-1&to=5",
            "from=0&to=0",
            "from=nan&to=1",
            "from=0&to=1&width=zero",
            "from=0&to=1&by=%3Cscript%3E",
            "from=0&to=1&worker=99999999999999999999",
            f"from=0&to={'9' * 400}",
            "from=%00&to=%ff",
        ):
            status, found = fetch(link, "/sight/spans", query)
            assert status == 400, query
            assert "error" in json.loads(found)
        assert fetch(link, "/sight/span", "at=5&worker=1&lane=70000")[0] == 400
        assert fetch(link, "/sight/span", "at=5&worker=77&lane=0")[0] == 404
        assert fetch(link, "/sight/task", "key=" + "a" * 5000)[0] == 400
        # The longest head of a request is refused by the server itself.
        assert fetch(link, "/sight/task", "key=" + "a" * 50000)[0] in (400, 414, 431)
        # Widest windows, and those in which nothing is.
        assert picture(link, f"from=0&to={2**63 - 1}&width=99999999")[0]["count"] >= 1
        assert picture(link, f"from={2**62}&to={2**63 - 1}&width=5")[1] == []
        base = link.partition("/status")[0]
        for path in ("/sight/overview", "/sight/spans", "/"):
            assert fetch(f"{base}/?token=wrong", path)[0] == 401
        # The files of the page have nothing of the cluster.
        with urllib.request.urlopen(f"{base}/assets/page.js", timeout=SOON) as page:
            assert page.headers["Content-Type"].startswith("text/javascript")
        with urllib.request.urlopen(link, timeout=SOON) as page:
            assert page.headers["Content-Type"].startswith("text/html")
            policy = page.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy


def test_nothing_is_recorded_where_nobody_wants_it():
    with dask.config.set({"treadle.sight": False}):
        with two(True) as (client, link):
            assert client.submit(inc, 1).result() == 2
            assert fetch(link, "/sight/overview")[0] == 404
            assert fetch(link, "/metrics")[0] == 200
            assert fetch(link, "/status")[0] == 200
        with pytest.raises(ValueError, match=r"treadle\.sight"):
            treadle.LocalCluster(n_workers=0, history="somewhere")


def test_the_history_of_a_killed_scheduler_opens(start, join, tmp_path):
    scheduler = start("scheduler", "--port", "0", "--history", str(tmp_path))
    start("worker", scheduler.address, "--name", "one", "--nthreads", "2")
    client = join(scheduler)
    with pytest.raises(ZeroDivisionError):
        client.submit(divide, 0, key="divide-1").result()
    assert client.gather(client.map(slow, range(30), pure=False)) == list(range(30))
    before = ran(scheduler.link, "slow", 30)
    (path,) = tmp_path.glob("treadle-*.history")
    assert path.stat().st_mode & 0o077 == 0
    # What the overview has may not be in the file yet.
    size = path.stat().st_size
    until(lambda: path.stat().st_size > size)
    kill(scheduler.pid)
    shown = _core.History(path)
    try:
        assert shown.counts[0] > 5
        assert shown.counts[1] == 0
        view = get(shown.http, "/sight/overview")
        assert view["live"] is False
        assert view["cluster"]["address"] == scheduler.address
        (again,) = [one for one in view["groups"] if one["name"] == "slow"]
        # How tasks are is told once a second.
        for name in ("waiting", "ready", "assigned", "memory", "released", "erred"):
            again.pop(name, None)
            before.pop(name, None)
        assert again == before
        assert view["errors"][0]["key"] == "divide-1"
        told = get(shown.http, "/sight/task", "key=divide-1")
        assert "in divide" in told["traceback"]
        assert "division by zero" in told["error"]
        assert [span["ok"] for span in told["spans"]] == [False]
        head, rectangles = picture(shown.http, f"from=0&to={view['now']}&width=1000")
        assert head["count"] >= 31
        assert rectangles
        where = head["lanes"][rectangles[-1][0]]
        at = int(head["from"] + rectangles[-1][2] * (head["to"] - head["from"])) + 10**6
        one = get(
            shown.http,
            "/sight/span",
            f"at={at}&within={10**8}&worker={where['worker']}&lane={where['lane']}",
        )
        # Keys of tasks that took long are in the file.
        assert one["key"].startswith("slow-")
        assert get(shown.http, "/sight/task", f"key={quote(one['key'])}")["spans"]
    finally:
        shown.close()
    # Cut off in the middle, it has what is before.
    whole = path.read_bytes()
    cut = tmp_path / "cut"
    for length in (len(whole) - 1, len(whole) // 2, 17, 16):
        cut.write_bytes(whole[:length])
        shown = _core.History(cut)
        assert get(shown.http, "/sight/overview")["live"] is False
        shown.close()
    cut.write_bytes(b"something else")
    with pytest.raises(ValueError, match="no history"):
        _core.History(cut)


def test_what_is_no_file_is_no_history(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in ("/dev/zero", pipe):
        with pytest.raises(ValueError, match="no ordinary file"):
            _core.History(place)
        done = observe(str(place))
        assert done.returncode == 1
        assert "no ordinary file" in done.stderr


def observe(*arguments, **environment):
    command = [sys.executable, "-m", "treadle", "observe", *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=2 * SOON,
        env={**os.environ, **environment},
        check=False,
    )


def observed(*arguments, **environment):
    done = observe(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_observe_says_the_same_in_text(tmp_path):
    path = tmp_path / "history"
    with two(False, history=path) as (client, link):
        assert client.gather(client.map(inc, range(50), pure=False)) == list(range(1, 51))
        with pytest.raises(ZeroDivisionError):
            client.submit(divide, 0, key=f"divide-{HTML}\x1b[2J").result()
        future = client.submit(slow, 1, key="slow-1")
        assert future.result() == 1
        ran(link, "inc", 50)
        until(lambda: get(link, "/sight/overview")["errors"])
        for topic in ("", "workers", "groups", "transfers", "shuffles", "errors", "memory"):
            text = observed(link, *filter(None, [topic]))
            assert 1 <= len(text.splitlines()) <= 40, text
            assert "\x1b" not in text
        assert "[errors]" in observed(link)
        assert HTML in observed(link, "errors")
        assert "memory" in observed(link, "task", "slow-1")
        del future
        until(lambda: "forgotten" in observed(link, "task", "slow-1"))
        found = json.loads(observed(link, "groups", "--json"))
        assert {"inc", "divide", "slow"} <= {one["name"] for one in found["groups"]}
        # Nobody between hears the token.
        assert "inc" in observed(link, "groups", http_proxy="http://127.0.0.1:9")
        # By the scheduler's address, with its secret.
        found = observed(client.scheduler.address, "groups")
        assert "inc" in found
    assert "inc" in observed(str(path), "groups")
    assert "(history)" in observed(str(path))
    # The newest of a directory.
    path.rename(tmp_path / "one.history")
    assert "(history)" in observed(str(tmp_path))
    for place, code, told in (
        (str(path), 1, "no such file"),
        (str(Path(__file__).parent), 1, "no history"),
        (f"{link} b", 1, "no pages"),
        ("http://127.0.0.1:9/?token=x", 1, "no pages"),
    ):
        done = observe(place)
        assert done.returncode == code, done.stderr
        assert told in done.stderr
        assert "Traceback" not in done.stderr
    done = observe(str(tmp_path), "nothing")
    assert done.returncode == 2
    assert "nothing" in done.stderr
