"""Exceptions of tasks on their way to the client."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import threading
import traceback
import weakref
import xml.etree.ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from distributed import (
    Reschedule,
)
from python_sides import SOON, HubWorker

from treadle.errors import _pickled as errors


class Odd(Exception):
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("never")


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise TypeError("never")


def caught(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def test_an_exception_travels_with_its_traceback() -> None:
    def inner() -> None:
        raise ValueError("inner")

    def outer() -> None:
        try:
            inner()
        except ValueError as error:
            raise KeyError("outer") from error

    exception, shown = errors.load(errors.dump(caught(outer)))
    assert type(exception) is KeyError
    assert exception.args == ("outer",)
    assert [frame.name for frame in traceback.extract_tb(shown)] == ["caught", "outer"]
    assert type(exception.__cause__) is ValueError
    names = [frame.name for frame in traceback.extract_tb(exception.__cause__.__traceback__)]
    assert names == ["outer", "inner"]


def test_the_exception_itself_is_left_as_it_was() -> None:
    error = caught(lambda: 1 / 0)
    before = error.__traceback__
    errors.dump(error)
    assert error.__traceback__ is before


@pytest.mark.parametrize("error", [Odd(1, 2), Unpicklable("text"), Silent()])
def test_an_exception_that_is_not_made_as_its_class_says_keeps_its_class(error: Exception) -> None:
    exception, _ = errors.load(errors.dump(error))
    assert type(exception) is type(error)
    assert exception.args == error.args


def test_an_exception_whose_class_cannot_travel_is_replaced_by_its_text() -> None:
    class Stuck(Exception):
        lock = threading.Lock()

    exception, _ = errors.load(errors.dump(Stuck("text")))
    assert type(exception) is Exception
    assert str(exception) == repr(Stuck("text"))


def test_a_long_text_is_cut() -> None:
    data = errors.dump(ValueError("x" * 100_000))
    exception, _ = errors.load(data)
    assert type(exception) is ValueError
    assert exception.args[0] == "Long error message"
    assert len(data) < 50_000


def test_what_the_receiver_cannot_unpickle_is_replaced_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = errors.dump(Unpicklable2("text"))
    monkeypatch.delattr(sys.modules[__name__], "Unpicklable2")
    exception, _ = errors.load(data)
    assert type(exception) is Exception
    assert str(exception) == "Unpicklable2('text')"


class Unpicklable2(Exception):
    """Its class is not at the receiver."""


@pytest.mark.parametrize(
    ("leaving", "status"),
    [
        ("SystemExit(3)", 3),
        ("SystemExit()", 1),
        ("SystemExit(75)", 1),
        ("KeyboardInterrupt()", 130),
    ],
)
def test_an_exit_ends_a_process_that_is_a_worker(leaving: str, status: int) -> None:
    code = f"from treadle.worker import Service; Service(own_process=True).task_raised('key', {leaving})"
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, timeout=SOON, capture_output=True, text=True, check=False)
    assert ended.returncode == status
    assert "A task raised" in ended.stderr


@pytest.mark.parametrize("leaving", [SystemExit(3), KeyboardInterrupt()])
def test_a_task_cannot_end_the_client(leaving: BaseException) -> None:
    exception, _ = errors.load(errors.dump(leaving))
    assert type(exception) is RuntimeError
    assert repr(leaving) in str(exception)


def test_a_base_exception_stays_one() -> None:
    assert type(errors.load(errors.dump(BaseException("base")))[0]) is BaseException


def test_a_value_that_cannot_be_pickled_is_a_type_error(worker: HubWorker) -> None:
    lock = threading.Lock()
    error = worker.service.unserializable(lock, caught(lambda: pickle.dumps(lock)), "my-key")
    exception, _ = errors.load(worker.service.dump_error(error))
    assert type(exception) is TypeError
    assert "Could not serialize object of type _thread.lock" in str(exception)
    assert f"the result of 'my-key' at worker {worker.service.worker.address}" in str(exception)
    assert "cannot pickle" in str(exception.__cause__)


def test_reschedule_is_known(worker: HubWorker) -> None:
    assert worker.service.reschedules(Reschedule())
    assert not worker.service.reschedules(ValueError())


def test_a_traceback_keeps_nothing_of_its_receiver_alive() -> None:
    class Value:
        pass

    def receive(data: bytes) -> tuple[Any, Any]:
        value = Value()
        return errors.load(data), weakref.ref(value)

    (exception, shown), alive = receive(errors.dump(caught(lambda: 1 / 0)))
    assert alive() is None
    assert shown is not None
    assert shown.tb_frame.f_back is None
    with pytest.raises(ZeroDivisionError):
        raise exception.with_traceback(shown)


def test_the_lines_of_a_traceback_are_shown() -> None:
    def divides() -> float:
        return 1 / 0  # the line

    exception, shown = errors.load(errors.dump(caught(divides)))
    text = "".join(traceback.format_exception(type(exception), exception, shown))
    assert "return 1 / 0  # the line" in text
    assert "in divides" in text
    line = divides.__code__.co_firstlineno + 1
    assert f'test_worker_errors.py", line {line}' in text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="both are new in Python 3.11")
def test_notes_and_groups_travel() -> None:
    error = caught(lambda: 1 / 0)
    error.add_note("a note")
    group = ExceptionGroup("several", [error, ValueError("other")])  # noqa: F821
    exception, _ = errors.load(errors.dump(group))
    first, second = exception.exceptions
    assert first.__notes__ == ["a note"]
    assert type(second) is ValueError
    assert first.__traceback__ is not None


@dataclass(frozen=True)
class Frozen(Exception):
    """No attribute of it can be set."""

    number: int
    text: str = "text"


class Stern(Exception):
    """Its traceback is its own, and pickling it wants to end the process."""

    @property
    def __traceback__(self) -> Any:
        raise ValueError("no traceback")

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


class TwoArguments(OSError):
    def __init__(self, path: str, *, what: str) -> None:
        super().__init__(2, what, path)


MADE: list[Callable[[], Any]] = [
    lambda: compile("a b", "file.py", "exec"),
    lambda: b"\xff".decode("utf-8"),
    lambda: xml.etree.ElementTree.fromstring("<a"),
    lambda: open("/no/such/file"),  # noqa: SIM115
    lambda: {}["key"],
    lambda: (_ for _ in ()).throw(Frozen(3)),
    lambda: (_ for _ in ()).throw(TwoArguments("/a", what="gone")),
    lambda: importlib.import_module("no.such.module"),
]


@pytest.mark.parametrize("make", MADE)
def test_an_exception_keeps_its_class_and_its_text(make: Callable[[], Any]) -> None:
    error = caught(make)
    BaseException.__cause__.__set__(error, ValueError("a cause"))
    loaded, trace = errors.load(errors.dump(error))
    assert (type(loaded), str(loaded)) == (type(error), str(error))
    assert vars(loaded) == vars(error)
    assert str(loaded.__cause__) == "a cause"
    assert trace is not None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no groups of exceptions")
def test_a_group_of_exceptions_keeps_its_class() -> None:
    group = BaseExceptionGroup("both", [SystemExit(1), Frozen(2)])  # noqa: F821
    loaded, _ = errors.load(errors.dump(group))
    assert repr(loaded) == repr(group)


def test_methods_of_an_exception_may_raise_anything() -> None:
    loaded, _ = errors.load(errors.dump(Stern("x")))
    assert type(loaded) is Exception
    assert "Stern" in str(loaded)
