"""Count the lines of Rust in ``crates/*/src`` by crate: what they are.

``--check`` prints what is too long instead, and fails if that is a crate or a file. Of a crate its code counts alone:
tests and comments are no reason to cut one. A function may be long for a reason: a match with an arm for each message,
a structure with a line for each field.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from pathlib import Path

KINDS = ("code", "tests", "comments", "blank")
LARGEST_CRATE, LARGEST_FILE, LARGEST_FUNCTION = 10_000, 800, 80
FUNCTION = re.compile(r"( *)(pub(\([a-z]+\))? )?(const )?(async )?(unsafe )?fn (\w+)")
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


def long_functions(path: Path) -> list[tuple[str, int]]:
    """Return the names and lengths of functions past the limit. The code is formatted, so indentation says where one ends."""
    found = []
    name, indent, begin = "", "", 0
    for number, line in enumerate(path.read_text().splitlines()):
        if begun := FUNCTION.match(line):
            indent, name, begin = begun.group(1), begun.group(7), number
        elif name and line == indent + "}":
            if number - begin >= LARGEST_FUNCTION:
                found.append((name, number - begin + 1))
            name = ""
    return found


def main() -> None:
    """Print a line for each crate, the largest first, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path("."))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    crates: defaultdict[str, Counter[str]] = defaultdict(Counter)
    files: dict[Path, int] = {}
    for path in arguments.root.glob("crates/**/src/**/*.rs"):
        lines = count(path)
        files[path] = lines.total()
        crates[str(path.relative_to(arguments.root / "crates")).split("/src/")[0]] += lines
    if arguments.check:
        too_long = [
            f"crates/{name}: {lines['code']} lines of code"
            for name, lines in crates.items()
            if lines["code"] > LARGEST_CRATE
        ]
        too_long += [
            f"{path}: {lines} lines" for path, lines in files.items() if lines > LARGEST_FILE
        ]
        if too_long:
            raise SystemExit(
                "\n".join(
                    [
                        "Too long (10,000 lines of code a crate, 800 a file): cut along a concept.",
                        *too_long,
                    ]
                )
            )
        functions = [(lines, path, name) for path in files for name, lines in long_functions(path)]
        for lines, path, name in sorted(functions, reverse=True):
            print(f"{path}: {name} has {lines} lines")
        return
    crates["all"] = sum(crates.values(), Counter())
    print(f"{'crate':20}{'lines':>8}" + "".join(f"{kind:>10}" for kind in KINDS))
    for name, lines in sorted(crates.items(), key=lambda crate: -crate[1].total()):
        print(f"{name:20}{lines.total():8}" + "".join(f"{lines[kind]:10}" for kind in KINDS))


if __name__ == "__main__":
    main()
