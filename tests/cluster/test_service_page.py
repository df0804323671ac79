"""The page of the shuffle service: of its master and of a server, in a browser and for `treadle observe`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from process_support import Process
from service_support import ROWS, Servers, Table
from test_dashboard_page import HTML, browser, shows, view, visit, wrong
from treadle.cli._observe import observe
from treadle.shuffle import Service
from waiting import SOON, until

in_a_browser = pytest.mark.skipif(
    browser.find() is None, reason="needs Chromium, or TREADLE_CHROMIUM"
)


@pytest.fixture
def servers(new_servers: Callable[..., Servers]) -> Servers:
    return new_servers("ab", "--http", "127.0.0.1:0")


@contextmanager
def shuffled(servers: Servers) -> Iterator[Any]:
    """A shuffle whose rows are at the servers, of which the process of the master is the master."""
    table = Table(maps=3, partitions=4, rows=2_000)
    with (
        Service(servers.master.address, own_master=False, timeout=SOON) as service,
        service.shuffle(3, 4, ROWS, name=HTML) as shuffle,
    ):
        shuffle.commit(table.write_all(shuffle))
        yield service


def told(process: Process) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(process.page("/sight/overview"))["service"]
    return found


def committed(process: Process) -> bool:
    running = told(process)["running"]
    return bool(running and running[0]["committed"] and running[0]["largest"])


def test_the_page_says_what_the_service_knows(servers: Servers) -> None:
    with shuffled(servers) as service:
        # An answer is as new as a quarter of a second.
        until(lambda: committed(servers.master), "its rows are committed, and counted")
        found, state = told(servers.master), service.state()
        assert found["role"] == "master"
        assert {one["name"] for one in found["servers"]} == {"a", "b"}
        assert all(one["weight"] > 0 and one["partitions"] > 0 for one in found["servers"])
        (shown,), (known,) = found["running"], state["shuffles"]
        assert (shown["name"], shown["application"]) == (HTML, known["application"])
        assert (shown["rows"], shown["bytes"]) == (known["rows"], known["bytes"])
        assert 0 < shown["largest"] <= shown["bytes"]
        by_number = {one["application"]: one for one in found["applications"]}
        application = by_number[known["application"]]
        assert (application["shuffles"], application["bytes"]) == (1, known["bytes"])
        assert servers.master.state()["shuffles"][0]["shuffle"] == known["shuffle"]
        server = told(servers.processes["a"])
        assert (server["role"], server["name"]) == ("server", "a")
        assert server["masters"] > 0
        assert server["counts"]["stored_bytes_total"] > 0
    until(lambda: told(servers.master)["ended"], "it is among those that have ended")
    (ended,) = told(servers.master)["ended"]
    assert (ended["name"], ended["state"], ended["rows"]) == (HTML, "finished", 6_000)


def test_only_who_has_the_token_sees_it(servers: Servers) -> None:
    for process in (servers.master, servers.processes["a"]):
        for path in ("/", "/sight/overview", "/json/state"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{process.http}{path}", timeout=SOON)
        # Files that are the same everywhere.
        with urllib.request.urlopen(f"{process.http}/assets/page.js", timeout=SOON) as page:
            assert page.status == 200


def test_a_terminal_shows_it(servers: Servers) -> None:
    with shuffled(servers):
        until(lambda: told(servers.master)["running"], "the shuffle is shown")
        lines = CliRunner().invoke(observe, [servers.master.link], catch_exceptions=False).output
        assert lines.startswith("shuffle master at ")
        assert HTML[:30] in lines
        assert "takes rows" in lines
        server = servers.processes["b"].link
        lines = CliRunner().invoke(observe, [server], catch_exceptions=False).output
        assert lines.startswith("shuffle server at ")
        found = CliRunner().invoke(observe, ["--json", server], catch_exceptions=False).output
        assert json.loads(found)["service"]["name"] == "b"
    refused = CliRunner().invoke(observe, [server, "workers"])
    assert (refused.exit_code, "no workers" in refused.output) == (1, True)


@in_a_browser
@pytest.mark.timeout(300)
def test_a_browser_shows_it(servers: Servers) -> None:
    async def look(tab: Any) -> None:
        text = "document.querySelector('main')?.innerText"
        for width, phone in ((1280, False), (390, True)):
            await tab.size(width, 860, phone)
            await tab.open("about:blank")
            await tab.open(servers.master.link)
            await shows(tab, view("service"))
            await shows(tab, f"{text}.includes('<img src=x') && {text}.includes('takes rows')")
            assert await tab.evaluate("document.querySelectorAll('#page img').length") == 0
            wide = await tab.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert not wide, f"it is wider than {width} pixels"
            await tab.evaluate(
                "document.querySelector('[aria-label=Shuffles] [role=row].click').click()"
            )
            await shows(tab, "document.querySelector('.chosen h2')?.innerText.includes('<img')")
            await tab.open("about:blank")
            await tab.open(servers.processes["a"].link)
            await shows(tab, view("service"))
            await shows(tab, f"/pushed to it/.test({text})")
            wide = await tab.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert not wide, f"a server's page is wider than {width} pixels"
        assert wrong(tab) == []
        servers.processes["a"].end()
        await shows(tab, "/shuffle server is lost/.test(document.body.innerText)")

    with shuffled(servers):
        visit(look)
