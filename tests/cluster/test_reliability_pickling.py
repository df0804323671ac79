"""What cannot be pickled, or not be read again, named with its key; the cluster goes on.

More of it is in test_client_errors.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from client_support import AGAINST, SOON, fail, identity, inc
from process_support import HERE

pytestmark = [
    pytest.mark.skipif(AGAINST != "treadle", reason="the messages are Treadle's"),
    pytest.mark.usefixtures("quiet"),
]


class Unreadable(Exception):
    """Its pickle cannot be read."""

    def __reduce__(self):
        return fail, ("no reading it",)


class Unwritable(Exception):
    """It has no pickle."""

    def __reduce__(self):
        raise TypeError("no writing it")


class Trap:
    """A value whose pickle cannot be read."""

    def __init__(self):
        self.content = bytes(5000)

    def __reduce__(self):
        return fail, ("no reading the value",)


def assert_named(error, key):
    """The key is in the message, or in a note, which exceptions have from Python 3.11 on."""
    notes = getattr(error, "__notes__", [])
    assert key in str(error) or sys.version_info < (3, 11) or any(key in note for note in notes)


def throw(kind):
    raise kind("what happened")


@pytest.fixture(autouse=True)
def goes_on(client):
    yield
    assert client.gather(client.map(inc, range(4), pure=False)) == [1, 2, 3, 4]


def test_an_exception_that_cannot_be_read_at_the_client(client):
    future = client.submit(throw, Unreadable, key="unreadable-error")
    error = future.exception(timeout=SOON)
    assert future.status == "error"
    assert type(error).__name__ == "Unreadable"
    assert "what happened" in str(error)
    with pytest.raises(type(error), match="what happened"):
        client.gather(future)


def test_an_exception_that_cannot_be_written(client):
    future = client.submit(throw, Unwritable, key="unwritable-error")
    error = future.exception(timeout=SOON)
    assert type(error).__name__ == "Unwritable"
    assert "what happened" in str(error)


def test_a_result_that_cannot_be_written(client):
    future = client.submit(threading.Lock, key="unwritable-result")
    with pytest.raises(TypeError, match="lock") as caught:
        future.result(timeout=SOON)
    assert_named(caught.value, "unwritable-result")


def test_a_result_that_cannot_be_read(client):
    future = client.submit(Trap, key="unreadable-result")
    with pytest.raises(ValueError, match="no reading the value") as caught:
        future.result(timeout=SOON)
    assert_named(caught.value, "unreadable-result")


@pytest.mark.parametrize("what", ["function", "argument"])
def test_what_cannot_be_written_names_its_key(client, what):
    lock = threading.Lock()
    call = (lambda: lock,) if what == "function" else (identity, lock)
    with pytest.raises(TypeError, match=r"[Cc]ould not serialize") as caught:
        client.submit(*call, key="unwritable-call")
    text = f"{caught.value} {caught.value.__cause__}"
    assert "unwritable-call" in text
    assert "lock" in text


def test_an_argument_that_cannot_be_read(client):
    future = client.submit(identity, Trap(), key="unreadable-argument")
    with pytest.raises(ValueError, match="no reading the value"):
        future.result(timeout=SOON)


def test_classes_of_the_main_module(tmp_path):
    script = """
        import treadle

        class Point:
            def __init__(self, x):
                self.x = x
            def moved(self, by):
                return Point(self.x + by)

        class PointError(Exception):
            pass

        def move(point, by):
            if by < 0:
                raise PointError(f"back from {point.x}")
            return point.moved(by)

        if __name__ == "__main__":
            with treadle.Client(workers=1) as client:
                there = client.submit(move, Point(1), 2)
                further = client.submit(move, there, 3)
                print(type(further.result()) is Point, further.result().x)
                error = client.submit(move, further, -1).exception()
                print(type(error) is PointError, error)
    """
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout == "True 6\nTrue back from 6\n", done.stderr
