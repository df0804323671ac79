"""The widget of notebooks: its script in a browser, with the pages of a cluster, and what a kernel tells of it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import treadle
from client_support import AGAINST, inc
from http_support import Quiet, serving
from test_dashboard_page import browser, shows, visit, wrong
from test_sight import ran
from treadle.sight._widget import SCRIPT, views_of
from waiting import SOON

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the pages are Treadle's")

# What a notebook has: a cell, and a model that the script reads and hears of.
CELL = """<!doctype html>
<meta charset="utf-8">
<link rel="icon" href="data:,">
<div id="cell"></div>
<script type="module">
import widget from "./widget.js";
const state = { views: STATE };
const heard = {};
const model = { get: (name) => state[name], on: (event, act) => { heard[event] = act; } };
widget.render({ model, el: document.getElementById("cell") });
window.change = () => { state.views = state.views.slice(1); heard["change:views"](); };
</script>
"""


@contextmanager
def notebook(views: list[dict[str, Any]]) -> Iterator[str]:
    """The address of a page that shows the widget as a notebook does."""
    files = {
        "/": ("text/html", CELL.replace("STATE", json.dumps(views))),
        "/widget.js": ("text/javascript", SCRIPT),
    }

    class Handler(Quiet):
        def do_GET(self) -> None:
            kind, text = files.get(self.path, ("text/plain", ""))
            self.send_response(200 if self.path in files else 404)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

    with serving(Handler) as address:
        yield f"{address}/"


async def frames(tab: Any) -> list[tuple[str | None, str]]:
    """Which view each frame shows, and its text."""
    tree = await tab.send("Page.getFrameTree")
    found = []
    for child in tree["frameTree"].get("childFrames", []):
        world = await tab.send("Page.createIsolatedWorld", frameId=child["frame"]["id"])
        told = await tab.send(
            "Runtime.evaluate",
            expression="(m => [m?.dataset.view, m?.innerText ?? ''])(document.querySelector('main'))",
            contextId=world["executionContextId"],
            returnByValue=True,
        )
        view, text = told["result"]["value"]
        found.append((view, text))
    return found


def is_whole(shown: list[tuple[str | None, str]]) -> bool:
    return [view for view, _ in shown] == ["overview", "stream"] and "inc" in shown[0][1]


@pytest.mark.skipif(browser.find() is None, reason="needs Chromium, or TREADLE_CHROMIUM")
def test_a_cell_shows_two_views() -> None:
    async def look(tab: Any) -> None:
        await tab.open(address)
        await shows(tab, "document.querySelectorAll('#cell iframe.treadle-view').length === 2")
        titles = "[...document.querySelectorAll('iframe')].map(one => one.title).join()"
        assert await tab.evaluate(titles) == "Overview,Task stream"
        heights = "[...document.querySelectorAll('iframe')].map(one => one.clientHeight).join()"
        assert await tab.evaluate(heights) == "300,300"
        # The pages are those of the cluster.
        deadline = time.monotonic() + SOON
        while not is_whole(shown := await frames(tab)):
            assert time.monotonic() < deadline, shown
            await asyncio.sleep(0.05)
        assert wrong(tab) == []
        await tab.evaluate("change()")
        assert await tab.evaluate(titles) == "Task stream"

    with (
        treadle.LocalCluster(1, threads_per_worker=1, processes=False) as cluster,
        treadle.Client(cluster) as client,
    ):
        client.gather(client.map(inc, range(20), pure=False))
        link = str(client.dashboard_link)
        ran(link, "inc", 20)
        with notebook(views_of(link, 300)) as address:
            visit(look)


def test_a_kernel_tells_of_it() -> None:
    pytest.importorskip("anywidget")
    with (
        treadle.LocalCluster(1, threads_per_worker=1, processes=False) as cluster,
        treadle.Client(cluster) as client,
    ):
        for owner in (client, cluster, None):
            widget = treadle.widget(owner, height=200)
            assert widget.views == views_of(str(client.dashboard_link), 200)
            state = widget.get_state()
            assert (state["views"], state["_esm"]) == (widget.views, SCRIPT)
            assert "application/vnd.jupyter.widget-view+json" in widget._repr_mimebundle_()[0]
            widget.close()


def test_without_anywidget_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ImportError, match=r"pip install 'treadle\[jupyter\]'"):
        treadle.widget(object())
