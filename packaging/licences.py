"""Collect the licences of the crates that are linked into the extension.

``collect()`` writes ``python/treadle/THIRD-PARTY-LICENSES.txt``, which wheels carry: each text once, with
the crates that it is of. A crate whose archive has no text is named with its licence.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WRITTEN = ROOT / "python" / "treadle" / "THIRD-PARTY-LICENSES.txt"
TEXTS = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")
PACKAGE = "treadle-python"


def collect(target: str) -> None:
    """Write the licences of what is linked on ``target`` (``x86_64-unknown-linux-gnu``)."""
    crates_of: dict[str, list[str]] = defaultdict(list)
    for crate in _linked(target):
        name = f"{crate['name']} {crate['version']} ({crate['license'] or 'see its text'})"
        texts = _texts(Path(crate["manifest_path"]).parent)
        for text in texts or [f"The archive has no text. It is licensed under {crate['license']}."]:
            crates_of[text].append(name)
    parts = [
        "\n".join(["=" * 80, *sorted(crates), "=" * 80, "", text, ""])
        for text, crates in sorted(crates_of.items(), key=lambda item: sorted(item[1]))
    ]
    head = "Treadle's extension contains the crates below, under these licences.\n\n"
    WRITTEN.write_text(head + "\n".join(parts), encoding="utf-8")


def _linked(target: str) -> list[dict[str, Any]]:
    """The foreign crates that the extension depends on at run time."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", target]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    metadata = json.loads(output)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    (first,) = (key for key, package in packages.items() if package["name"] == PACKAGE)
    reached = {first}
    waiting = [first]
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            if is_linked and dependency["pkg"] not in reached:
                reached.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    foreign = [packages[key] for key in reached if packages[key]["source"] is not None]
    return sorted(foreign, key=lambda package: (package["name"], package["version"]))


def _texts(folder: Path) -> list[str]:
    files = sorted(path for path in folder.iterdir() if path.name.upper().startswith(TEXTS))
    return [
        path.read_text(encoding="utf-8", errors="replace").strip()
        for path in files
        if path.is_file()
    ]
