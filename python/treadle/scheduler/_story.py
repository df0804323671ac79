"""What the scheduler remembers of keys, in distributed's form."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

__all__ = ["state_of", "told"]

# States of tasks that distributed has other names for.
_STATES = {
    "ready": "queued",
    "assigned": "processing",
    "retracting": "processing",
    "failed": "erred",
}


def state_of(name: str) -> str:
    """Return distributed's name for a task's state."""
    return _STATES.get(name, name)


def told(steps: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the answer to "story" as transitions: (key, from, to, more, cause, time)."""
    before: dict[Hashable, str] = {}
    story = []
    for step in steps:
        key, state = step["key"], state_of(step["state"])
        more = {"worker": step["worker"]} if step["worker"] else {}
        cause = f"event-{step['cause']}"
        story.append((key, before.get(key, "forgotten"), state, more, cause, step["time"]))
        before[key] = state
    return story
