"""Scripts whose workers have what they define, their `__main__`, their arguments and their interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from client_support import AGAINST
from waiting import SOON

pytestmark = pytest.mark.skipif(AGAINST != "treadle", reason="scripts that use treadle")

HERE = Path(__file__).parent


def run(*command: str | Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=10 * SOON,
        **options,
    )


def written(tmp_path: Path, text: str, name: str = "script.py") -> Path:
    file = tmp_path / name
    file.write_text(textwrap.dedent(text))
    return file


def test_what_a_script_defines_gets_to_workers_and_back_in_all_ways():
    done = run(HERE / "script_by_value.py")
    assert done.stdout == "fine\n", done.stderr


# Beside a mark for each run of the script in a process.
ASKING = """
    import functools, os, pickle, sys
    import treadle

    print("run", __name__, file=sys.stderr)

    class Thing:
        def __init__(self, value):
            self.value = value

    class Other(Thing):
        pass

    class Unsent(Thing):
        pass

    SETTING = 5

    def double(x):
        return 2 * x

    def nothing(x):
        return x + 1

    def loaded(pickled):
        return pickle.loads(pickled)

    def is_own(pickled):
        return isinstance(pickle.loads(pickled), Other)

    def imported(name):
        import __main__

        return getattr(__main__, name)

    def setting():
        from __main__ import SETTING

        return SETTING

    def pickled_again(thing):
        return pickle.loads(pickle.dumps(thing)).value

    def ran(dask_worker):
        return "__mp_main__" in sys.modules

    def main():
        with treadle.Client(n_workers=2, threads_per_worker=1) as client:
            def first(*call):
                return client.submit(*call, workers=sorted(client.scheduler_info()["workers"])[0]).result()

            print(first(nothing, 1), first(functools.partial(nothing, 1)), list(client.run(ran).values()))
            # Nor is it needed to pickle what tasks return, or submit.
            print(type(client.submit(Thing, 3).result()) is Thing, first(pickled_again, Thing(4)))
            print(first(is_own, pickle.dumps(Other(1))), list(client.run(ran).values()))
            thing = first(loaded, pickle.dumps(Unsent(6)))
            print(type(thing) is Unsent, thing.value, sorted(client.run(ran).values()))
            print(first(setting), first(imported, "SETTING"), first(imported, "double") is double)
            print(first(imported, "Unsent") is Unsent, type(client.submit(imported("Thing"), 1).result()) is Thing)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("how", ["script", "module"])
def test_workers_run_the_script_once_somebody_asks_for_a_name_of_it(how, tmp_path):
    written(tmp_path, ASKING, "asking_script.py")
    command = [tmp_path / "asking_script.py"] if how == "script" else ["-m", "asking_script"]
    done = run(*command, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        "2 2 [False, False]",
        "True 4",
        "True [False, False]",
        "True 6 [False, True]",
        "5 5 True",
        "True True",
    ], done.stderr
    runs = [line for line in done.stderr.splitlines() if line.startswith("run ")]
    assert runs == ["run __main__", "run __mp_main__"]


UNGUARDED = """
    import pickle, sys
    import treadle

    class Thing:
        pass

    def loaded(pickled):
        return type(pickle.loads(pickled)).__name__

    client = treadle.Client({options})
    try:
        print(client.submit(loaded, pickle.dumps(Thing())).result())
    except AttributeError as error:
        print(error)
    client.close()
"""


@pytest.mark.parametrize("options", ["n_workers=1", "n_workers=2, threads_per_worker=1"])
def test_a_script_that_makes_a_cluster_when_it_is_imported_is_told_so(options, tmp_path):
    script = written(tmp_path, UNGUARDED.format(options=options))
    done = run(script)
    assert "Can't get attribute 'Thing'" in done.stdout, done.stderr
    assert 'under `if __name__ == "__main__":`' in done.stdout
    assert str(script) in done.stdout


def test_without_a_script_the_error_says_that_there_is_none(tmp_path):
    done = run("-c", textwrap.dedent(UNGUARDED.format(options="n_workers=1")), cwd=tmp_path)
    assert "Can't get attribute 'Thing'" in done.stdout, done.stderr
    assert "workers import nothing of a notebook" in done.stdout
    assert "put what tasks look up by name into a module that workers can import" in done.stdout


def test_a_worker_that_was_started_by_itself_says_so(start, join):
    scheduler = start("scheduler", "--port", "0")
    assert start("worker", scheduler.address).address
    client = join(scheduler)
    pickled = b"c__main__\nThing\n."
    with pytest.raises(AttributeError, match="started by itself imports no client's script"):
        client.submit(__import__("pickle").loads, pickled).result(SOON)


