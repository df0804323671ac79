"""Private parts of cloudpickle."""

from __future__ import annotations

from typing import Any

from treadle._compat import Contact, Library

__all__ = ["LIBRARY"]

LIBRARY = Library(
    "cloudpickle",
    oldest="3.0.0",
    newest="3.1.2",
    requirement="cloudpickle>=3",
    contacts={
        "classes_by_id": Contact(
            "cloudpickle.cloudpickle:_DYNAMIC_CLASS_TRACKER_BY_ID",
            "find classes of a script that were pickled by value",
            ("valuerefs",),
        ),
    },
)


def __getattr__(name: str) -> Any:
    found = LIBRARY.find(name)
    globals()[name] = found
    return found
