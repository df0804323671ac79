"""What is defined in this process's script, which other processes do not have."""

from __future__ import annotations

import sys

__all__ = ["SCRIPT", "SPAWNED", "pickle_spawned_by_value"]

#: In pickles that name something of a script: of ``__main__``, or of the module below.
SCRIPT = b"_main__"

#: What a process that was started by another one calls the script of that.
SPAWNED = "__mp_main__"


def pickle_spawned_by_value() -> None:
    """Have cloudpickle pickle what that script defines as it does with ``__main__``: by value."""
    script = sys.modules.get(SPAWNED)
    # In a process that was not spawned, it is another name of `__main__`.
    if script is not None and script.__name__ == SPAWNED:
        import cloudpickle

        cloudpickle.register_pickle_by_value(script)
