"""Count the lines of Rust in ``crates/*/src`` by crate: what they are."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

KINDS = ("code", "tests", "comments", "blank")
TESTS = re.compile(r"/(tests?|testing|fuzzing)(/|\.rs$)")


def count(path: Path) -> Counter[str]:
    """Count the lines of a file. Tests are files with such names, and items behind ``cfg(test)``."""
    lines: Counter[str] = Counter()
    is_test_file = bool(TESTS.search(str(path)))
    is_announced, depth = False, 0
    for line in path.read_text().splitlines():
        text = line.strip()
        if not text or text.startswith("//"):
            lines["comments" if text else "blank"] += 1
            continue
        is_test = is_test_file or is_announced or depth > 0 or text == "#[cfg(test)]"
        lines["tests" if is_test else "code"] += 1
        if is_announced or depth > 0:
            depth += line.count("{") - line.count("}")
        is_announced = text == "#[cfg(test)]" or (is_announced and text.startswith("#["))
    return lines


def main() -> None:
    """Print a line for each crate, the largest first, and the sums."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    crates: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for path in root.glob("crates/**/src/**/*.rs"):
        crates[str(path.relative_to(root / "crates")).split("/src/")[0]] += count(path)
    crates["all"] = sum(crates.values(), Counter())
    print(f"{'crate':20}{'lines':>8}" + "".join(f"{kind:>10}" for kind in KINDS))
    for name, lines in sorted(crates.items(), key=lambda crate: -crate[1].total()):
        print(f"{name:20}{lines.total():8}" + "".join(f"{lines[kind]:10}" for kind in KINDS))


if __name__ == "__main__":
    main()
