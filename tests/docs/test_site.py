"""The site that `make docs` builds: every link leads somewhere, and every page works in a browser."""

from __future__ import annotations

import asyncio
import posixpath
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import browser
from site_of_docs import Page, build, served

pytest.importorskip("sphinx", reason="the group docs needs Python 3.11")

WIDTHS = ((1400, 900, False), (390, 844, True))

# Tables, code and pictures that are too wide scroll by themselves; the text around them does not.
TOO_WIDE = """
[document.documentElement, ...document.querySelectorAll(".bd-content, .bd-article-container, article")]
    .filter(e => e.scrollWidth > e.clientWidth + 1)
    .map(e => e.tagName + " " + e.className).join(", ")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    build(folder / "html", folder / "caches")
    return folder / "html"


def pages(site: Path) -> dict[str, Page]:
    """The pages by their names. Themes keep templates in _static."""
    found = {str(path.relative_to(site)): path for path in sorted(site.rglob("*.html"))}
    return {name: Page(path) for name, path in found.items() if not name.startswith("_static/")}


@pytest.mark.timeout(300)
def test_no_link_is_dead(site: Path) -> None:
    every = pages(site)
    dead = []
    for name, page in every.items():
        for target in page.targets + page.loaded:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https", "mailto", "data") or target == "#":
                continue
            place = unquote(parts.path)
            to = (
                posixpath.normpath(posixpath.join(posixpath.dirname(name), place))
                if place
                else name
            )
            if not (site / to).is_file():
                dead.append(f"{name}: {target}")
            elif parts.fragment and to in every and unquote(parts.fragment) not in every[to].places:
                dead.append(f"{name}: {target} (no such place)")
    assert len(every) > 50
    assert dead == []


@pytest.mark.timeout(300)
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loaded = {target for page in pages(site).values() for target in page.loaded}
    assert {target for target in loaded if urlsplit(target).scheme in ("http", "https")} == set()


@pytest.mark.timeout(600)
@pytest.mark.skipif(browser.find() is None, reason="needs Chromium, or TREADLE_CHROMIUM")
def test_every_page_works_in_a_browser(site: Path) -> None:
    wrong = asyncio.run(_visit(site, browser.find() or ""))
    assert wrong == []


async def _visit(site: Path, program: str) -> list[str]:
    wrong = []
    with served(site) as address:
        async with browser.Browser(program) as tab:
            for width, height, phone in WIDTHS:
                await tab.size(width, height, phone)
                await tab.scheme("dark" if phone else "light")
                for name in pages(site):
                    tab.wrong.clear()
                    await tab.open(f"{address}/{name}")
                    told = list(tab.wrong)
                    if wide := await tab.evaluate(TOO_WIDE):
                        told.append(f"is wider than {width} px: {wide}")
                    wrong += [f"{name} ({width} px): {what}" for what in told]
            wrong += await _search(tab, address)
    return wrong


async def _search(tab: browser.Browser, address: str) -> list[str]:
    tab.wrong.clear()
    await tab.open(f"{address}/search.html?q=shuffle")
    found = 0
    for _ in range(200):
        found = await tab.evaluate("document.querySelectorAll('#search-results li').length")
        if found > 5:
            return tab.wrong
        await asyncio.sleep(0.1)
    return [*tab.wrong, f"a search for shuffle finds {found} pages"]
