"""Dask's configuration, handed to the worker processes that a client starts."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import dask.config

from treadle.shuffle._default_method import Unchosen

__all__ = ["inherited"]

logger = logging.getLogger("treadle.client")

# Where Dask looks for what a process inherits.
_VARIABLE = "DASK_INTERNAL_INHERIT_CONFIG"

# What a client sets for its own process.
_OWN = frozenset(["scheduler", "scheduler-address"])

# Linux has no longer variables than 128 KiB.
_LONGEST = 100_000


def inherited() -> dict[str, str]:
    """Return the environment that has a new process begin with this one's configuration.

    It says where that differs from Dask's defaults. Values that JSON cannot carry stay here, with a
    warning that names them.
    """
    defaults = dask.config.merge(*dask.config.defaults)
    left: list[str] = []
    own = {name: value for name, value in dask.config.config.items() if name not in _OWN}
    changed = _changed(own, defaults, "", left)
    text = dask.config.serialize(changed) if changed else ""
    if len(text) > _LONGEST:
        left, text = ["all of it: it is too long"], ""
    if left:
        logger.warning("Workers do not inherit of Dask's configuration: %s", ", ".join(left))
    return {_VARIABLE: text} if text else {}


def _changed(
    config: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str, left: list[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        default = defaults.get(name)
        if isinstance(value, Mapping):
            inner = default if isinstance(default, Mapping) else {}
            if below := _changed(value, inner, f"{prefix}{name}.", left):
                found[name] = below
        elif isinstance(value, Unchosen) or (name in defaults and value == default):
            continue
        else:
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                left.append(f"{prefix}{name}")
            else:
                found[name] = value
    return found
