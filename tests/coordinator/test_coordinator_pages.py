"""The pages: who sees them, what stands on them, and that a browser shows them without an error."""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import browser
from filled import fill
from served_support import Served, at_an_address
from treadle.coordinator._dask_run import DaskRun, Shuffle, TaskGroup
from treadle.coordinator._event_files import read_log
from treadle.coordinator._measures import Application
from treadle.coordinator._rules import Rule
from treadle.coordinator._watching import Alert, End

LOGS = Path(__file__).parent / "logs"
SPLIT = "spark.sql.files.maxPartitionBytes"
PAGES = ("/", "/servers", "/jobs", "/stories", "/rules", "/rules/new", "/alerts", "/audit")
GB = 10**9


DASK = DaskRun(
    workers=12, threads=4, memory_limit=16 * GB, peak_memory=13 * GB, spilled_bytes=40 * GB, lost_workers=1,
    busy_seconds=190.0, executing=3.6, processors=2.9, seconds=212.0, left_out=1200,
    groups=(
        TaskGroup("read-parquet<orders>", 480, 3100.0, 6.2, 120_000_000, 160_000_000),
        TaskGroup("shuffle-transfer", 480, 900.0, 1.7, 8, 8),
        TaskGroup("dataframe-groupby-aggregate-with-a-long-name", 96, 640.0, 6.6, 2_000_000, 9_000_000),
    ),
    shuffles=(
        Shuffle("shuffle", 480, 22 * GB, 4 * GB, 81.0, 90_000_000, 210.0, 44.0, 93.0),
        Shuffle("merge", 96, 4 * GB, 0, 12.0, 60_000_000, 20.0, 9.0, 27.0),
        Shuffle("rechunk", 8, 1_000_000, 0, 0.4, 200_000),
    ),
)  # fmt: skip


