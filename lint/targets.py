"""Check that a library is compiled for tests, and goes through rustdoc, exactly where it has tests and examples.

Each of both takes as long as to compile it once more. ``test = false`` and ``doctest = false`` say that there are none.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# `kept!` has the tests of a fuzz target.
TESTS = re.compile(r"^\s*#\[test\]|\b(proptest! \{|kept!\()", re.MULTILINE)
FENCE = re.compile(r"^\s*//[/!] ```(.*)$", re.MULTILINE)
# Code blocks that rustdoc leaves alone.
OTHER = {"text", "sh"}


def libraries() -> Iterator[dict[str, Any]]:
    """Yield what Cargo knows of each library."""
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline", "--locked"]
    known = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for package in known["packages"]:
        yield from (
            target for target in package["targets"] if target["src_path"].endswith("lib.rs")
        )


def has_example(source: str) -> bool:
    """Return whether rustdoc finds an example: the first fence of a pair has the language."""
    return any(language not in OTHER for language in FENCE.findall(source)[::2])


def wrong(library: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong, a line each."""
    sources = [path.read_text() for path in Path(library["src_path"]).parent.rglob("*.rs")]
    there = {
        "test": any(map(TESTS.search, sources)),
        "doctest": any(map(has_example, sources)),
    }
    for setting, is_there in there.items():
        if library[setting] != is_there:
            yield f"library {library['name']}: set {setting} = {str(is_there).lower()} in its Cargo.toml"


def main() -> None:
    lines = [line for library in libraries() for line in wrong(library)]
    for line in lines:
        print(line, file=sys.stderr)
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