INTERPRETER = """
    import json, sys, warnings
    import treadle

    def interpreter():
        flags = ["optimize", "utf8_mode", "dev_mode", "no_user_site", "dont_write_bytecode"]
        found = {name: getattr(sys.flags, name) for name in flags}
        return {**found, "warn": "error::ImportWarning" in sys.warnoptions, "argv": sys.argv,
                "x": sys._xoptions.get("int_max_str_digits"), "asserts": __debug__}

    if __name__ == "__main__":
        with treadle.Client(n_workers=int(sys.argv[1]), threads_per_worker=1) as client:
            there = client.run(interpreter)
        print(json.dumps([interpreter(), *there.values()]))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [1, 2])
def test_arguments_and_flags_of_the_interpreter_are_the_parents(workers, tmp_path):
    script = written(tmp_path, INTERPRETER)
    flags = [
        "-O",
        "-W",
        "error::ImportWarning",
        "-X",
        "utf8",
        "-X",
        "dev",
        "-X",
        "int_max_str_digits=5000",
        "-s",
    ]
    done = run(*flags, script, workers, "two words", "--option")
    assert done.returncode == 0, done.stderr
    own, *others = json.loads(done.stdout)
    assert own["argv"] == [str(script), str(workers), "two words", "--option"]
    assert (own["optimize"], own["x"], own["warn"]) == (1, "5000", True)
    assert others == workers * [own]


def test_an_isolated_interpreter_has_workers_too(tmp_path):
    """They import from where it does, whatever variables it ignores."""
    script = written(
        tmp_path,
        "import sys; sys.path[:0] = sys.argv[2].split(':')\n" + textwrap.dedent(INTERPRETER),
    )
    path = ":".join(path for path in sys.path if path)
    done = run("-I", script, 1, path, env={**os.environ, "PYTHONOPTIMIZE": "1"})
    assert done.returncode == 0, done.stderr
    own, *others = json.loads(done.stdout)
    assert (own["optimize"], own["no_user_site"]) == (0, 1)
    assert others == [own]


CACHED = """
    import functools, os, pathlib, sys
    import treadle

    @functools.cache
    def slow(x):
        with open(sys.argv[1], "a") as file:
            file.write(f"{x}\\n")
        return x

    def reading(x):
        return slow(x % 2)

    if __name__ == "__main__":
        with treadle.Client(n_workers=1, threads_per_worker=1) as client:
            client.gather(client.map(slow, [3] * 20, pure=False))
            print(pathlib.Path(sys.argv[1]).read_text().split())
            client.gather([client.submit(reading, x) for x in range(20)])
            print(pathlib.Path(sys.argv[1]).read_text().split())
"""


def test_a_worker_keeps_what_a_cached_function_has_returned(tmp_path):
    done = run(written(tmp_path, CACHED), tmp_path / "calls")
    assert done.stdout.splitlines() == ["['3']", "['3', '0', '1']"], done.stderr


POOLS = """
    import multiprocessing, sys
    import treadle

    def doubled(x):
        return 2 * x

    def pooled(method, by_name):
        with multiprocessing.get_context(method).Pool(1) as pool:
            if by_name:
                import __main__

                return pool.map(__main__.doubled, [1, 2])
            return pool.map(abs, [-1, -2])

    if __name__ == "__main__":
        with treadle.Client(n_workers=1, threads_per_worker=1) as client:
            for method in ("fork", "spawn"):
                for by_name in (False, True):
                    print(client.submit(pooled, method, by_name).result())
"""


def test_processes_that_a_task_starts_have_the_script_where_the_task_asked_for_it(tmp_path):
    done = run(written(tmp_path, POOLS))
    assert done.stdout.splitlines() == ["[1, 2]", "[2, 4]"] * 2, done.stderr


# A decorator makes another class of it, to which a method of the first one still refers.
REPLACED = """
    import dataclasses, pickle
    import treadle

    @dataclasses.dataclass(frozen=True, slots=True)
    class Point:
        x: int

    def is_own(kind, pickled):
        return type(pickle.loads(pickled)) is kind

    def again(kind):
        return pickle.loads(pickle.dumps(kind(2))).x

    if __name__ == "__main__":
        with treadle.Client(n_workers=1, threads_per_worker=1) as client:
            print(client.submit(is_own, Point, pickle.dumps(Point(1))).result())
            print(client.submit(again, Point).result())
"""


def test_a_class_that_a_decorator_replaced_is_the_last_one(tmp_path):
    done = run(written(tmp_path, REPLACED))
    assert done.stdout.split() == ["True", "2"], done.stderr
