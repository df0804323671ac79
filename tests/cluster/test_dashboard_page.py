"""The page of a cluster in a browser: its views, where a click leads, and what it says about a scheduler that is gone."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import treadle
from client_support import AGAINST, inc
from http_support import Quiet, serving
from ports import free_port
from process_support import Process, kill
from waiting import SOON, until

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import browser

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="the page is Treadle's"),
    pytest.mark.skipif(browser.find() is None, reason="needs Chromium, or TREADLE_CHROMIUM"),
]

VIEWS = (
    "overview",
    "stream",
    "stream?by=group",
    "groups",
    "workers",
    "transfers",
    "shuffles",
    "casts",
    "profile",
    "logs",
    "task",
)
# What a scheduler may not record: the view says so, and the browser logs the status.
MAY_BE_MISSING = ("/sight/transfers",)
HTML = "<img src=x onerror=window.hacked=1>&\"'"


def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def fails(text: str) -> None:
    raise ValueError(text)


@pytest.fixture(scope="module")
def link() -> Iterator[str]:
    """The link to the page of a cluster that has done something."""
    with (
        treadle.LocalCluster(2, threads_per_worker=2, processes=False) as cluster,
        treadle.Client(cluster) as client,
    ):
        client.gather(client.map(inc, range(200), pure=False))
        client.submit(slow, 1.0, key="slow-one").result(SOON)
        # The scheduler forgets tasks of which nobody has a future.
        kept = client.submit(inc, 1, key=HTML)
        kept.result(SOON)
        bad = client.submit(fails, HTML, key=f"fails {HTML}")
        assert bad.exception(SOON) is not None
        told = client.dashboard_link
        assert told is not None
        until(lambda: ran(told, "slow-one"), "slow-one is recorded")
        yield told


def get(link: str, path: str) -> Any:
    base, _, query = link.partition("?")
    with urllib.request.urlopen(
        f"{base.removesuffix('/status')}{path}?{query}", timeout=SOON
    ) as page:
        return json.load(page)


def ran(link: str, name: str) -> dict[str, Any] | None:
    """What the overview says about a group that has run."""
    groups = get(link, "/sight/overview")["groups"]
    return next((group for group in groups if group["name"] == name and group["runs"] > 0), None)


async def shows(tab: browser.Browser, expression: str) -> Any:
    """Wait until something is so in the page."""
    deadline = time.monotonic() + SOON
    while not (found := await tab.evaluate(expression)):
        if time.monotonic() > deadline:
            text = await tab.evaluate("document.body.innerText")
            raise AssertionError(f"not within {SOON} s: {expression}; the page says:\n{text}")
        await asyncio.sleep(0.05)
    return found


def visit(what: Callable[[browser.Browser], Awaitable[None]]) -> None:
    """Do something in a browser."""

    async def run() -> None:
        async with browser.Browser(browser.find() or "") as tab:
            await tab.size(1280, 860)
            await what(tab)

    asyncio.run(run())


def wrong(tab: browser.Browser) -> list[str]:
    """What went wrong, without the answers that something is not recorded."""
    missing = [
        told
        for told in tab.wrong
        if told.startswith("404 ") and any(path in told for path in MAY_BE_MISSING)
    ]
    left = [told for told in tab.wrong if told not in missing]
    for _ in missing:
        # Each has a line on the console, too.
        told = next((told for told in left if "status of 404" in told), None)
        if told is not None:
            left.remove(told)
    return left


def view(name: str) -> str:
    """That the page shows a view, and has an answer for it."""
    return f"""document.querySelector('main')?.dataset.view === '{name.partition("?")[0]}'
        && document.querySelector('main').innerText.length > 0
        && !/Asking|asking/.test(document.querySelector('main').innerText)"""


@pytest.mark.timeout(300)
def test_each_view_opens(link: str) -> None:
    async def look(tab: browser.Browser) -> None:
        for width, phone, scheme in ((1280, False, "light"), (390, True, "dark")):
            await tab.size(width, 860, phone)
            await tab.scheme(scheme)
            for name in VIEWS:
                # Another fragment alone would load nothing.
                await tab.open("about:blank")
                await tab.open(f"{link}#/{name}")
                await shows(tab, view(name))
                wide = await tab.evaluate("document.documentElement.scrollWidth > innerWidth")
                assert not wide, f"{name} is wider than {width} pixels"
                assert await tab.evaluate(
                    "document.documentElement.dataset.theme"
                ) == scheme, f"{name} has another theme"  # fmt: skip
        assert wrong(tab) == []

    visit(look)


def test_keys_change_the_view(link: str) -> None:
    async def look(tab: browser.Browser) -> None:
        await tab.open(link)
        await shows(tab, view("overview"))
        names = ("overview", "stream", "groups", "workers", "transfers", "shuffles", "profile", "logs")  # fmt: skip
        for number, name in reversed([*enumerate(names, 1)]):
            await tab.send("Input.dispatchKeyEvent", type="keyDown", key=str(number))
            await shows(tab, view(name))
        await tab.send("Input.dispatchKeyEvent", type="keyDown", key="?")
        await shows(tab, "document.querySelector('[role=dialog]') !== null")

    visit(look)


def test_the_groups_of_a_run_appear(link: str) -> None:
    async def look(tab: browser.Browser) -> None:
        await tab.open(f"{link}#/overview")
        text = "document.querySelector('main').innerText"
        await shows(tab, f"/inc[^]*200 \\/ 200/.test({text})")
        await shows(tab, f"{text}.includes('ValueError')")
        await tab.open("about:blank")
        await tab.open(f"{link}#/groups")
        await shows(tab, "document.querySelectorAll('.graph .box').length >= 3")

    visit(look)


def wait_for(path: str) -> int:
    """Run until there is a file."""
    deadline = time.monotonic() + 10 * SOON
    while not Path(path).exists() and time.monotonic() < deadline:
        sum(range(1000))
    logging.getLogger("distributed.worker").warning("%s", HTML)
    return 1


def test_a_task_that_runs_its_profile_and_its_log_are_shown(tmp_path: Path) -> None:
    go = tmp_path / "go"

    async def look(tab: browser.Browser) -> None:
        text = "document.querySelector('main')?.innerText"
        await tab.open(f"{link}#/workers")
        await shows(tab, f"/Running for longest[^]*wait-1/.test({text})")
        await tab.open("about:blank")
        await tab.open(f"{link}#/stream")
        await shows(tab, "/1 spans in 1 rect/.test(document.querySelector('.stream')?.innerText)")
        # What runs is drawn up to now, at the right.
        x, y, width = await tab.evaluate(
            "(b => [b.left, b.top, b.width])(document.querySelector('.stage').getBoundingClientRect())"
        )
        await click(tab, x + width - 12, y + 30)
        await shows(tab, "document.querySelector('.chosen h2 a')?.innerText === 'wait-1'")
        await shows(tab, "document.querySelector('.chosen h2').innerText.includes('runs')")
        await tab.open("about:blank")
        await tab.open(f"{link}#/groups")
        await shows(tab, f"{text}.includes('queued')")
        await tab.open("about:blank")
        await tab.open(f"{link}#/profile?group=wait")
        await shows(tab, "document.querySelector('.flame canvas')?.clientHeight > 20")
        for key in ("ArrowDown", "ArrowUp", "ArrowDown"):
            await tab.send("Input.dispatchKeyEvent", type="keyDown", key=key)
        await shows(tab, f"/wait_for .*test_dashboard_page.py/.test({text})")
        await tab.send("Input.dispatchKeyEvent", type="keyDown", key="Escape")
        await shows(tab, f"{text}.includes('Esc shows all')")
        go.touch()
        await tab.open("about:blank")
        await tab.open(f"{link}#/logs?find=onerror")
        await shows(tab, f"{text}?.includes({json.dumps(HTML)})")
        assert await tab.evaluate("document.querySelectorAll('#page img').length") == 0
        await tab.evaluate("document.querySelector('[role=row].click').click()")
        await shows(tab, "document.querySelector('.chosen pre')?.innerText.includes('onerror')")
        assert wrong(tab) == []

    with (
        treadle.LocalCluster(1, threads_per_worker=2, processes=False) as cluster,
        treadle.Client(cluster) as client,
    ):
        link = str(client.dashboard_link)
        kept = client.submit(wait_for, str(go), key="wait-1")
        try:
            visit(look)
        finally:
            go.touch()
        assert kept.result(SOON) == 1


async def click(tab: browser.Browser, x: float, y: float) -> None:
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        await tab.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def test_a_click_on_a_rectangle_shows_its_key(link: str) -> None:
    """With WebGL2 where the browser has it, without otherwise."""
    group = ran(link, "slow-one")
    assert group is not None

    async def look(tab: browser.Browser) -> None:
        window = f"group={group['id']}&from={group['from']}&to={group['to']}"
        await tab.open(f"{link}#/stream?{window}")
        await shows(tab, "/1 spans in/.test(document.querySelector('.stream').innerText)")
        # One lane, filled from its begin to its end; it is below the axis.
        x, y, width = await tab.evaluate(
            "(b => [b.left, b.top, b.width])(document.querySelector('.stage').getBoundingClientRect())"
        )
        await click(tab, x + 132 + (width - 132) / 2, y + 30)
        await shows(tab, "document.querySelector('.chosen h2 a')?.innerText === 'slow-one'")
        await tab.evaluate("document.querySelector('.chosen h2 a').click()")
        await shows(tab, view("task"))
        await shows(tab, "document.querySelector('main').innerText.includes('slow-one')")
        assert wrong(tab) == []

    visit(look)


def test_an_error_shows_its_traceback_and_leads_to_the_log(link: str) -> None:
    async def look(tab: browser.Browser) -> None:
        await tab.open(f"{link}#/overview")
        await shows(tab, "document.querySelector('.happenings summary') !== null")
        await tab.evaluate("document.querySelector('.happenings summary').click()")
        await shows(
            tab, "document.querySelector('.happenings pre')?.innerText.includes('in fails')"
        )
        led = await tab.evaluate("document.querySelector('.happenings summary a').href")
        assert "logs?" in led
        assert "from=" in led
        await tab.open("about:blank")
        await tab.open(f"{link}#/task?key={urllib.parse.quote(f'fails {HTML}')}")
        await shows(tab, "document.querySelector('pre.bad')?.innerText.includes('in fails')")
        assert wrong(tab) == []

    visit(look)


def test_text_of_tasks_stays_text(link: str) -> None:
    async def look(tab: browser.Browser) -> None:
        for place in ("overview", "groups", f"task?key={urllib.parse.quote(HTML)}"):
            await tab.open("about:blank")
            await tab.open(f"{link}#/{place}")
            await shows(tab, "document.querySelector('main')?.innerText.includes('<img src=x')")
            assert await tab.evaluate("document.querySelectorAll('#page img').length") == 0
            assert await tab.evaluate("window.hacked === undefined")
        assert wrong(tab) == []

    visit(look)


def test_the_token_is_not_shown_or_stored(link: str) -> None:
    token = link.partition("token=")[2]

    async def look(tab: browser.Browser) -> None:
        await tab.open(link)
        await shows(tab, view("overview"))
        html = await tab.evaluate("document.documentElement.outerHTML")
        kept = await tab.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")  # fmt: skip
        assert token not in html
        assert token not in kept

    visit(look)


def test_a_scheduler_that_ends_is_missed_and_its_successor_noticed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    for path, text in ((secret, "s" * 32), (tmp_path / "token", "t" * 32)):
        path.touch(mode=0o600)
        path.write_text(text)
    port = free_port()
    arguments = ("--port", "0", "--http", f"127.0.0.1:{port}", "--http-token-file", str(tmp_path / "token"))  # fmt: skip

    def begin() -> Process:
        scheduler = Process("scheduler", *arguments, secret=secret)
        until(lambda: answers(port), "the page is served")
        return scheduler

    def health(name: str) -> str:
        return f"document.querySelector('[data-health]')?.dataset.health === '{name}'"

    async def look(tab: browser.Browser) -> None:
        scheduler = begin()
        try:
            await tab.open(f"http://127.0.0.1:{port}/?token={'t' * 32}")
            await shows(tab, view("overview"))
            assert await tab.evaluate("document.querySelector('[data-health]')") is None
            kill(scheduler.process.pid)
            scheduler.process.wait(SOON)
            await shows(tab, health("lost"))
            # It counts.
            await shows(tab, "/ for [1-9]/.test(document.querySelector('.banner').innerText)")
            scheduler = begin()
            await shows(tab, health("replaced"))
        finally:
            kill(scheduler.process.pid)
            scheduler.process.wait(SOON)

    visit(look)


def answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=SOON).close()
    except OSError:
        return False
    return True


@contextmanager
def proxied(
    link: str, prefix: str, change: Callable[[str, bytes], bytes] = lambda _, answer: answer
) -> Iterator[str]:
    """The link through a proxy that has the pages below a prefix, as JupyterHub has, and may change answers."""
    base, _, query = link.partition("?")
    origin = base.removesuffix("/status").removesuffix("/")

    class Handler(Quiet):
        def do_GET(self) -> None:
            inside = self.path.startswith(f"{prefix}/")
            headers = {"Authorization": told} if (told := self.headers["Authorization"]) else {}
            request = urllib.request.Request(
                origin + self.path.removeprefix(prefix), headers=headers
            )
            try:
                answer = urllib.request.urlopen(request, timeout=SOON) if inside else None
            except urllib.error.HTTPError as error:
                answer = error
            self.send_response(404 if answer is None else answer.status)
            for name, value in () if answer is None else answer.headers.items():
                if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                    self.send_header(name, value)
            self.end_headers()
            if answer is not None:
                self.wfile.write(change(self.path.removeprefix(prefix), answer.read()))

    with serving(Handler) as address:
        yield f"{address}{prefix}/status?{query}"


def test_it_works_below_a_prefix(link: str) -> None:
    async def look(tab: browser.Browser) -> None:
        for name in ("overview", "stream", "workers"):
            await tab.open("about:blank")
            await tab.open(f"{beyond}#/{name}")
            await shows(tab, view(name))
        assert wrong(tab) == []

    with proxied(link, "/user/ann/proxy/8787") as beyond:
        visit(look)


def test_workers_that_the_overview_leaves_out_are_found_and_shown(link: str) -> None:
    first, second = get(link, "/sight/overview")["workers"]

    def without_second(path: str, answer: bytes) -> bytes:
        if not path.startswith("/sight/overview"):
            return answer
        found = json.loads(answer)
        found["workers"] = [row for row in found["workers"] if row["id"] == first["id"]]
        return json.dumps({**found, "more_workers": 1}).encode()

    # The first cell of a row alone: names may be numbers.
    names = "[...document.querySelectorAll('.rows bdi')].map(cell => cell.innerText)"
    name = json.dumps(second["name"])

    async def look(tab: browser.Browser) -> None:
        await tab.open(f"{few}#/workers")
        await shows(tab, "document.body.innerText.includes('1 of 2 workers')")
        assert second["name"] not in await tab.evaluate(names)
        await tab.open("about:blank")
        await tab.open(f"{few}#/workers?find={urllib.parse.quote(second['name'])}")
        await shows(tab, f"{names}.includes({name})")
        await tab.open("about:blank")
        await tab.open(f"{few}#/workers?worker={second['id']}")
        await shows(tab, f"document.querySelector('.chosen h2 bdi')?.innerText === {name}")
        assert wrong(tab) == []

    with proxied(link, "/few", without_second) as few:
        visit(look)
