"""A page in one file, SQL over a history, and how a history says that it ended."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import os
import re
import struct
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

import dask
import numpy as np
import pytest

import treadle
from client_support import AGAINST, inc
from process_support import kill
from treadle import _core
from treadle.sight import _sql
from treadle.sight._pages import Pages, PagesError
from treadle.sight._report import made_of
from treadle.sight._since import since
from treadle.sight._sql import answer
from waiting import SOON, until

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import browser

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the pages are Treadle's")

HTML = "</script><script>window.hacked=1</script><!--<img src=x onerror=window.hacked=1>"


def slow(x):
    time.sleep(0.02)
    return x


def earlier(x):
    return x


def says(text):
    logging.getLogger("distributed.worker").warning("%s", text)


def fails(text):
    raise ValueError(text)


def held(page):
    """What a report holds: its head, and its pictures by what their lanes are."""
    text = re.search(r'<script type="text/plain" id="held">([^<]*)</script>', page).group(1)
    whole = gzip.decompress(base64.b64decode(text))
    (length,) = struct.unpack_from("<I", whole)
    head = json.loads(whole[4 : 4 + length])
    pictures, at = {}, 4 + length
    for by, size in head["pictures"].items():
        pictures[by] = whole[at : at + size]
        at += size
    assert at == len(whole)
    return head, pictures


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The path of a report about a block, in a cluster that did something before."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    with (
        treadle.LocalCluster(2, threads_per_worker=1, processes=False) as cluster,
        treadle.Client(cluster) as client,
    ):
        client.gather(client.map(earlier, range(10), pure=False))
        client.submit(says, "said earlier").result()
        # Workers tell what they did a little later.
        pages = Pages(client.pages_link)
        until(lambda: sum(one["runs"] for one in pages.get("/sight/overview")["groups"]) == 11)
        until(lambda: pages.get("/sight/logs", "find=said+earlier")["lines"])
        with treadle.performance_report(str(path)):
            client.gather(client.map(slow, range(10), pure=False))
            client.submit(says, "said in it").result()
            client.submit(slow, 1, key=f"slow-{HTML}").result()  # this line is shown
            assert client.submit(fails, HTML, key="fails-1").exception() is not None
    return path


def test_a_report_is_about_its_block(report):
    page = report.read_text()
    assert len(page) <= 2_000_000
    head, pictures = held(page)
    overview = head["answers"]["sight/overview"]
    groups = {one["name"]: one for one in overview["groups"]}
    assert "earlier" not in groups
    assert sum(one["runs"] for name, one in groups.items() if "slow" in name) == 11
    assert groups["fails"]["failed"] == 1
    lines = [one["text"] for one in head["answers"]["sight/logs"]["lines"]]
    assert any("said in it" in line for line in lines)
    assert not any("said earlier" in line for line in lines)
    assert overview["live"] is False
    assert "this line is shown" in head["report"]["code"]
    assert set(pictures) == {"worker", "group"}
    assert any(one["key"] == f"slow-{HTML}" for one in head["spans"])
    # Nobody is let in by it.
    assert "token=" not in page


def test_a_report_opens_without_a_cluster_and_its_text_stays_text(report):
    if browser.find() is None:
        pytest.skip("needs Chromium, or TREADLE_CHROMIUM")

    async def look():
        async with browser.Browser(browser.find()) as tab:
            await tab.open(report.as_uri())

            async def shows(what, text):
                for _ in range(int(SOON / 0.05)):
                    if text in str(await tab.evaluate(what)):
                        return
                    await asyncio.sleep(0.05)
                raise AssertionError(f"{text!r} is not in {await tab.evaluate(what)!r}")

            body = "document.body.innerText"
            await shows(body, "Progress by group")
            await shows(body, "report")
            for view, text in (
                ("stream", "spans in"),
                ("groups", "fails"),
                ("workers", "2 workers"),
                ("transfers", "No value has been moved"),
                # In one process, all workers have the same log.
                ("logs?find=SAID", "2 lines"),
                ("logs?find=said&level=warning", "said in it"),
                ("logs?find=said&level=error", "No lines that match"),
                ("logs?worker=4294967295", "No lines that match"),
                (f"task?key={quote(f'slow-{HTML}', safe='')}", "stream log"),
            ):
                await tab.evaluate(f"location.hash = '#/{view}'")
                await shows(body, text)
            assert await tab.evaluate("window.hacked === undefined")
            own = f"asks {report.as_uri()}"
            assert [one for one in tab.wrong if one != own] == []

    asyncio.run(asyncio.wait_for(look(), 4 * SOON))


def test_only_treadles_clients_have_one(tmp_path):
    with (
        treadle.LocalCluster(1, threads_per_worker=1, processes=False, dashboard_address=None) as c,
        treadle.Client(c),
        pytest.raises(RuntimeError, match="no pages"),
        treadle.performance_report(str(tmp_path / "report.html")),
    ):
        pass


def test_what_went_wrong_in_the_block_is_what_is_told(tmp_path):
    path = tmp_path / "file" / "report.html"
    path.parent.touch()
    with (
        treadle.LocalCluster(1, threads_per_worker=1, processes=False) as cluster,
        treadle.Client(cluster),
    ):
        with (
            pytest.warns(UserWarning, match="no report"),
            pytest.raises(KeyError),
            treadle.performance_report(str(path)),
        ):
            raise KeyError("this")
        with pytest.raises(OSError, match="file"), treadle.performance_report(str(path)):
            pass


def test_a_report_in_a_coroutine(tmp_path):
    path = tmp_path / "report.html"

    async def main():
        async with (
            treadle.LocalCluster(
                1, threads_per_worker=1, processes=False, asynchronous=True
            ) as cluster,
            treadle.Client(cluster, asynchronous=True) as client,
            treadle.performance_report(str(path)),
        ):
            await client.submit(inc, 1)

    asyncio.run(main())
    head, _ = held(path.read_text())
    assert "client.submit(inc, 1)" in head["report"]["code"]


def test_what_came_after_is_less_what_was_before():
    def state(now, runs, most, sent):
        row = {
            "id": 1,
            "name": "inc",
            "total": runs,
            "failed": 0,
            "runs": runs,
            "seconds": runs * 2.0,
        }
        row |= {"fetch_seconds": 0.0, "bytes": runs, "mean": 2.0, "median": 2.0, "max": most}
        return {
            "sight/overview": {
                "now": now,
                "groups": [row | {"from": 0, "to": now}],
                "workers": [{"id": 7, "sent": sent, "received": 0, "lost": 0}],
                "errors": [{"time": 5}, {"time": now}],
                "events": [],
                "series": {"step": 1.0, "to": now, "values": [list(range(600))]},
                "whole": {"step": 2.0, "to": now, "values": [list(range(10))]},
                "spans": {"from": 0, "to": now},
                "shuffles": [],
            },
            "sight/transfers": {"workers": [7], "bytes": [[sent]], "count": [[1]]},
            "sight/logs": {"lines": [{"time": now}, {"time": 5}], "more": True, "lost": sent},
        }

    before, after = state(10 * 10**9, 10, 3.0, 5), state(14 * 10**9, 14, 3.0, 9)
    found = since(before, after)
    (group,) = found["sight/overview"]["groups"]
    assert (group["runs"], group["seconds"], group["mean"]) == (4, 8.0, 2.0)
    # Which of them took that long is not known.
    assert "median" not in group
    assert "max" not in group
    assert found["sight/overview"]["workers"][0]["sent"] == 4
    assert [one["time"] for one in found["sight/overview"]["errors"]] == [14 * 10**9]
    assert len(found["sight/overview"]["series"]["values"][0]) == 4
    assert found["sight/overview"]["whole"]["values"] == [[8, 9]]
    assert found["sight/overview"]["spans"]["from"] == 10 * 10**9
    assert found["sight/transfers"]["bytes"] == [[4]]
    assert found["sight/logs"] == {"lines": [{"time": 14 * 10**9}], "more": False, "lost": 4}
    quiet = since(after, after)
    assert quiet["sight/logs"] == {"lines": [], "more": False, "lost": 0}
    assert quiet["sight/overview"]["groups"] == []


def _overview(now, **more):
    """An overview of nothing."""
    series = {"step": 1.0, "to": now, "values": []}
    empty = {"groups": [], "workers": [], "errors": [], "events": [], "shuffles": []}
    return (
        {"now": now, "series": series, "whole": series, "spans": {"from": 0, "to": now}}
        | empty
        | more
    )


def test_what_was_left_out_before_is_not_taken_for_new():
    row = {"runs": 5, "seconds": 5.0, "fetch_seconds": 0.0, "bytes": 0, "failed": 0, "mean": 1.0}
    old, late = {"id": 1, "from": 5, "to": 50} | row, {"id": 2, "from": 20, "to": 50} | row
    counts = {"sent": 9, "received": 9, "lost": 0}

    def after():
        workers = [{"id": 1} | counts, {"id": 2} | counts]
        return {
            "sight/overview": _overview(50, groups=[dict(old), dict(late)], workers=workers),
            "sight/transfers": {
                "workers": [1, 2],
                "names": ["one", "other"],
                "bytes": [[0, 7], [8, 0]],
                "more": 0,
            },
        }

    known = [{"id": 1} | counts]
    matrix = {"workers": [1], "bytes": [[0]]}
    cut = {
        "sight/overview": _overview(10, workers=known, more_workers=3, more_groups=3),
        "sight/transfers": matrix | {"more": 3},
    }
    found = since(cut, after())
    assert [one["id"] for one in found["sight/overview"]["groups"]] == [2]
    assert found["sight/overview"]["more_groups"] == 1
    assert [one.get("sent") for one in found["sight/overview"]["workers"]] == [0, None]
    assert found["sight/transfers"]["workers"] == [1]
    assert found["sight/transfers"]["names"] == ["one"]
    assert found["sight/transfers"]["bytes"] == [[0]]
    assert found["sight/transfers"]["more"] == 1
    # Where all had a row, who had none is new.
    whole = {
        "sight/overview": _overview(10, workers=known),
        "sight/transfers": matrix | {"more": 0},
    }
    found = since(whole, after())
    assert [one["id"] for one in found["sight/overview"]["groups"]] == [1, 2]
    assert [one["sent"] for one in found["sight/overview"]["workers"]] == [0, 9]
    assert found["sight/transfers"]["bytes"] == [[0, 7], [8, 0]]


def test_errors_and_verdicts_are_of_the_block():
    def error(count, time, text="ZeroDivisionError"):
        return {"raised": True, "group": "divide", "text": text, "count": count, "time": time}

    def verdict(rule, text, last=0):
        return {"rule": rule, "text": text, "first": 1, "last": last}

    before = {
        "sight/overview": _overview(
            10,
            errors=[error(1000, 9), error(3, 8, "OSError")],
            more_errors=4,
            verdicts=[verdict("errors", "1003 runs raised"), verdict("lost-workers", "one")],
        ),
        "sight/errors": {"errors": [error(1000, 9), error(3, 8, "OSError")], "more_errors": 4},
    }
    errors = [error(1001, 20), error(3, 8, "OSError"), error(2, 19, "KeyError")]
    after = {
        "sight/overview": _overview(
            30,
            errors=errors,
            more_errors=4,
            verdicts=[verdict("errors", "1006 runs raised"), verdict("lost-workers", "one")],
            earlier=[verdict("spilling", "late", 15), verdict("paused", "long ago", 9)],
        ),
        "sight/errors": {"errors": errors, "more_errors": 4},
    }
    found = since(before, after)
    view = found["sight/overview"]
    for rows in (view["errors"], found["sight/errors"]["errors"]):
        assert [(one["text"], one["count"]) for one in rows] == [
            ("ZeroDivisionError", 1),
            ("KeyError", 2),
        ]
    assert view["more_errors"] == 0
    assert [one["text"] for one in view["verdicts"]] == ["1006 runs raised"]
    assert [one["text"] for one in view["earlier"]] == ["late"]


class Loud(Pages):
    """Pages of a cluster whose logs cannot be compressed to what a report may have."""

    def __init__(self):
        super().__init__("http://127.0.0.1:9/?token=none")

    def fetch(self, path, query=""):
        if path == "/":
            return b"""<meta charset="utf-8"><link rel="stylesheet" href="x"><div id="page"></div>
                <script type="module" src="x"></script>"""
        if path.startswith("/assets/"):
            return b""
        if path == "/sight/spans":
            head = json.dumps({"lanes": []}).encode()
            return struct.pack("<I", len(head)) + head
        if path == "/sight/overview":
            return json.dumps(_overview(10)).encode()
        if path == "/sight/logs":
            lines = [{"time": n, "text": os.urandom(1_500).hex()} for n in range(1_000)]
            return json.dumps({"lines": lines, "more": False, "lost": 0}).encode()
        raise PagesError("there is no such page")


def test_a_report_that_is_too_large_has_fewer_lines_of_logs():
    page = made_of(Loud())
    assert len(page) <= 2_000_000
    logs = held(page)[0]["answers"]["sight/logs"]
    assert 0 < len(logs["lines"]) < 1_000
    assert logs["lines"][0]["time"] == 0
    assert logs["more"]


def treadle_command(*arguments, code=0):
    command = [sys.executable, "-m", "treadle", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SOON, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    path = tmp_path_factory.mktemp("history") / "one.history"
    with (
        treadle.LocalCluster(2, threads_per_worker=1, processes=False, history=path) as cluster,
        treadle.Client(cluster) as client,
    ):
        client.gather(client.map(slow, range(20), pure=False))
        assert ", written" in treadle_command("observe", client.dashboard_link)
    return path


def test_a_history_says_that_it_ended(history, tmp_path):
    assert ", closed" in treadle_command("observe", history)
    whole = history.read_bytes()
    cut = tmp_path / "cut.history"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    assert ", unfinished" in treadle_command("observe", cut)
    shown = _core.History(cut)
    assert shown.end is None
    shown.close()


def test_a_history_of_a_killed_scheduler_has_no_end(start, join, tmp_path):
    scheduler = start("scheduler", "--port", "0", "--history", str(tmp_path))
    start("worker", scheduler.address, "--nthreads", "1")
    client = join(scheduler)
    assert client.submit(inc, 1).result() == 2
    (path,) = tmp_path.glob("*.history")
    # More than its head is written.
    until(lambda: path.stat().st_size > 16)
    kill(scheduler.pid)
    shown = _core.History(path)
    assert shown.end is None
    shown.close()


def test_a_report_of_a_history(history, tmp_path):
    path = tmp_path / "report.html"
    treadle_command("history", history, "--report", path)
    assert path.stat().st_mode & 0o077 == 0
    head, _ = held(path.read_text())
    (group,) = head["answers"]["sight/overview"]["groups"]
    assert (group["name"], group["runs"]) == ("slow", 20)
    assert all(one["key"].startswith("slow-") for one in head["spans"])


def test_sql_over_a_history(history):
    statement = "select name, runs, seconds > 0.3 from groups"
    found = json.loads(treadle_command("observe", history, "sql", statement, "--json"))
    assert [tuple(one.values()) for one in found] == [("slow", 20, True)]
    assert "slow" in treadle_command("observe", history, "sql", "select * from spans")
    told = treadle_command("observe", history, "sql", "selec", code=1)
    assert "SQL: Parser Error" in told


def test_workers_of_one_name_have_their_own_runs_in_sql():
    dtypes = _sql._DTYPES
    tables = {name: np.zeros(3, dtype).tobytes() for name, dtype in dtypes.items()}
    tables["worker"] = np.array([0, 1, 1], dtypes["worker"]).tobytes()
    tables["end"] = np.array([1, 2, 3], dtypes["end"]).tobytes()
    # It came again with another id.
    tables |= {"groups": ["inc"], "workers": [(7, "one"), (9, "one")], "keys": []}
    _, rows = answer(tables, "select worker, id, runs from workers order by id")
    assert rows == [("one", 7, 1), ("one", 9, 2)]


def test_sql_without_duckdb_says_what_to_install(history, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ImportError, match=r"pip install 'treadle\[sql\]'"):
        answer({}, "select 1")
    told = treadle_command("observe", "http://127.0.0.1:9/?token=x", "sql", "select 1", code=2)
    assert "sql is for a history" in told


HREF = re.compile(r'href="([^"]+)"')


def fetch(link):
    with urllib.request.urlopen(link, timeout=SOON) as page:
        return page.read().decode()


def test_the_links_that_notebooks_show_let_in():
    with (
        treadle.LocalCluster(1, threads_per_worker=1, processes=False) as cluster,
        treadle.Client(cluster) as client,
    ):
        for shown in (cluster, client):
            links = HREF.findall(shown._repr_html_())
            assert client.dashboard_link in links
            assert all("<title>Treadle" in fetch(link) for link in links)
        with dask.config.set({"distributed.dashboard.link": "/user/ann/proxy/{port}/status"}):
            for shown in (cluster, client):
                links = HREF.findall(shown._repr_html_())
                assert set(links) == {client.dashboard_link}
                assert links[0].startswith("/user/ann/proxy/")


def test_jupyterlabs_dask_extension_finds_the_views():
    with treadle.LocalCluster(1, threads_per_worker=1, processes=False) as cluster:
        base, _, token = cluster.pages_link.partition("?")
        # As that extension asks: with the query of the link behind each path.
        plots = json.loads(fetch(f"{base}individual-plots.json?{token}"))
        assert "Individual Task Stream" in plots
        for path in plots.values():
            assert path.startswith("/individual-")
            with urllib.request.urlopen(f"{base[:-1]}{path}?{token}", timeout=SOON) as page:
                assert "frame-ancestors *" in page.headers["Content-Security-Policy"]
        with urllib.request.urlopen(f"{base}?{token}", timeout=SOON) as page:
            assert "frame-ancestors 'self'" in page.headers["Content-Security-Policy"]
        if browser.find() is None:
            pytest.skip("needs Chromium, or TREADLE_CHROMIUM")

        async def look():
            async with browser.Browser(browser.find()) as tab:
                for name, text in (("stream", "by group"), ("workers", "1 workers")):
                    await tab.open(f"{base}individual-{name}?{token}")
                    for _ in range(int(SOON / 0.05)):
                        shown = await tab.evaluate("document.body.innerText")
                        if text in shown:
                            break
                        await asyncio.sleep(0.05)
                    assert text in shown
                    assert await tab.evaluate("document.querySelector('nav') === null")

        asyncio.run(asyncio.wait_for(look(), 4 * SOON))
