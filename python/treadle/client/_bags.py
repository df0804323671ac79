"""Bags of futures hold them: Dask's keep their keys alone, and a future that nobody holds is released."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from treadle.client._future import Future

__all__ = ["change_bags"]


def change_bags(module: Any) -> None:
    """Have ``from_delayed`` put the futures themselves into its graph."""
    make = module.from_delayed

    @wraps(make)
    def from_delayed(values: Any) -> Any:
        bag = make(values)
        if isinstance(values, (list, tuple)) and all(isinstance(one, Future) for one in values):
            tasks = bag.dask.layers[bag.name].mapping
            for number, future in enumerate(values):
                key = (bag.name, number)
                tasks[key] = module.Task(key, module.reify, future)
        return bag

    module.from_delayed = from_delayed
    package: Any = sys.modules.get("dask.bag")
    if getattr(package, "from_delayed", None) is make:
        package.from_delayed = from_delayed
