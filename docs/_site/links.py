"""Change what is written for a reader of the repository to what the site has."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!https?:|#|/)([^)#\s]+)(#[^)\s]*)?\)")
# The page that is made from a file.
MADE = {"docs/_site/reasons.toml": "generated/distributed.md"}
# What only the site can say, such as a link to a page that is made from code.
ONLY = re.compile(r"<!-- site: (.+?) -->")
PART = re.compile(r"<!-- README: (.+?) -->")


def for_site(_app: Any, page: str, source: list[str]) -> None:
    text = PART.sub(lambda found: section(found[1]), ONLY.sub(r"\1", source[0]))
    if page.startswith("pictures/"):
        # The programs in bench/ write tables without a title.
        text = f"# Figures: {page.removeprefix('pictures/').replace('/', ', ')}\n\n{text}"
    folder = posixpath.dirname(page)
    source[0] = LINK.sub(lambda found: _link(folder, found), text)


def section(name: str) -> str:
    """The text of a section of README.md, with links as if it stood in docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if name == "Treadle":
        part = text.partition("# Treadle\n")[2]
    else:
        part = text.partition(f"\n## {name}\n")[2]
    part = part.partition("\n## ")[0]
    if not part:
        raise ValueError(f"README.md has no section {name!r}")
    return LINK.sub(
        lambda found: f"[{_words(found[1])}]({_in_docs(found[2])}{found[3] or ''})", part
    )


def _in_docs(path: str) -> str:
    return f"/{path.removeprefix('docs/')}" if path.startswith("docs/") else f"/../{path}"


def _link(folder: str, found: re.Match[str]) -> str:
    words, path, anchor = found[1], found[2], found[3] or ""
    place = posixpath.normpath(posixpath.join("docs", folder, path))
    if place == "README.md":
        return f"[{words}](/index.md)"
    if place in MADE:
        return f"[{words}](/{MADE[place]})"
    if (ROOT / place).is_dir():
        # The site has no page for a folder.
        return words
    return f"[{_words(words)}]({path}{anchor})"


def _words(words: str) -> str:
    """In place of the name of a file the title of its page, which MyST fills in."""
    return "" if words.endswith(".md") else words


def for_docstring(
    _app: Any, _kind: str, _name: str, _value: Any, _options: Any, lines: list[str]
) -> None:
    """Docstrings name pages as files of the repository."""
    for at, line in enumerate(lines):
        lines[at] = re.sub(r"``?docs/([\w/-]+)\.md``?", r":doc:`/\1`", line)
        lines[at] = re.sub(r"(?<!`)\bdocs/([\w/-]+)\.md\b", r":doc:`/\1`", lines[at])
        # Pages of distributed, in docstrings that Treadle's methods have from it.
        lines[at] = re.sub(r":(?:doc|ref):`([^`</]+?)(?: <[^`>]*>)?`", r"\1", lines[at])
