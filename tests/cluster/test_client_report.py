"""``performance_report``: a page about what ran in a block."""

from __future__ import annotations

import distributed
from distributed import performance_report, wait

from client_support import SOON, double, fail, inc


def test_a_page_about_a_block(client, tmp_path):
    page = tmp_path / "report.html"
    with performance_report(filename=str(page)):
        futures = [*client.map(inc, range(10)), client.submit(fail, "oh no")]
        wait(futures, timeout=SOON)  # this line is shown
    text = page.read_text()
    assert "Dask Performance Report" in text
    assert "client.map(inc, range(10))" in text
    assert "Threads: 2" in text
    assert "number of tasks: 11" in text
    assert distributed.__version__ in text
    assert "bokeh" in text


def test_only_what_ran_in_the_block(client, tmp_path):
    wait(client.map(double, range(5), pure=False), timeout=SOON)
    page = tmp_path / "report.html"
    with performance_report(filename=str(page)):
        wait(client.map(inc, range(5), pure=False), timeout=SOON)
    text = page.read_text()
    assert "number of tasks: 5" in text


def test_a_key_without_a_name(client, tmp_path):
    page = tmp_path / "report.html"
    with performance_report(filename=str(page)):
        wait(client.submit(inc, 1, key=()), timeout=SOON)
    assert "<td>Other</td><td>1</td>" in page.read_text()


async def test_in_a_coroutine(async_client, tmp_path):
    page = tmp_path / "report.html"
    async with performance_report(filename=str(page), mode="cdn"):
        await wait(async_client.map(inc, range(5)))
    text = page.read_text()
    assert "async_client.map(inc, range(5))" in text
    assert "cdn" in text
