"""A page of a cluster that is one file: it holds its answers, and asks nobody."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from treadle.sight._pages import Pages, PagesError
from treadle.sight._since import since

__all__ = ["made_of"]

# Bytes of all that is held, compressed and as text: with the page's own files less than 2 MB.
_MOST = 1_700_000
# Pixels of a picture: as many as fit.
_WIDTHS = (1 << 15, 1 << 13, 1 << 11, 1 << 9)
# The shares of the lines of logs that are left, one after the other, and the errors that keep their traceback then.
_PARTS = (0.5, 0.1, 0.0)
_FEW = 20
# Spans of which all is known that the cluster knows.
_MOST_SPANS = 300
_RECTANGLE = struct.Struct("<IIffHH")
_TASK, _FETCH = 0, 2
# What the page asks with no more than a path.
_PATHS = ("/sight/transfers", "/sight/profile", "/sight/logs", "/sight/errors")
# What it may do in a browser: run what is in the file, and ask nobody.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def made_of(pages: Pages, *, before: Mapping[str, Any] | None = None, code: str = "") -> str:
    """Return the HTML of a report: at most 2 MB, for who opens it without a cluster.

    Parameters
    ----------
    pages
        Those of the cluster, or of a history.
    before
        What :func:`answers` returned before: then the report is about what came after it.
    code
        What was computed, to be shown.

    Raises
    ------
    PagesError
        The pages are not to be had, or nothing is recorded.
    """
    if before is None:
        found = answers(pages)
    else:
        found = since(before, answers(pages, before["sight/overview"]["now"]))
    overview = found["sight/overview"]
    overview["live"] = False
    for worker in overview["workers"]:
        worker.pop("heard", None)
    spans = overview["spans"]
    start = spans["from"]
    window = start, max(spans["to"], start + 1) + 1
    head = {
        "version": 1,
        "report": {"made": time.time(), "code": code},
        "answers": found,
        "spans": [],
    }
    # Where pictures of the least width are too much, the older lines of logs are left out.
    for width, part in (
        *((width, 1.0) for width in _WIDTHS),
        *((_WIDTHS[-1], part) for part in _PARTS),
    ):
        if part < 1.0:
            _shorten(found, part)
        pictures = {by: _picture(pages, by, width, *window) for by in ("worker", "group")}
        head["pictures"] = {by: len(picture) for by, picture in pictures.items()}
        if not head["spans"]:
            head["spans"] = list(_longest(pages, pictures["worker"], *window))
        text = json.dumps(head).encode()
        text += b" " * (-len(text) % 4)
        whole = struct.pack("<I", len(text)) + text + b"".join(pictures.values())
        held = base64.b64encode(gzip.compress(whole, 6))
        if len(held) <= _MOST:
            break
    else:
        raise PagesError(f"the report would have {len(held)} bytes: more than {_MOST}")
    return _page(pages, held.decode())


def _shorten(found: dict[str, Any], part: float) -> None:
    """Leave out the older ones of the lines of logs, and of the tracebacks."""
    if "sight/logs" in found:
        logs = found["sight/logs"]
        # The latest come first.
        lines = logs["lines"][: int(len(logs["lines"]) * part)]
        found["sight/logs"] = {**logs, "lines": lines, "more": logs["more"] or bool(logs["lines"])}
    if "sight/errors" in found:
        errors = found["sight/errors"]
        found["sight/errors"] = {**errors, "errors": errors["errors"][:_FEW]}


def answers(pages: Pages, begin: int | None = None) -> dict[str, Any]:
    """Return what the pages say now, by path; the profile of what workers told after a moment, in nanoseconds."""
    found = {"sight/overview": pages.get("/sight/overview")}
    for path in _PATHS:
        # Not all that serve pages have all of them.
        with suppress(PagesError):
            is_part = begin is not None and path == "/sight/profile"
            found[path[1:]] = pages.get(path, f"from={begin}" if is_part else "")
    return found


def _picture(pages: Pages, by: str, width: int, start: int, stop: int) -> bytes:
    """Return a picture, with the length of its head and its own made a multiple of four bytes."""
    found = pages.fetch("/sight/spans", f"from={start}&to={stop}&width={width}&by={by}")
    return found + bytes(-len(found) % 4)


def _longest(pages: Pages, picture: bytes, start: int, stop: int) -> Iterator[Any]:
    """Yield all that is known of the tasks and transfers of a picture that took longest."""
    (length,) = struct.unpack_from("<I", picture)
    lanes = json.loads(picture[4 : 4 + length])["lanes"]
    begin = -(-(4 + length) // 4) * 4
    rest = len(picture) - begin
    rectangles = _RECTANGLE.iter_unpack(picture[begin : begin + rest // 20 * 20])
    single = [one for one in rectangles if one[4] in (_TASK, _FETCH) and one[5] == 1]
    single.sort(key=lambda one: -one[3])
    for lane, _, share, part, _, _ in single[:_MOST_SPANS]:
        middle = int(start + (share + part / 2) * (stop - start))
        within = int(part / 2 * (stop - start)) + 1
        where = f"worker={lanes[lane]['worker']}&lane={lanes[lane]['lane']}"
        with suppress(PagesError):
            yield pages.get("/sight/span", f"at={middle}&within={within}&{where}")


def _page(pages: Pages, held: str) -> str:
    """Return the page with its script, its style, and what it holds in it."""
    page = pages.fetch("/").decode()
    script = pages.fetch("/assets/page.js").decode()
    style = pages.fetch("/assets/page.css").decode()
    # In a script's strings these are the same, and end nothing.
    script = re.sub(r"</(script)", r"<\\/\1", script, flags=re.IGNORECASE).replace("<!--", "<\\!--")
    if re.search("</style", style, re.IGNORECASE):
        raise PagesError("the page's style would end early")
    parts = (
        (r"<meta charset[^>]*>", f'<meta charset="utf-8" />\n    {_meta()}'),
        (r'<link rel="stylesheet"[^>]*>', f"<style>{style}</style>"),
        (r'<script type="module" src=[^>]*></script>', f'<script type="module">{script}</script>'),
        # Base64 has nothing that would need an escape.
        (r'(<div id="page"></div>)', f'<script type="text/plain" id="held">{held}</script>\n    '),
    )
    for pattern, text in parts:
        whole = re.search(pattern, page)
        if whole is None:
            raise PagesError("these pages are of another version: their first one has another form")
        kept = whole.group(1) if whole.re.groups else ""
        page = page[: whole.start()] + text + kept + page[whole.end() :]
    return page


def _meta() -> str:
    return f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}" />'
