"""Functions are unpickled whole while other threads import their packages."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading

import pytest

from treadle.pickling._import_safe_loads import loads

SOON = 30


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that is imported slowly: its module is complete long before it is."""
    directory = tmp_path / "slow_to_import"
    directory.mkdir()
    (directory / "core.py").write_text("ready = False\ndef is_ready():\n    return ready\n")
    (directory / "__init__.py").write_text(
        "import builtins\n"
        "from slow_to_import import core\n"
        "builtins.slow_to_import_reached.set()\n"
        "builtins.slow_to_import_go_on.wait(30)\n"
        "core.ready = True\n"
    )
    import builtins

    reached, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(builtins, "slow_to_import_reached", reached, raising=False)
    monkeypatch.setattr(builtins, "slow_to_import_go_on", go_on, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    yield reached, go_on
    go_on.set()
    for name in [name for name in sys.modules if name.startswith("slow_to_import")]:
        del sys.modules[name]


def test_a_function_waits_for_the_packages_of_its_module(package):
    reached, go_on = package
    first = threading.Thread(target=importlib.import_module, args=("slow_to_import",))
    first.start()
    assert reached.wait(SOON)
    # It is complete, and anybody gets it; its package is not.
    assert sys.modules["slow_to_import.core"].ready is False
    found = []
    second = threading.Thread(
        target=lambda: found.append(loads(b"cslow_to_import.core\nis_ready\n.")())
    )
    second.start()
    second.join(0.1)  # it waits, as far as can be seen
    assert found == []
    go_on.set()
    second.join(SOON)
    first.join(SOON)
    assert found == [True]


def test_who_imports_the_outer_package_gets_the_inner_one_whole(package, tmp_path):
    reached, go_on = package
    outer = tmp_path / "slow_to_import"
    with (outer / "__init__.py").open("a") as file:
        file.write("from slow_to_import.inner import thing\n")
    (outer / "inner").mkdir()
    (outer / "inner" / "__init__.py").write_text("from slow_to_import import core\nthing = 1\n")
    (outer / "inner" / "core.py").write_text("def one():\n    return 1\n")
    failed = []

    def import_outer():
        try:
            importlib.import_module("slow_to_import")
        except ImportError as error:
            failed.append(error)

    found = []
    first = threading.Thread(target=import_outer)
    second = threading.Thread(
        target=lambda: found.append(loads(b"cslow_to_import.inner.core\none\n.")())
    )
    first.start()
    assert reached.wait(SOON)
    second.start()
    second.join(0.1)  # it waits for the outer one, and has not begun the inner one
    go_on.set()
    first.join(SOON)
    second.join(SOON)
    assert failed == []
    assert found == [1]


def test_what_a_function_imports_when_it_runs_is_imported_before():
    program = (
        "import sys\n"
        "from treadle.pickling._import_safe_loads import loads\n"
        "loads(b'cdistributed.shuffle._merge\\nmerge_unpack\\n.')\n"
        "print('dask.dataframe.multi' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert told == "True\n"


def test_what_is_not_there_is_an_import_error():
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        loads(b"cno_such_package.core\nf\n.")


def test_a_module_without_a_package():
    assert loads(b"cmath\nsqrt\n.")(4) == 2


def test_the_command_tells_its_version():
    import treadle

    command = [sys.executable, "-m", "treadle", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert told == f"treadle {treadle.__version__}\n"
