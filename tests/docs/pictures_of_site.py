"""Make pictures of pages of the site, to look at: `pictures_of_site.py SITE INTO PAGE...`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import browser
from site_of_docs import served

VIEWS = (
    ("light", 1400, 1000, False),
    ("dark", 1400, 1000, False),
    ("phone", 390, 844, True),
)


async def pictures(site: Path, into: Path, pages: list[str]) -> None:
    program = browser.find()
    assert program is not None, "there is no Chromium"
    into.mkdir(parents=True, exist_ok=True)
    with served(site) as address:
        async with browser.Browser(program) as tab:
            for page in pages:
                for name, width, height, phone in VIEWS:
                    await tab.size(width, height, phone)
                    await tab.scheme("dark" if name == "dark" else "light")
                    await tab.open(f"{address}/{page}.html")
                    await tab.picture(into / f"{page.replace('/', '-')}-{name}.png")
            print("\n".join(tab.wrong))


if __name__ == "__main__":
    asyncio.run(pictures(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
