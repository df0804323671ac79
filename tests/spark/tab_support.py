"""The tab that Spark's interfaces have of Treadle."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


class Rows(HTMLParser):
    """The texts of the cells of a table with an id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.inside = self.in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.inside |= ("id", "treadle-shuffles") in attributes
        if self.inside and tag == "tr":
            self.rows.append([])
        if self.inside and tag in ("td", "th"):
            self.in_cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag != "table"
        self.in_cell &= tag not in ("td", "th")

    def handle_data(self, text: str) -> None:
        if self.in_cell:
            self.rows[-1][-1] += text


def check_tab(page: str, record: dict[str, Any]) -> dict[str, str]:
    """Look whether the latest shuffle of a page is as its record says. Returns the cells by their headings."""
    headings, row, *_ = Rows(page).rows
    cells = dict(zip(headings, row, strict=True))
    assert cells["Shuffle"] == record["name"]
    assert cells["Stages"] == (record.get("stages") or "")
    assert cells["Maps"] == str(record["inputs"])
    assert cells["Partitions"] == str(record["partitions"])
    assert cells["Rows"] == f"{record['rows']:,}"
    assert cells["Size"].endswith(("B", "KiB"))
    assert float(cells["Skew"]) >= 1
    assert cells["Servers"] == ", ".join(record["servers"])
    return cells
