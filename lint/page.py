"""Check that ``page/dist`` was built from the sources beside it, and stays small.

Nobody who builds the extension needs Node: the built files are in the repository. ``--write`` notes what they were
built from (``make page``).
"""

from __future__ import annotations

import gzip
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

PAGE = Path("page")
DIST = PAGE / "dist"
NOTE = DIST / "digests.txt"
BUILT = ("assets/page.css", "assets/page.js", "index.html")
# Bytes of all files, compressed.
MOST = 150_000


def sources() -> Iterator[Path]:
    """Yield what the page is built from."""
    settings = (
        "index.html",
        "package-lock.json",
        "package.json",
        "tsconfig.json",
        "vite.config.ts",
    )
    yield from (PAGE / name for name in settings)
    yield from sorted(path for path in (PAGE / "src").rglob("*") if path.is_file())


def digest(paths: Iterator[Path]) -> str:
    """Return one digest of the names and contents of files."""
    whole = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        whole.update(f"{path.relative_to(PAGE).as_posix()} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def note() -> str:
    """Return what `NOTE` has to say now."""
    return f"sources {digest(sources())}\nbuilt {digest(DIST / name for name in BUILT)}\n"


def wrong() -> Iterator[str]:
    """Yield what is wrong, a line each."""
    missing = [name for name in (*BUILT, NOTE.name) if not (DIST / name).is_file()]
    if missing:
        yield f"page/dist lacks {', '.join(missing)}: run make page"
        return
    there = {str(path.relative_to(DIST)) for path in DIST.rglob("*") if path.is_file()}
    for name in sorted(there - {*BUILT, NOTE.name}):
        yield f"page/dist/{name} is no part of the page: lint/page.py and the extension know {', '.join(BUILT)}"
    if NOTE.read_text(encoding="utf-8") != note():
        yield "page/dist was not built from the files in page/: run make page, and commit what it writes"
    size = sum(len(gzip.compress((DIST / name).read_bytes(), mtime=0)) for name in BUILT)
    if size > MOST:
        yield f"page/dist has {size} bytes compressed; the page has at most {MOST}"


def main() -> None:
    if "--write" in sys.argv[1:]:
        NOTE.write_text(note(), encoding="utf-8")
    lines = list(wrong())
    for line in lines:
        print(line, file=sys.stderr)
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
