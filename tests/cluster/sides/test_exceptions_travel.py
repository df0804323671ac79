"""Exceptions of all kinds arrive as what they were: with their class, and what of them can be pickled."""

from __future__ import annotations

import copyreg
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from treadle.errors import _pickled as errors

GROUPS = sys.version_info >= (3, 11)


def received(error: BaseException) -> Any:
    return errors.load(errors.dump(error))[0]


class Plain(Exception):
    pass


class Attributes(Exception):
    def __init__(self, number: int, *, other: Any = None) -> None:
        super().__init__(f"number {number}")
        self.number = number
        self.other = other


class Slots(Exception):
    __slots__ = ("__private", "unset", "x")

    def __init__(self, x: Any) -> None:
        super().__init__("slots")
        self.x = x
        self.__private = 7

    @property
    def private(self) -> Any:
        return self.__private


class MoreSlots(Slots, ValueError):
    __slots__ = ("y",)


class State(Exception):
    """pickle gives ``__setstate__`` the attributes, and does not ask ``__getstate__``."""

    def __getstate__(self) -> Any:
        raise AssertionError("of an exception it is not called")

    def __setstate__(self, state: Any) -> None:
        self.restored = dict(state)


class Reduced(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.one, self.two = one, two

    def __reduce__(self) -> Any:
        return Reduced, (self.one, self.two), {"how": "reduce"}


class ReducedEx(Reduced):
    def __reduce_ex__(self, protocol: Any) -> Any:
        assert protocol == 5
        return made_ex, (self.one,), {"how": "reduce_ex"}, None, None, set_how


def made_ex(one: int) -> ReducedEx:
    return ReducedEx(one, -1)


def set_how(error: ReducedEx, state: Any) -> None:
    error.how = (state["how"], "setter")  # type: ignore[attr-defined]


class Listed(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code


copyreg.pickle(Listed, lambda error: (listed, (error.code,)))  # type: ignore[arg-type,return-value]


def listed(code: int) -> Listed:
    made = Listed(code=code)
    made.listed = True  # type: ignore[attr-defined]
    return made


class NewArguments(Exception):
    """pickle asks no exception for its ``__getnewargs__``."""

    def __new__(cls, *, code: int) -> NewArguments:
        made = super().__new__(cls, f"code {code}")
        made.code = code  # type: ignore[attr-defined]
        return made

    def __init__(self, *, code: int) -> None:
        del code

    def __getnewargs__(self) -> Any:
        raise AssertionError("it is not called")


class Imports(ImportError):
    """Its native class reduces it in a way of its own."""

    def __init__(self, *, module: str) -> None:
        super().__init__(f"no {module}", name=module, path="/there")


class Decodes(UnicodeDecodeError):
    def __init__(self, *, what: bytes) -> None:
        super().__init__("utf-8", what, 1, 2, "for a test")


class Syntax(SyntaxError):
    def __init__(self, *, line: int) -> None:
        super().__init__("odd", ("file.py", line, 3, "a b"))


class Gone(OSError):
    def __init__(self, path: str, *, what: str) -> None:
        super().__init__(2, what, path)


class GoneNew(OSError):
    def __new__(cls, path: str, *, what: str) -> GoneNew:
        return super().__new__(cls, 2, what, path)

    def __init__(self, path: str, *, what: str) -> None:
        del path, what


class Stop(StopIteration):
    def __init__(self, *, value: int) -> None:
        super().__init__(value)


def described(error: Any) -> tuple[Any, ...]:
    """What can be seen of it."""
    slots = tuple(getattr(error, name, None) for name in ("x", "y", "private", "unset"))
    fields = ("errno", "strerror", "filename", "name", "path", "text", "lineno", "start", "value")
    seen = tuple(getattr(error, name, None) for name in fields)
    return type(error), str(error), error.args, vars(error), slots, seen


TRAVEL: list[Callable[[], BaseException]] = [
    lambda: Plain("text", 2, None),
    lambda: Attributes(3, other=[4]),
    lambda: Slots("x"),
    lambda: MoreSlots({"a": 1}),
    lambda: NewArguments(code=5),
    lambda: Imports(module="m"),
    lambda: Decodes(what=b"a\xffb"),
    lambda: Syntax(line=7),
    lambda: Gone("/a", what="gone"),
    lambda: GoneNew("/a", what="gone"),
    lambda: Stop(value=3),
    lambda: AttributeError("no x", name="x", obj=threading.Lock()),
    lambda: OSError(2, "text", "/one", None, "/two"),
    lambda: BlockingIOError(11, "text", 5),
]


@pytest.mark.parametrize("make", TRAVEL)
def test_it_arrives_as_it_was(make: Callable[[], BaseException]) -> None:
    error = make()
    assert described(received(error)) == described(error)


def test_what_its_class_says_of_pickling_is_followed() -> None:
    error = State("text")
    assert not hasattr(received(error), "restored")
    error.number = 3  # type: ignore[attr-defined]
    assert vars(received(error)) == vars(pickle.loads(pickle.dumps(error)))
    assert vars(received(error)) == {"restored": {"number": 3}}
    for error in (Reduced(1, 2), ReducedEx(1, 2), Listed(code=3)):
        assert described(received(error)) == described(pickle.loads(pickle.dumps(error, 5)))
    assert received(Reduced(1, 2)).how == "reduce"
    assert received(ReducedEx(1, 2)).how == ("reduce_ex", "setter")
    assert received(Listed(code=3)).listed


# two that refer to each other


def linked(name: str) -> tuple[BaseException, BaseException]:
    one, other = Attributes(1), MoreSlots(2)
    for this, that in ((one, other), (other, one)):
        if name == "args":
            this.args = ([that],)
        else:
            setattr(this, name, that)
    return one, other


@pytest.mark.parametrize("name", ["partner", "__cause__", "__context__", "args"])
def test_two_that_refer_to_each_other(name: str) -> None:
    def of(error: Any) -> Any:
        return error.args[0][0] if name == "args" else getattr(error, name)

    one = received(linked(name)[0])
    assert type(one) is Attributes
    assert type(of(one)) is MoreSlots
    assert of(of(one)) is one


def test_one_that_refers_to_itself() -> None:
    error = Attributes(1)
    error.args = (error,)
    error.other = {"me": error}
    error.__cause__ = error
    found = received(error)
    assert type(found) is Attributes
    assert found.args[0] is found
    assert found.other["me"] is found
    assert found.__cause__ is found


def test_one_that_is_reduced_by_itself_loses_that() -> None:
    class Itself(Exception):
        def __reduce__(self) -> Any:
            return Itself, (self,)

    found = received(Itself("text"))
    assert (type(found).__name__, found.args) == ("Itself", ("text",))


def test_causes_keep_their_tracebacks_and_their_order() -> None:
    def raises() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError:
                raise Slots("second")  # noqa: B904
        except Slots as error:
            raise Attributes(3) from error

    with pytest.raises(Attributes) as caught:
        raises()
    loaded, _ = errors.load(errors.dump(caught.value))
    assert type(loaded.__cause__) is Slots
    assert type(loaded.__cause__.__context__) is KeyError
    assert loaded.__suppress_context__
    assert not loaded.__cause__.__suppress_context__
    shown = traceback.extract_tb(loaded.__cause__.__context__.__traceback__)
    assert [frame.name for frame in shown] == ["raises"]


# what cannot be pickled


class Refuses(Exception):
    """Its class does not let it be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("never")


def generator() -> Any:
    yield


@pytest.mark.parametrize("make", [threading.Lock, generator, lambda: sys._getframe()])
def test_what_cannot_be_pickled_is_lost_and_nothing_else(make: Callable[[], Any]) -> None:
    error = Attributes(1, other=make())
    error.more = {"here": [make()]}  # type: ignore[attr-defined]
    error.good = {"here": [3]}  # type: ignore[attr-defined]
    error.itself = [error]  # type: ignore[attr-defined]
    error.__cause__ = MoreSlots(make())
    error.__cause__.y = "good"
    found = received(error)
    assert (type(found), str(found)) == (Attributes, "number 1")
    assert vars(found) == {"number": 1, "good": {"here": [3]}, "itself": [found]}
    assert type(found.__cause__) is MoreSlots
    assert (found.__cause__.y, hasattr(found.__cause__, "x")) == ("good", False)


def test_arguments_that_cannot_be_pickled_leave_their_text() -> None:
    lock = threading.Lock()
    found = received(Plain("before", lock, [2]))
    assert (type(found), found.args) == (Plain, ("before", repr(lock), [2]))


def test_a_state_without_what_was_lost() -> None:
    error = State("text")
    error.lock, error.number = threading.Lock(), 3  # type: ignore[attr-defined]
    assert vars(received(error)) == {"restored": {"number": 3}}


def test_one_that_refuses_keeps_its_class() -> None:
    error = Refuses("text")
    error.number = 3  # type: ignore[attr-defined]
    found = received(error)
    assert (type(found), found.args, found.number) == (Refuses, ("text",), 3)


def test_a_cause_whose_class_cannot_be_pickled_is_described() -> None:
    class Never(Exception):
        lock = threading.Lock()

    error = Plain("text")
    error.__cause__ = Never("cause")
    found = received(error)
    assert type(found) is Plain
    assert (type(found.__cause__), str(found.__cause__)) == (Exception, "Never('cause')")
    assert type(received(error.__cause__)) is Exception


def test_more_than_can_be_sent_is_lost() -> None:
    error = Attributes(1, other=bytes(2 << 20))
    found = received(error)
    assert (type(found), vars(found)) == (Attributes, {"number": 1})
    error = Attributes(1)
    for number in range(5):
        setattr(error, f"part{number}", bytes((1 << 19) + number))
    data = errors.dump(error)
    assert len(data) < 1 << 20
    assert (type(errors.load(data)[0]), errors.load(data)[0].args) == (Attributes, ("number 1",))


def test_a_long_text_leaves_the_class() -> None:
    error = Attributes(1)
    error.args = ("x" * 100_000,)
    found = received(error)
    assert type(found) is Attributes
    assert found.args[0] == "Long error message"


def test_a_chain_that_is_too_long_leaves_the_class() -> None:
    error: BaseException = Plain("last")
    for number in range(3000):
        before, error = error, Attributes(number)
        error.__cause__ = before
    assert type(received(error)) is Attributes


# groups

if GROUPS:

    class Group(ExceptionGroup):  # noqa: F821
        def __new__(cls, message: str, errors: Any, code: int) -> Group:
            made = super().__new__(cls, message, errors)
            made.code = code
            return made

    def test_groups_keep_what_is_in_them() -> None:
        inner = Attributes(1, other=threading.Lock())
        group = Group("several", [inner, Slots("x"), Refuses("r")], 7)
        inner.group = group  # type: ignore[attr-defined]
        inner.__context__ = group
        group.add_note("a note")
        found = received(BaseExceptionGroup("outer", [group, KeyboardInterrupt()]))  # noqa: F821
        found = found.exceptions[0]
        assert type(found) is Group
        assert [type(one) for one in found.exceptions] == [Attributes, Slots, Refuses]
        assert (found.message, found.code, found.__notes__) == ("several", 7, ["a note"])
        assert found.exceptions[0].group.message == "several"
        assert found.exceptions[1].x == "x"
