"""Treadle as Dask's scheduler."""

from __future__ import annotations

import subprocess
import sys
import threading

import dask
import dask.array as da
import dask.bag as db
import dask.base
import pytest
from dask import delayed

import treadle


def thread_name() -> str:
    return threading.current_thread().name


def test_names():
    assert delayed(thread_name)().compute(scheduler="treadle").startswith("treadle-")
    assert delayed(thread_name)().compute(scheduler="treadle-sync") == thread_name()


@pytest.mark.parametrize(
    "modules", ["dask, treadle", "treadle, dask", "treadle, dask.array as da, dask"]
)
def test_names_are_known_without_a_call(modules):
    code = f"""
import {modules}
for name in ("treadle", "treadle-sync"):
    assert dask.delayed(abs)(-1).compute(scheduler=name) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_each_module_may_be_the_first_that_imports_dask():
    public = ["deploy", "processes", "shuffle.service", "sync", "transfer", "views"]
    modules = [*treadle._MODULES, *(f"treadle.{name}" for name in public)]
    code = f"""
import importlib, os
import treadle

for module in {modules}:
    if os.fork():
        assert os.wait()[1] == 0, module
        continue
    try:
        importlib.import_module(module)
        import dask
        assert dask.delayed(abs)(-1).compute(scheduler="treadle") == 1
        os._exit(0)
    finally:
        os._exit(1)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_installed_and_undone():
    with treadle.installed():
        assert dask.base.named_schedulers["treadle"] is treadle.get is treadle.threaded.get
        assert delayed(thread_name)().compute().startswith("treadle-")
        assert (
            db.from_sequence([1]).map(lambda _: thread_name()).compute()[0].startswith("treadle-")
        )
        with treadle.installed("treadle-sync"):
            assert delayed(thread_name)().compute() == thread_name()
        assert delayed(thread_name)().compute().startswith("treadle-")
    assert not delayed(thread_name)().compute().startswith("treadle-")


def test_undone_after_an_error():
    with pytest.raises(ZeroDivisionError), treadle.installed():
        delayed(divmod)(1, 0).compute()
    assert "scheduler" not in dask.config.config


def test_install_and_uninstall_keep_what_was_configured():
    with dask.config.set(scheduler="sync"):
        treadle.install()
        assert dask.config.get("scheduler") == "treadle"
        treadle.uninstall()
        treadle.uninstall()
        assert dask.config.get("scheduler") == "sync"


def test_an_unknown_name():
    with pytest.raises(ValueError, match="'treadle-processes' or 'treadle-sync', not 'threads'"):
        treadle.install("threads")


def test_an_explicit_scheduler_wins():
    with treadle.installed():
        assert delayed(thread_name)().compute(scheduler="sync") == thread_name()


def test_persist_and_optimize():
    with treadle.installed():
        x = (da.arange(10, chunks=3) + 1).persist()
        assert len(dict(x.__dask_graph__())) == 4
        assert int(x.sum().compute()) == 55
