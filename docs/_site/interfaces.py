"""The reference of the Python interfaces, from docstrings: one page a module."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

# A module, the title of its page, and what only Treadle itself calls.
MODULES = {
    "treadle": ("treadle", {"processes", "sync", "threaded", "transfer", "__version__"}),
    "treadle.threaded": ("treadle.threaded", set()),
    "treadle.sync": ("treadle.sync", set()),
    "treadle.processes": ("treadle.processes", set()),
    "treadle.transfer": ("treadle.transfer", {"aio"}),
    "treadle.transfer.aio": ("treadle.transfer.aio", set()),
    "treadle.shuffle": (
        "treadle.shuffle",
        {"Agreed", "Piece", "assemble", "assemble_array", "split", "split_array"},
    ),
    "treadle.deploy": ("treadle.deploy", set()),
    "treadle.views": ("treadle.views", set()),
    "treadle.mpi": ("treadle.mpi", set()),
}


def pages() -> dict[str, str]:
    found = {
        f"api/{name}.rst": _page(name, title, without) for name, (title, without) in MODULES.items()
    }
    rows = [f"   {name}" for name in MODULES]
    found["api/index.rst"] = "\n".join(
        [
            *_title("Python interfaces", "="),
            "Every public name, from its docstring.",
            "",
            ".. toctree::",
            "   :maxdepth: 1",
            "",
            *rows,
            "",
        ]
    )
    return found


def _page(module: str, title: str, without: set[str]) -> str:
    of = importlib.import_module(module)
    lines = [*_title(title, "="), f".. automodule:: {module}", "   :no-members:", ""]
    names = [name for name in _public(of) if name not in without]
    functions = [name for name in names if not inspect.isclass(getattr(of, name))]
    classes = [name for name in names if inspect.isclass(getattr(of, name))]
    errors = [name for name in classes if issubclass(getattr(of, name), BaseException)]
    classes = [name for name in classes if name not in errors]
    for heading, some in (("Functions", functions), ("Classes", classes), ("Errors", errors)):
        if not some:
            continue
        lines += _title(heading, "-")
        for name in some:
            lines += _entry(module, name, getattr(of, name))
    return "\n".join(lines)


def _public(module: Any) -> list[str]:
    told = getattr(module, "__all__", None)
    if told is not None:
        return sorted(told, key=str.lower)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    )


def _entry(module: str, name: str, value: Any) -> list[str]:
    if not inspect.isclass(value):
        kind = "autofunction" if callable(value) else "autodata"
        return [f".. {kind}:: {module}.{name}", ""]
    lines = [f".. autoclass:: {module}.{name}", "   :no-members:", ""]
    for member in _members(value):
        raw = inspect.getattr_static(value, member)
        kind = "automethod" if _is_method(raw) else "autoattribute"
        lines += [f"   .. {kind}:: {module}.{name}.{member}", ""]
    return lines


def _is_method(raw: Any) -> bool:
    return inspect.isfunction(raw) or isinstance(raw, (classmethod, staticmethod))


def _members(kind: type) -> list[str]:
    """The members that Treadle wrote a docstring for. Those of distributed and ipyparallel have theirs."""
    found = {}
    for base in reversed(kind.__mro__):
        ours = base.__module__.split(".")[0] in ("treadle", "_core")
        for name, value in vars(base).items():
            if name.startswith("_"):
                continue
            if not ours:
                found.pop(name, None)
                continue
            inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if (_is_method(value) or isinstance(value, property)) and getattr(
                inner, "__doc__", None
            ):
                found[name] = True
            else:
                found.pop(name, None)
    return sorted(found)


def _title(text: str, line: str) -> list[str]:
    return [text, line * len(text), ""]
