"""Write the pages that are made from the code into docs/generated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import commands
import distributed_names
import interfaces

INTO = Path(__file__).parents[1] / "generated"


def all_pages(_app: Any) -> None:
    pages = {
        "commands.md": commands.page(),
        "distributed.md": distributed_names.page(),
        **interfaces.pages(),
    }
    for path in INTO.rglob("*.*"):
        if str(path.relative_to(INTO)) not in pages:
            path.unlink()
    for name, text in pages.items():
        path = INTO / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Sphinx reads again what is newer.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
