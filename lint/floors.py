"""Check which crates stand on which: six rooms on five floors (docs/ARCHITECTURE.md).

An arrow goes down, or stays in its room. A pure crate (``#![no_std]``) stands on pure crates alone, and the core of a
plane on nothing else of it. What is wrong today stands in ``ALLOWED``, which may only become shorter.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

# The floors, the lowest first, each with its rooms, and the folders below `crates/` that belong to a room.
FLOORS: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        "common": (
            "types",
            "guards",
            "graph",
            "memory",
            "reactor",
            "security",
            "volume",
            "log",
            "codec",
            "sim/kernel",
        )
    },
    {"transfer": ("transfer", "net", "host")},
    {
        "broadcast": ("broadcast", "broadcast-wire", "node/broadcast", "sim/broadcast"),
        "shuffle": (
            "shuffle",
            "shuffle-wire",
            "rows",
            "compress",
            "records",
            "node/shuffle",
            "node/service",
            "sim/shuffle",
        ),
    },
    {
        "schedule": (
            *("scheduler", "server", "worker", "client", "messages", "store", "sim"),
            *("node/wire", "node/server", "node/worker", "node/client", "node/tests"),
        )
    },
    {"python": ("interpreter", "dask", "engine", "serialise", "recipe", "python")},
)

PURE = re.compile(r"^#!\[(cfg_attr\(.*, )?no_std\)?\]$", re.MULTILINE)

# What may stand on what it should not, today: (crate, crate below it).
ALLOWED: set[tuple[str, str]] = set()


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
    floor = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
    room = {
        folder: name for rooms in FLOORS for name, folders in rooms.items() for folder in folders
    }
    pure = {folder for folder in stands_on if is_pure(Path("crates") / folder / "src" / "lib.rs")}
    lines = [
        f"crates/{folder} is in no room of lint/floors.py"
        for folder in stands_on
        if folder not in room
    ]
    lines += [
        f"lint/floors.py names crates/{folder}, which is not there"
        for folder in room
        if folder not in stands_on
    ]
    if lines:
        return lines
    arrows = [(one, other) for one, others in stands_on.items() for other in others]
    found = set()
    for one, other in arrows:
        above, below = room[one], room[other]
        if above != below and floor[below] >= floor[above]:
            found.add((one, other))
            if (one, other) not in ALLOWED:
                lines.append(
                    f"crates/{one} ({above}) stands on crates/{other} ({below}): an arrow goes down"
                )
        if one in pure and other not in pure:
            lines.append(f"crates/{one} is pure, and stands on crates/{other}, which is not")
    lines += [
        f"lint/floors.py allows {one} → {other}, which is not needed any more"
        for one, other in ALLOWED - found
    ]
    return lines


def main() -> None:
    """Print what is wrong, and fail if anything is."""
    if lines := wrong(crates()):
        raise SystemExit("\n".join(lines))


if __name__ == "__main__":
    main()
