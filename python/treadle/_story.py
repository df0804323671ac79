"""What the scheduler remembers of keys, in distributed's form."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

__all__ = ["told"]

# States of tasks that distributed has other names for.
_STATES = {"ready": "queued", "assigned": "processing", "failed": "erred"}


def told(steps: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the answer to "story" as transitions: (key, from, to, more, cause, time)."""
    before: dict[Hashable, str] = {}
    story = []
    for step in steps:
        key, state = step["key"], _STATES.get(step["state"], step["state"])
        more = {"worker": step["worker"]} if step["worker"] else {}
        cause = f"event-{step['cause']}"
        story.append((key, before.get(key, "forgotten"), state, more, cause, step["time"]))
        before[key] = state
    return story
