"""One rule for values that leave a process: all of them, and by value what others could not find."""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any

import cloudpickle
import numpy as np
import pytest

from treadle.pickling import _by_value
from treadle.transfer._serialise import encode


def read_frames(frames: Any) -> Any:
    _, stream, buffers = frames
    return pickle.loads(stream, buffers=buffers)


# How it is made bytes, and these a value again: in calls, and on connections.
CALLS = (_by_value.dumps_as_needed, pickle.loads)
CONNECTIONS = (lambda value: encode(value, False), read_frames)
WAYS = pytest.mark.parametrize(("dump", "load"), [CALLS, CONNECTIONS])


@pytest.fixture
def module() -> Any:
    """A module that is pickled by value, with a class."""
    made: Any = types.ModuleType("only_here")
    exec("class Thing:\n    size = 3\n", made.__dict__)
    sys.modules["only_here"] = made
    cloudpickle.register_pickle_by_value(made)
    yield made
    cloudpickle.unregister_pickle_by_value(made)
    sys.modules.pop("only_here", None)


@WAYS
def test_what_a_pickle_would_leave_out_is_there(dump: Any, load: Any) -> None:
    array = np.ma.array([1, 2], mask=[False, True])
    array.note = "of the user"
    assert load(dump([array]))[0].note == "of the user"


@WAYS
def test_what_is_registered_goes_by_value(dump: Any, load: Any, module: Any) -> None:
    dumped = dump(module.Thing())
    del sys.modules["only_here"]
    assert load(dumped).size == 3


@WAYS
def test_what_cannot_be_pickled_says_why(dump: Any, load: Any) -> None:
    class Refuses:
        def __reduce__(self) -> Any:
            raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        load(dump(Refuses()))


def test_buffers_of_an_attempt_that_failed_are_not_those_of_the_next() -> None:
    arrays = [np.arange(1000), np.arange(1000.0)]
    stream, buffers = _by_value.dumps_apart([*arrays, lambda: 1], 0, 10)
    assert len(buffers) == 2
    found = pickle.loads(stream, buffers=buffers)
    assert np.array_equal(found[1], arrays[1])
    assert found[2]() == 1
    stream, buffers = _by_value.dumps_apart(arrays, 0, 1)
    assert len(buffers) == 1