def servers() -> list[dict]:
    rng = random.Random(2)
    return [
        {"name": f"s{n}", "address": f"10.0.{n // 250}.{n % 250}:7791", "domain": f"rack-{n // 20}", "version": "1.0",
         "free_bytes": int(rng.uniform(0.05, 1) * 4000 * GB), "held_bytes": int(rng.uniform(0, 1) * 2000 * GB), "full": n == 7,
         "waiting_requests": rng.randrange(40)}
        for n in range(240)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A day of jobs, one of which was tuned."""
    folder = tmp_path_factory.mktemp("coordinator")
    served = Served(f"sqlite:///{folder}/c.db")
    served.app.state.servers = servers
    from treadle.coordinator._app import app_of
    from treadle.coordinator._pages import add_pages

    served.app = app_of(served.coordinator, served.access, servers=servers)
    add_pages(served.app)
    served.viewer, served.operator = served.client("viewer"), served.client("operator")
    coordinator = served.coordinator
    served.now = time.time()
    fill(coordinator, served.now, 3000, 1.5, 60)
    coordinator.keep_rule(
        Rule(
            "etl first",
            queues=("etl",),
            percent=40.0,
            settings={"spark.treadle.compression": "zstd"},
        ),
        "olga",
        "begin with a part",
    )
    coordinator.keep_rule(Rule("never billing", "stock", names=("*billing*",)), "olga", "audited")
    rule = coordinator.keep_rule(
        Rule("all daily", names=("daily *",), percent=100.0), "olga", "try"
    )
    sick = read_log(LOGS / "tiny-splits.zstd")
    rng = random.Random(5)
    job = {
        "cluster": "batch-a",
        "queue": "etl",
        "user": "ann",
        "name": "daily revenue 2026-11-30",
        "version": "3.5.9",
    }
    for n in range(36):
        served.now += 60
        told = coordinator.decide({"id": f"tuned-{n}", "job": job}).result(20)
        key = served.viewer.get("/api/decisions/tuned-0").json()["recurring"]
        if n == 1:
            coordinator.set_mode(key, "apply", "olga")
        took = 600.0 * (0.5 if told["settings"].get(SPLIT) not in (None, "65536b") else 1.0)
        took *= 2.1 if "spark.executor.memory" in told["settings"] else 1
        coordinator.ended(
            f"tuned-{n}",
            End(
                duration=took * math.exp(rng.gauss(0, 0.06)),
                shuffle_bytes=int(300 * GB * took / 600),
                blocked=took / 3,
            ),
        ).result(20)
        coordinator.measured(f"tuned-{n}", sick).result(20)
    served.key = key
    dask = {**job, "name": "weekly features", "engine": "dask", "version": "0.1.0"}
    coordinator.decide({"id": "dask-1", "job": dask}).result(20)
    coordinator.ended("dask-1", End(duration=212.0, shuffle_bytes=26 * GB, blocked=403.0)).result(
        20
    )
    coordinator.measured("dask-1", Application(id="dask-1", dask=DASK)).result(20)
    alerts = [
        Alert(
            "failed",
            "daily orders * failed because of the service: all copies of rows of 3 maps are lost",
        ),
        Alert(
            "slower",
            "hourly clicks * took 940 s instead of 410 s; by its history up to 560 s are usual",
        ),
        Alert("fell back", "weekly users * fell back to stock shuffle for 2 shuffles"),
    ]
    from treadle.coordinator import _store

    coordinator.database.write_now(
        lambda c: _store.add_alerts(c, alerts, served.now, "tuned-1", key)
    )
    served.rule_id = rule.id
    yield served
    coordinator.close()


@pytest.mark.parametrize(
    "path", [*PAGES, "/jobs/tuned-1", "/jobs/dask-1", "/stories/KEY", "/rules/1"]
)
def test_viewers_see_pages_and_nobody_else(filled, path) -> None:
    path = path.replace("KEY", filled.key)
    nobody = TestClient(filled.app, follow_redirects=False)
    assert nobody.get(path).headers["location"] == "/login"
    assert filled.job.get(path, follow_redirects=False).status_code == 303
    told = filled.viewer.get(path)
    assert told.status_code == 200
    assert "data-post" not in told.text
    assert filled.operator.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/jobs/none", "/stories/none", "/rules/99", "/rules/x"])
def test_what_is_not_there_is_not_found(filled, path) -> None:
    assert filled.viewer.get(path).status_code == 404


def test_names_of_jobs_are_text(filled) -> None:
    name = "<script>alert(1)</script>"
    filled.decide("odd", name=name, user='"><img src=x>')
    for path in ("/jobs", "/jobs/odd", "/stories"):
        page = filled.operator.get(path).text
        assert name not in page
        assert "<img src=x>" not in page
    assert "&lt;script&gt;" in filled.operator.get("/jobs/odd").text


def test_a_story_tells_what_was_changed(filled) -> None:
    page = filled.viewer.get(f"/stories/{filled.key}").text
    assert "small splits" in page
    assert '<span class="tag kept">kept</span>' in page
    assert page.count("<circle") == 36
    assert "<b>Expected:</b> rows are combined over more of the input" in page
    assert "<b>Measured:</b> -" in page


def test_a_run_of_dask_has_its_groups_and_shuffles(filled) -> None:
    page = filled.viewer.get("/jobs/dask-1").text
    for text in ("read-parquet&lt;orders&gt;", "16.0 GB each", "1,200 earlier tasks", "5 min 47 s"):
        assert text in page, text
    # Two shuffles waited: three bars each. The other one is in the table alone.
    assert page.count('class="part push"') == page.count('class="part barrier"') == 2
    assert page.count('class="part waited"') == 2
    assert page.count('class="part compute"') == 3
    assert "3 rechunk" in page
    assert "Its event log was not read" not in page
    assert "It reported no measures" not in page
    spark = filled.viewer.get("/jobs/tuned-1").text
    assert "Time of tasks by stage" in spark
    assert "Blocked times by shuffle" not in spark


def test_what_an_earlier_client_reported_is_shown(filled) -> None:
    """It did not say for what tasks waited."""
    body = {"shuffles": [{"kind": "shuffle", "partitions": 3, "bytes": 5, "spilled_bytes": 0, "seconds": 1.0, "largest_bytes": 2}]}  # fmt: skip
    filled.decide("dask-2", engine="dask")
    filled.end("dask-2", duration=1.0, run=body)
    page = filled.viewer.get("/jobs/dask-2").text
    assert "No task waited." in page
    assert "No task has ended well." in page
    filled.decide("dask-3", engine="dask")
    assert "It reported no measures" in filled.viewer.get("/jobs/dask-3").text


def test_pages_have_no_token(filled) -> None:
    token = filled.operator.headers["Authorization"].removeprefix("Bearer ")
    for path in PAGES:
        assert token not in filled.operator.get(path).text


def test_a_session_is_not_the_token(filled) -> None:
    visitor = TestClient(filled.app, follow_redirects=False)
    assert visitor.post("/login", json={"token": "no"}).status_code == 401
    assert visitor.post("/login", json=[]).status_code == 401
    token = filled.access.new_token("victor", "viewer")
    answer = visitor.post("/login", json={"token": token})
    cookie = answer.headers["set-cookie"].lower()
    assert token.lower() not in cookie
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert visitor.get("/").status_code == 200
    visitor.post("/logout")
    assert visitor.get("/").status_code == 303
    # A job's token shows no page.
    assert (
        visitor.post("/login", json={"token": filled.access.new_token("j", "job")}).status_code
        == 401
    )


@pytest.fixture(scope="module")
def address(filled):
    with at_an_address(filled.app) as url:
        yield url


@pytest.mark.skipif(browser.find() is None, reason="needs Chromium, or TREADLE_CHROMIUM")
def test_a_browser_shows_all_pages_and_changes_a_rule(filled, address, tmp_path) -> None:
    """TREADLE_PICTURES=FOLDER keeps the pictures."""
    asyncio.run(_look(filled, address, Path(os.environ.get("TREADLE_PICTURES", tmp_path))))


async def _until(tab, expression: str) -> None:
    while not await tab.evaluate(expression):
        await asyncio.sleep(0.05)


async def _open(tab, address: str, path: str, ends_at: str = "") -> None:
    """Open a page: what a button does may load another one meanwhile."""
    is_there = f"document.readyState == 'complete' && location.pathname == '{ends_at or path}'"

    async def opened() -> None:
        await tab.open(address + path)
        while not await tab.evaluate(is_there):
            await tab.open(address + path)

    await asyncio.wait_for(opened(), 60)


async def _add_and_remove_a_window(filled, tab, address: str, pictures: Path) -> None:
    await _open(tab, address, "/stories")

    async def add(begins: str, ends: str) -> None:
        await tab.evaluate(
            f"{{ const f = document.getElementById('window'); f.begins.value = '{begins}'; f.ends.value = '{ends}'; "
            "f.reason.value = 'the <quarter> ends'; f.requestSubmit(); }"
        )

    assert tab.wrong == []
    await add("2027-03-31T18:00", "2027-03-31T06:00")
    await asyncio.wait_for(_until(tab, "!document.getElementById('message').hidden"), 30)
    said = await tab.evaluate("document.getElementById('message').textContent")
    assert "must end after it begins" in said
    # The browser says on its console that this was refused.
    tab.wrong.clear()
    await add("2027-03-31T06:00", "2027-03-31T18:00")
    is_there = (
        "document.readyState == 'complete' && document.querySelector('.windows button') != null"
    )
    await asyncio.wait_for(_until(tab, is_there), 30)
    (window,) = filled.coordinator.windows
    assert (window.begins, window.ends, window.reason) == (
        1806472800,
        1806516000,
        "the <quarter> ends",
    )
    said = await tab.evaluate("document.querySelector('.windows').textContent")
    assert "2027-03-31 06:00 to 2027-03-31 18:00" in said
    await tab.evaluate("document.getElementById('windows').scrollIntoView()")
    await tab.picture(pictures / "windows-phone.png")
    await tab.evaluate("document.querySelector('.windows button').click()")
    await asyncio.wait_for(
        _until(tab, "document.readyState == 'complete' && document.querySelector('.windows')?.textContent == 'None.'"), 30
    )  # fmt: skip
    assert filled.coordinator.windows == ()


async def _look(filled, address: str, pictures: Path) -> None:
    async with browser.Browser(browser.find()) as tab:
        await tab.size(1280, 900)
        await tab.open(f"{address}/login#{filled.access.new_token('olga', 'operator')}")
        await asyncio.wait_for(
            _until(tab, "location.pathname == '/' && document.readyState == 'complete'"), 30
        )
        paths = {
            "overview": "/",
            "servers": "/servers",
            "jobs": "/jobs",
            "recurring": "/stories",
            "story": f"/stories/{filled.key}",
            "job": "/jobs/tuned-1",
            "dask": "/jobs/dask-1",
            "rules": "/rules",
            "rule": "/rules/1",
            "alerts": "/alerts",
            "audit": "/audit",
        }
        for scheme in ("light", "dark"):
            await tab.scheme(scheme)
            for name, path in paths.items():
                await tab.open(address + path)
                assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                    path
                )
                await tab.picture(pictures / f"{name}-{scheme}.png")
                await tab.evaluate("window.scrollTo(0, document.body.scrollHeight)")
                await tab.picture(pictures / f"{name}-end-{scheme}.png")
        await tab.size(390, 800, phone=True)
        for path in paths.values():
            await tab.open(address + path)
            assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        await tab.open(address + "/rules/1")
        await tab.evaluate("document.getElementById('try').click()")
        await asyncio.wait_for(_until(tab, "!document.getElementById('tried').hidden"), 30)
        assert "Would have taken" in await tab.evaluate(
            "document.getElementById('tried').textContent"
        )
        await tab.evaluate(
            "{ const f = document.getElementById('rule'); f.rule.value = f.rule.value.replace('40', '55'); f.note.value = 'more'; f.requestSubmit(); }"
        )
        await asyncio.wait_for(
            _until(tab, "(document.body?.textContent ?? '').includes('55 %')"), 30
        )
        assert filled.coordinator.rules[0].percent == 55
        await _add_and_remove_a_window(filled, tab, address, pictures)
        await _open(tab, address, "/")
        await tab.evaluate("document.querySelector('[data-post=\"/logout\"]').click()")
        await asyncio.wait_for(_until(tab, "location.pathname == '/login'"), 30)
        await _open(tab, address, "/rules", "/login")
        assert tab.wrong == []
