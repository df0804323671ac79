"""Private parts of Ray."""

from __future__ import annotations

from typing import Any

from treadle._compat import Contact, Library

__all__ = ["LIBRARY"]

LIBRARY = Library(
    "ray",
    oldest="2.40",
    newest="2.60.0",
    requirement="ray>=2.40",
    contacts={
        # What `ray.init` returns has the same, and who has called that is somebody else.
        "get_dashboard_url": Contact(
            "ray._private.worker:get_dashboard_url", "link the dashboard of the cluster"
        ),
    },
)


def __getattr__(name: str) -> Any:
    found = LIBRARY.find(name)
    globals()[name] = found
    return found
