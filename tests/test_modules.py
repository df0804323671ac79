"""Every module can be imported, and has every name that it says is public."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import treadle
import treadle.shuffle

# What is run: its module begins with it.
RUN = "__main__"
# It needs a package that the tests are run without.
OPTIONAL = {"treadle.hosting._ray"}
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(treadle.__path__, "treadle.")
    if not module.name.endswith(RUN) and module.name not in OPTIONAL
)


@pytest.mark.parametrize("name", ["treadle", *MODULES])
def test_a_module_has_what_it_says(name: str) -> None:
    module = importlib.import_module(name)
    missing = [public for public in getattr(module, "__all__", ()) if not hasattr(module, public)]
    assert not missing


def test_what_is_imported_late_is_there() -> None:
    assert all(hasattr(treadle.shuffle, name) for name in treadle.shuffle._MODULES)


def test_what_the_extension_imports_is_there() -> None:
    """It imports when it needs something: a module that has moved would end the process then."""
    crates = Path(__file__).parents[1] / "crates" / "python"
    text = "\n".join(path.read_text() for path in crates.rglob("*.rs"))
    errors = set(re.findall(r"import_exception!\((treadle[\w.]+), (\w+)\)", text))
    modules = set(re.findall(r'"(treadle(?:\.\w+)+)"', text))
    assert len(errors) > 10 < len(modules)
    for module in modules:
        importlib.import_module(module)
    assert all(hasattr(importlib.import_module(module), name) for module, name in errors)
