"""Check which crates stand on which: six parts in five layers (docs/ARCHITECTURE.md).

A dependency goes to a lower layer, or stays in its part. A pure crate (``#![no_std]``) stands on pure crates alone.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

# The layers, the lowest first: the folders of `crates/` that are in each.
LAYERS = (("common",), ("transfer",), ("broadcast", "shuffle"), ("schedule",), ("python",))

PURE = re.compile(r"^#!\[(cfg_attr\(.*, )?no_std\)?\]$", re.MULTILINE)


def crates() -> dict[str, list[str]]:
    """Return the crates by their folder below ``crates/``, each with those that it stands on (not for its tests)."""
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps", "--offline", "--locked"]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[
        "packages"
    ]
    root = Path("crates").resolve()
    inside = [package for package in packages if root in Path(package["manifest_path"]).parents]
    folders = {
        package["name"]: str(Path(package["manifest_path"]).parent.relative_to(root))
        for package in inside
    }
    return {
        folders[package["name"]]: [
            folders[dependency["name"]]
            for dependency in package["dependencies"]
            if dependency["name"] in folders and dependency["kind"] != "dev"
        ]
        for package in inside
    }


def is_pure(head: Path) -> bool:
    """Return whether the crate with this file can do nothing but compute."""
    return head.exists() and bool(PURE.search(head.read_text()))


def wrong(stands_on: dict[str, list[str]]) -> list[str]:
    """Return what is wrong, a line each."""
    layer = {part: level for level, parts in enumerate(LAYERS) for part in parts}
    part = {folder: folder.partition("/")[0] for folder in stands_on}
    lines = [f"crates/{folder} is in no part" for folder in part if part[folder] not in layer]
    if lines:
        return lines
    pure = {folder for folder in stands_on if is_pure(Path("crates") / folder / "src" / "lib.rs")}
    for one, other in ((one, other) for one, others in stands_on.items() for other in others):
        above, below = part[one], part[other]
        if above != below and layer[below] >= layer[above]:
            lines.append(f"crates/{one} depends on crates/{other}, which is no lower layer")
        if one in pure and other not in pure:
            lines.append(f"crates/{one} is pure, and stands on crates/{other}, which is not")
    return lines


def main() -> None:
    """Print what is wrong, and fail if anything is."""
    if lines := wrong(crates()):
        raise SystemExit("\n".join(lines))


if __name__ == "__main__":
    main()
