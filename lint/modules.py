"""Check that the tables of modules in the heads of Rust files name the modules that are there.

A table begins with ``//! | module | …``. Each name in backticks in its first column must be a ``mod`` of that file,
and each ``mod`` must stand in the table, but for those that every crate has and nobody looks for.
"""

from __future__ import annotations

import re
from pathlib import Path

# What every core has, and what tests need, explain themselves.
UNNAMED = {
    *("check", "config", "effect", "error", "event", "failure", "guard", "options"),
    *("fuzzing", "testing", "tests"),
}
ROW = re.compile(r"//! \|(?P<names>[^|]*)\|")
NAME = re.compile(r"`(\w+)`")
MODULE = re.compile(r"(?:pub(?:\([a-z ]+\))? )?mod (\w+)(?:;| \{)")


def differences(path: Path) -> list[str]:
    """Return what the table of a file says wrongly, a line each."""
    text = path.read_text()
    if "//! | module |" not in text:
        return []
    table = text.split("//! | module |", 1)[1].split("\n//!\n", 1)[0]
    rows = [match["names"] for line in table.splitlines() if (match := ROW.match(line))]
    named = {name for row in rows for name in NAME.findall(row)}
    modules = {match[1] for line in text.splitlines() if (match := MODULE.match(line))}
    return [
        *(f"{path}: the table names `{name}`, which is not there" for name in named - modules),
        *(f"{path}: the table lacks `{name}`" for name in modules - named - UNNAMED),
    ]


def main() -> None:
    """Print each difference, and fail if there is one."""
    wrong = [line for path in sorted(Path("crates").rglob("*.rs")) for line in differences(path)]
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
