"""The interpreter of a worker process is as this one: its flags."""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["flags", "variables"]


def flags() -> list[str]:
    """Return the options that this interpreter was started with, as ``multiprocessing`` finds them.

    ``-E`` and ``-I`` are not among them: workers are told by variables where to import from.
    """
    of_module = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    found = [flag for flag in of_module if flag not in ("-E", "-I", "-P")]
    if sys.flags.isolated:
        found.append("-s")
    if sys.version_info >= (3, 11):
        # Without it, the interpreter would look for modules in the working directory first.
        found.append("-P")
    for name, value in sys._xoptions.items():
        option = name if value is True else f"{name}={value}"
        if option not in found:
            found += ["-X", option]
    return found


def variables() -> dict[str, str]:
    """Return the variables of this process's environment, without those that its interpreter ignores."""
    if not sys.flags.ignore_environment:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
