"""Tasks that are run again in the client, for a debugger to be used on them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from treadle import _core

__all__ = ["Recipe"]


class Recipe:
    """What a task runs, as ``Client.recreate_task_locally`` gets it from the scheduler.

    Parameters
    ----------
    key
        The task's.
    told
        What the scheduler says of it: ``recipe``, ``definitions`` and ``inputs``.
    """

    def __init__(self, key: Hashable, told: Mapping[str, Any]) -> None:
        self.key = key
        self._recipe: bytes = told["recipe"]
        self._definitions: Mapping[int, bytes] = told["definitions"]
        #: The keys of its inputs, in their order.
        self.dependencies: list[Hashable] = list(told["inputs"])

    def __call__(self, values: Mapping[Hashable, Any]) -> Any:
        """Run the task with the values of its inputs; what it raises is raised."""
        inputs = [values[key] for key in self.dependencies]
        return _core.run_recipe(self._recipe, inputs, self._definitions)
