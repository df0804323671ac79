"""Private parts of Dask, distributed and ipyparallel are used through ``treadle._compat`` alone."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import treadle
from treadle._compat import Contact, Library
from treadle._compat import cloudpickle as cloudpickle_parts
from treadle._compat import dask as dask_parts
from treadle._compat import distributed as distributed_parts
from treadle._compat import ipyparallel as ipyparallel_parts

PACKAGE = Path(treadle.__file__).parent
LIBRARIES = [
    parts.LIBRARY for parts in (cloudpickle_parts, dask_parts, distributed_parts, ipyparallel_parts)
]
NAMES = frozenset(library.name for library in LIBRARIES)

# Modules without an underscore, with what is below them, that no documentation tells users to import
# from. What `distributed` and `ipyparallel` themselves export is public, wherever it is defined.
INTERNAL = (
    *("dask.context", "dask.local", "dask.dataframe.dask_expr"),
    *("distributed.broker", "distributed.cluster_dump", "distributed.comm", "distributed.core"),
    *("distributed.dashboard", "distributed.diagnostics.memory_sampler"),
    *("distributed.diagnostics.task_stream", "distributed.event", "distributed.multi_lock"),
    *("distributed.objects", "distributed.preloading", "distributed.protocol"),
    *("distributed.publish", "distributed.queues", "distributed.scheduler"),
    *("distributed.semaphore", "distributed.shuffle", "distributed.threadpoolexecutor"),
    *("distributed.utils_comm", "distributed.variable", "distributed.versions"),
    *("distributed.worker", "distributed.worker_memory"),
    *("ipyparallel.client", "ipyparallel.serialize"),
)


def _has_underscore(path: str) -> bool:
    """Whether a part of a dotted path that begins at one of the libraries has an underscore."""
    library, *parts = path.split(".")
    return library in NAMES and any(
        part.startswith("_") and not part.endswith("__") for part in parts
    )


def _is_private(path: str) -> bool:
    """Whether a dotted path names a private part of one of the libraries."""
    internal = any(f"{path}.".startswith(f"{module}.") for module in INTERNAL)
    return internal or _has_underscore(path)


def violations(tree: ast.AST) -> Iterator[str]:
    """Yield the private parts that a module uses.

    These are what it imports, the attributes of what it has imported (``dask.config._x``), and strings
    that are a dotted path with an underscore (``import_module("dask._expr")``; names of settings have
    none).
    """
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                path = alias.name if alias.asname else alias.name.partition(".")[0]
                imported[alias.asname or path] = path
                if _is_private(alias.name):
                    yield f"{node.lineno}: import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                imported[alias.asname or alias.name] = path
                if _is_private(path):
                    yield f"{node.lineno}: from {node.module} import {alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names = []
            inner: ast.expr = node
            while isinstance(inner, ast.Attribute):
                names.append(inner.attr)
                inner = inner.value
            if isinstance(inner, ast.Name) and inner.id in imported:
                path = ".".join([imported[inner.id], *reversed(names)])
                if _is_private(path):
                    yield f"{node.lineno}: {path}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = node.value.split(".")
            if all(part.isidentifier() for part in parts) and _has_underscore(node.value):
                yield f"{node.lineno}: {node.value!r}"


def test_private_parts_are_used_in_one_place() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if PACKAGE / "_compat" not in path.parents:
            tree = ast.parse(path.read_text())
            found += [f"{path.relative_to(PACKAGE)}:{line}" for line in violations(tree)]
    assert not found, "these belong into treadle._compat:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from dask._expr import HLGExpr", 1),
        ("from distributed.client import _wait, wait", 1),
        ("import distributed.shuffle._core as core", 1),
        ("from distributed.core import Status", 1),
        ("import dask.config\ndask.config._x", 1),
        ("from distributed import client as c\nc.Client._run", 1),
        ("x = 'dask.dataframe.dask_expr._merge'", 1),
        ("from distributed import Status\nfrom dask.utils import key_split", 0),
        ("import dask\ndask.__version__", 0),
        ("from treadle._compat.dask import Task\nx._y", 0),
        ("'dask._expr is private'", 0),
        ("'distributed.comm.timeouts.connect'", 0),
    ],
)
def test_the_rule(source: str, count: int) -> None:
    assert len(list(violations(ast.parse(source)))) == count


@pytest.mark.parametrize(
    ("library", "name"),
    [(library, name) for library in LIBRARIES for name in library.contacts],
    ids=lambda value: getattr(value, "name", value),
)
def test_what_is_installed_has_it(library: Library, name: str) -> None:
    if name == "task_stream_figure":
        pytest.importorskip("bokeh")  # the pages of distributed need it
    library.find(name)


def test_every_contact_is_used() -> None:
    used = set()
    for path in PACKAGE.rglob("*.py"):
        if PACKAGE / "_compat" not in path.parents:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                    "treadle._compat."
                ):
                    used.update((node.module, alias.name) for alias in node.names)
    unused = [
        (library.name, name)
        for library in LIBRARIES
        for name in library.contacts
        if (f"treadle._compat.{library.name}", name) not in used
        and name not in {**dask_parts.NODES, **dask_parts.PATCHED, **ipyparallel_parts.CANNED}
    ]
    assert not unused


def made_up(monkeypatch: pytest.MonkeyPatch, version: str) -> Library:
    """A library of one module, which has ``there``."""
    module = ModuleType("looms")
    module.__version__ = version  # type: ignore[attr-defined]
    module.there = 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "looms", module)
    contacts = {
        "attribute": Contact("looms:there", "weave", ("_shuttle",)),
        "gone": Contact("looms:_gone", "weave"),
        "module": Contact("looms._warp", "weave"),
        "there": Contact("looms:there", "weave"),
    }
    return Library("looms", "2.0", "2.9", "looms>=2", contacts)


def test_an_old_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match=r"looms 1\.11 is too old .* pip install 'looms>=2'"):
        made_up(monkeypatch, "1.11").find("there")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    looms = made_up(monkeypatch, "2.1")
    monkeypatch.setitem(sys.modules, "looms", None)
    with pytest.raises(ImportError, match=r"not installed: pip install 'looms>=2'"):
        looms.find("there")


@pytest.mark.parametrize("name", ["gone", "module", "attribute"])
def test_what_a_new_library_has_not_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    looms = made_up(monkeypatch, "2.10.0+4.gabc")
    assert looms.find("there") == 1
    with pytest.raises(ImportError, match=r"newer than 2\.9, .*'looms<=2\.9'"):
        looms.find(name)


def test_what_somebody_has_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match=r"no looms\._gone, .* need.* to weave; .*reinstall"):
        made_up(monkeypatch, "2.5").find("gone")


def test_only_contacts_are_attributes() -> None:
    for library in LIBRARIES:
        parts = importlib.import_module(f"treadle._compat.{library.name}")
        with pytest.raises(AttributeError):
            parts.nothing_of_this_name  # noqa: B018
