"""The pages of an attached Treadle: Dask's dashboard leads to them, as long as it is attached."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import dask
import distributed
import pytest

import treadle
from client_support import AGAINST, inc
from waiting import SOON

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="the pages are Treadle's")


def fetch(link):
    try:
        with urllib.request.urlopen(link, timeout=SOON) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_dasks_dashboard_leads_to_the_pages_while_it_is_attached():
    pytest.importorskip("bokeh")
    with (
        distributed.LocalCluster(
            1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as there,
    ):
        assert "treadle/" not in fetch(there.dashboard_link)[1]
        for _ in range(2):
            here = treadle.attach(there)
            link = here.dashboard_link
            assert link == there.dashboard_link.removesuffix("status") + "treadle/"
            assert link in here._repr_html_()
            assert here.submit(inc, 1).result() == 2
            assert '<a href="treadle/">' in fetch(there.dashboard_link)[1]
            for place in (link, link[:-1]):
                assert "<title>Treadle" in fetch(place)[1]
            status, text = fetch(f"{link}sight/overview")
            assert (status, json.loads(text)["live"]) == (200, True)
            assert fetch(f"{link}sight/task?key=nobody")[0] == 404
            assert fetch(f"{link}assets/page.js")[0] == 200
            assert fetch(f"{link}individual-stream")[0] == 200
            # Nothing but the pages.
            for path in ("metrics", "json/state", "sight/../metrics"):
                assert fetch(f"{link}{path}")[0] == 404
            here.detach()
            assert fetch(link)[0] == 404
            assert "treadle/" not in fetch(there.dashboard_link)[1]


def test_a_report_does_not_ask_by_a_proxy(tmp_path):
    pytest.importorskip("bokeh")
    path = tmp_path / "report.html"
    with (
        distributed.LocalCluster(
            1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as there,
        treadle.attach(there) as here,
        dask.config.set({"distributed.dashboard.link": "/proxy/{port}/status"}),
    ):
        assert here.dashboard_link.startswith("/proxy/")
        with treadle.performance_report(str(path)):
            assert here.submit(inc, 1).result() == 2
    assert "<title>Treadle" in path.read_text()


def test_without_dasks_dashboard_there_are_no_pages():
    with (
        distributed.LocalCluster(
            1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as there,
    ):
        here = treadle.attach(there)
        assert here.dashboard_link is None
        assert here.submit(inc, 1).result() == 2
        here.detach()
