"""Preload scripts of Dask's configuration, for workers, nannies and schedulers."""

from __future__ import annotations

import textwrap

import dask
import pytest

import treadle
from client_support import AGAINST, SOON

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="distributed has its own tests")


@pytest.fixture
def script(tmp_path):
    """A script that notes what it was called with, and when it ended."""
    path = tmp_path / "script.py"
    path.write_text(
        textwrap.dedent(
            f"""
            import click

            def note(text):
                with open({str(tmp_path / "notes")!r}, "a") as file:
                    file.write(text + "\\n")

            @click.command()
            @click.argument("name")
            @click.option("--shout", is_flag=True)
            def dask_setup(server, name, shout):
                kind = server.__class__.__name__
                note(f"{{kind}} {{name}} {{shout}}")
                server.greeting = f"{{kind}} {{name}}"
                if kind == "Nanny":
                    server.env["SET_BY_NANNY"] = name

            def dask_teardown(server):
                note(f"{{server.__class__.__name__}} ends")
            """
        )
    )
    return path


@pytest.fixture
def notes(tmp_path):
    def read():
        return sorted((tmp_path / "notes").read_text().splitlines())

    return read


def configured(script, *kinds):
    found = {}
    for kind in kinds:
        found[f"distributed.{kind}.preload"] = [str(script)]
        found[f"distributed.{kind}.preload-argv"] = [f"the-{kind}", "--shout"]
    return dask.config.set(found)


def greeting_of_worker(dask_worker):
    import os

    return dask_worker.greeting, os.environ.get("SET_BY_NANNY")


@pytest.mark.parametrize("workers", [None, 1], ids=["threads", "processes"])
def test_a_local_cluster_runs_them(script, notes, workers):
    kinds = ("worker", "scheduler", "nanny")
    with (
        configured(script, *kinds),
        treadle.Client(workers=workers, set_as_default=False) as client,
    ):
        (found,) = client.run(greeting_of_worker).values()
        assert found == ("Worker the-worker", "the-nanny" if workers else None)
        greeting = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.greeting)
        assert greeting == "SchedulerStandIn the-scheduler"
        if workers:
            nannies = client.run(lambda dask_worker: dask_worker.greeting, nanny=True)
            assert list(nannies.values()) == ["Nanny the-nanny"]
    expected = ["Worker the-worker True", "SchedulerStandIn the-scheduler True"]
    expected += ["Nanny the-nanny True"] if workers else []
    expected += [f"{line.split()[0]} ends" for line in expected]
    assert notes() == sorted(expected)


def test_commands_run_them(start, secret, script, monkeypatch):
    for kind in ("WORKER", "SCHEDULER", "NANNY"):
        monkeypatch.setenv(f"DASK_DISTRIBUTED__{kind}__PRELOAD", str(script))
        monkeypatch.setenv(f"DASK_DISTRIBUTED__{kind}__PRELOAD_ARGV", f"['the-{kind}']")
    scheduler = start("scheduler", "127.0.0.1:0")
    worker = start("worker", scheduler.address, "--nanny")
    assert "does not read" not in scheduler.output + worker.output
    with treadle.Client(scheduler.address, secret=secret, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=SOON)
        (found,) = client.run(greeting_of_worker).values()
        assert found == ("Worker the-WORKER", "the-NANNY")
        greeting = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.greeting)
        assert greeting == "SchedulerStandIn the-SCHEDULER"


def test_an_option_counts_more(script, tmp_path):
    other = tmp_path / "other.py"
    other.write_text("def dask_setup(worker): worker.greeting = 'other'")
    with (
        configured(script, "worker"),
        treadle.Client(workers=1, preload=str(other), set_as_default=False) as client,
    ):
        assert [found for found, _ in client.run(greeting_of_worker).values()] == ["other"]


@pytest.mark.parametrize("kind", ["worker", "scheduler", "nanny"])
def test_one_that_is_missing_is_an_error(kind):
    with (
        dask.config.set({f"distributed.{kind}.preload": ["no.such.module"]}),
        pytest.raises((ImportError, RuntimeError), match=r"no\.such|No module named 'no'"),
    ):
        treadle.LocalCluster(workers=1)


def test_what_is_no_script_is_refused():
    with (
        dask.config.set({"distributed.scheduler.preload": 3}),
        pytest.raises(TypeError, match=r"distributed\.scheduler\.preload is 3"),
    ):
        treadle.LocalCluster(workers=0)
