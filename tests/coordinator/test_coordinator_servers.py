"""The coordinator looks at real shuffle servers, and asks one to leave: by itself, by HTTP, and by the page's button."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import browser
from served_support import Served, at_an_address
from treadle.coordinator._app import app_of
from treadle.coordinator._pages import add_pages
from treadle.coordinator._polling import Servers
from treadle.shuffle import Service
from waiting import SOON, until


def names(service: Service) -> set[str]:
    return {one["name"] for one in service.state()["servers"]}


def test_room_comes_from_real_servers_and_one_is_drained() -> None:
    with Service(servers=3) as service:
        servers = Servers(service.address, {}, 60)
        assert servers.room() is None
        servers.look()
        room = servers.room()
        assert room is not None
        assert room.servers == 3
        assert 0 < room.free_bytes <= room.total_bytes
        with pytest.raises(KeyError, match="nobody"):
            servers.drain("nobody")
        servers.drain(servers.servers()[0]["name"])
        until(lambda: len(names(service)) == 2, seconds=2 * SOON)
        servers.look()
        assert len(servers.servers()) == 2


def test_room_that_is_too_old_is_not_known() -> None:
    with Service(servers=1) as service:
        servers = Servers(service.address, {}, 0.0)
        servers.look()
        assert servers.room() is None
    with pytest.raises(OSError, match=r"\S"):
        servers.look()
    # The page has it still, and its button cannot do it.
    with pytest.raises(OSError, match=r"\S"):
        servers.drain(servers.servers()[0]["name"])


def with_servers(served: Served, service: Service) -> Servers:
    """Have a coordinator look at a service."""
    servers = Servers(service.address, {}, 60)
    servers.look()
    served.app = app_of(
        served.coordinator, served.access, servers=servers.servers, drain=servers.drain
    )
    add_pages(served.app)
    served.viewer, served.operator = served.client("viewer"), served.client("operator")
    return servers


def test_operators_drain_a_server_whose_rows_stay(served: Served) -> None:
    with Service(servers=3) as service, service.shuffle(1, 8, "i8") as shuffle:
        with_servers(served, service)
        rows = np.arange(80)
        shuffle.commit([shuffle.write(0, rows, rows % 8)])
        holding = [one["name"] for one in service.state()["servers"] if one["partitions"]]
        path = f"/api/servers/{quote(holding[0])}/drain"
        assert served.viewer.post(path, json={}).status_code == 403
        assert served.operator.post("/api/servers/nobody/drain", json={}).status_code == 404
        assert served.operator.post(path, json={}).status_code == 200
        until(lambda: holding[0] not in names(service), seconds=2 * SOON)
        for partition in range(8):
            assert shuffle.reader().read(partition).tolist() == rows[partition::8].tolist()
    told = [(one["what"], one["subject"], one["who"]) for one in served.viewer.get("/api/audit?of=changes").json()]  # fmt: skip
    assert told == [("server drained", holding[0], "the operator")]


@pytest.mark.skipif(browser.find() is None, reason="needs Chromium, or TREADLE_CHROMIUM")
def test_the_button_of_the_page_drains_a_server(served: Served, tmp_path: Path) -> None:
    """TREADLE_PICTURES=FOLDER keeps a picture."""
    pictures = Path(os.environ.get("TREADLE_PICTURES", tmp_path))
    with Service(servers=3) as service:
        with_servers(served, service)
        name = sorted(names(service))[0]
        token = served.access.new_token("olga", "operator")
        with at_an_address(served.app) as address:
            asyncio.run(_press(address, token, name, pictures))
        until(lambda: name not in names(service), seconds=2 * SOON)
        assert len(names(service)) == 2


async def _press(address: str, token: str, name: str, pictures: Path) -> None:
    button = f"document.querySelector('[data-post=\"/api/servers/{quote(name)}/drain\"]')"

    async def is_so(expression: str) -> None:
        while not await tab.evaluate(f"document.readyState == 'complete' && ({expression})"):
            await asyncio.sleep(0.05)

    async with browser.Browser(browser.find()) as tab:
        await tab.size(1280, 700)
        await tab.open(f"{address}/login#{token}")
        await asyncio.wait_for(is_so("location.pathname == '/'"), SOON)
        await tab.open(f"{address}/servers")
        await tab.evaluate(f"window.confirm = () => true; {button}.click()")
        # It leaves, or has left: there is nothing more to ask of it.
        await asyncio.wait_for(is_so(f"document.querySelector('.heat') && !{button}"), SOON)
        await tab.picture(pictures / "drained-light.png")
        assert tab.wrong == []
