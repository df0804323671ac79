"""Which tasks see what a task writes to its arguments, its function, and the values that it reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np
import pandas as pd
import pytest

from client_support import distributed_fails, make_client

# Numbers: below and above what a recipe holds, 64 KiB; above what is in shared memory, 1 MiB.
SIZES = [1_000, 8_192, 8_193, 100_000, 300_000]


@pytest.fixture(scope="module")
def one() -> Iterator[distributed.Client]:
    """A client with one worker of one thread: what a task leaves behind, the next one meets."""
    client = make_client(workers=1)
    yield client
    client.close()


def bump(array: np.ndarray) -> int:
    array += 1
    return int(array.flat[0])


def bump_in(box: dict[str, np.ndarray]) -> int:
    return bump(box["a"])


def bump_table(table: pd.DataFrame) -> int:
    table["x"] += 1
    return int(table["x"].iloc[0])


def bump_bytes(content: bytearray) -> int:
    content[0] += 1
    return content[0]


def grow(items: list[float]) -> int:
    items.append(0.0)
    return items.count(0.0)


def bump_named(_number: int, **named: np.ndarray) -> int:
    [array] = named.values()
    return bump(array)


def bump_once_more(array: np.ndarray) -> int:
    if bump(array) < 2:
        raise ValueError("not yet")
    return int(array[0])


def same(one: Any, other: Any) -> bool:
    return one is other


def is_writable(array: np.ndarray) -> bool:
    return array.flags.writeable


def identity(value: Any) -> Any:
    return value


ARGUMENTS: dict[str, tuple[Callable[[Any], int], Callable[[int], Any]]] = {
    "array": (bump, np.zeros),
    "Fortran": (bump, lambda size: np.zeros((2, size), order="F").T),
    "strided": (bump, lambda size: np.zeros(2 * size)[::2]),
    "nested": (bump_in, lambda size: {"a": np.zeros(size)}),
    "table": (bump_table, lambda size: pd.DataFrame({"x": np.zeros(size)})),
    "bytearray": (bump_bytes, lambda size: bytearray(8 * size)),
    "list": (grow, lambda size: [1.0] * size),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_each_call_has_arguments_of_its_own(one: distributed.Client, kind: str, size: int) -> None:
    function, make = ARGUMENTS[kind]
    value = make(size)
    assert one.gather(one.map(function, [value] * 4, pure=False)) == [1] * 4
    assert one.gather([one.submit(function, value, pure=False) for _ in range(2)]) == [1] * 2
    # The client's own is as it was.
    assert function(value) == 1


@pytest.mark.parametrize("size", SIZES)
def test_a_call_that_is_tried_again_has_its_arguments_anew(
    one: distributed.Client, size: int
) -> None:
    with pytest.raises(ValueError, match="not yet"):
        one.submit(bump_once_more, np.zeros(size), retries=2, pure=False).result()


@pytest.mark.parametrize("size", SIZES)
def test_calls_that_return_their_argument_have_values_of_their_own(
    one: distributed.Client, size: int
) -> None:
    array = np.zeros(size)
    values = [one.submit(identity, array, pure=False) for _ in range(2)]
    assert one.gather([one.submit(bump, value, pure=False) for value in values]) == [1, 1]


@pytest.mark.parametrize("size", SIZES)
def test_an_argument_that_occurs_twice_is_one_object(one: distributed.Client, size: int) -> None:
    for value in (np.zeros(size), [1.0] * size, bytearray(8 * size)):
        assert one.submit(same, value, value, pure=False).result()
        nested = one.submit(lambda a, b: a is b[0], value, [value], pure=False)
        assert nested.result()
        # Nobody else refers to what is in the tuple.
        inside = ({"a": [value.copy()]}, 1)
        found = one.submit(lambda a, b: a[0]["a"][0] is b[0]["a"][0], inside, inside, pure=False)
        assert found.result()


@pytest.mark.parametrize("size", SIZES)
def test_what_cannot_be_written_to_arrives_so(one: distributed.Client, size: int) -> None:
    array = np.zeros(size)
    array.flags.writeable = False
    assert not one.submit(is_writable, array, pure=False).result()
    scattered = one.scatter(array)
    assert not one.submit(is_writable, scattered, pure=False).result()
    assert one.submit(is_writable, np.zeros(size), pure=False).result()
    assert not scattered.result().flags.writeable


@pytest.mark.parametrize("size", SIZES)
def test_tasks_share_the_value_of_a_future(one: distributed.Client, size: int) -> None:
    scattered = one.scatter(np.zeros(size))
    computed = one.submit(np.zeros, size, pure=False)
    for value in (scattered, computed):
        found = one.gather([one.submit(bump, value, pure=False) for _ in range(4)])
        assert sorted(found) == [1, 2, 3, 4]


@pytest.mark.parametrize("size", SIZES)
def test_tasks_share_the_data_of_a_graph(one: distributed.Client, size: int) -> None:
    data = dask.delayed(np.zeros(size), pure=False)
    calls = [dask.delayed(bump, pure=False)(data) for _ in range(4)]
    assert sorted(one.gather(one.compute(calls))) == [1, 2, 3, 4]
    # Tasks have their own where the array is an argument.
    array = np.zeros(size)
    calls = [dask.delayed(bump, pure=False)(array) for _ in range(4)]
    assert one.gather(one.compute(calls)) == [1] * 4


@pytest.mark.parametrize("size", SIZES)
def test_data_of_equal_content_is_not_one_object(one: distributed.Client, size: int) -> None:
    blocks = da.from_array(np.zeros(4 * size), chunks=size)
    bumped = blocks.map_blocks(lambda block: np.array([bump(block)]), dtype=int, chunks=(1,))
    assert one.compute(bumped).result().tolist() == [1] * 4


@distributed_fails("an assertion of its scheduler fails for keyword arguments of more than 100 kB")
def test_calls_of_a_map_share_large_keyword_arguments(one: distributed.Client) -> None:
    small, large = np.zeros(10_000), np.zeros(20_000)
    assert one.gather(one.map(bump_named, range(3), small=small, pure=False)) == [1] * 3
    shared = one.map(bump_named, range(3), large=large, pure=False)
    assert sorted(one.gather(shared)) == [1, 2, 3]


# Functions

count = 0
kept: list[int] = []


def count_global(_number: int) -> int:
    global count
    count += 1
    return count


def keep_global(number: int) -> int:
    kept.append(number)
    return len(kept)


def count_attribute(_number: int) -> int:
    count_attribute.count = getattr(count_attribute, "count", 0) + 1  # type: ignore[attr-defined]
    return count_attribute.count  # type: ignore[attr-defined, no-any-return]


def count_through(_number: int) -> int:
    return count_global(_number)


def with_closure(array: np.ndarray) -> Callable[[int], int]:
    return lambda _number: bump(array)


def with_default(array: np.ndarray) -> Callable[[int], int]:
    def function(_number: int, array: np.ndarray = array) -> int:
        return bump(array)

    return function


def with_nonlocal() -> Callable[[int], int]:
    count = 0

    def function(_number: int) -> int:
        nonlocal count
        count += 1
        return count

    return function


class Counter:
    """What is counted is the object's own."""

    count = 0

    def step(self, _number: int) -> int:
        self.count += 1
        return self.count

    __call__ = step


def bump_first(array: np.ndarray, _number: int) -> int:
    return bump(array)


def by_value(function: Callable[..., int]) -> Callable[..., int]:
    """A function of the main script: it is pickled with its code and its globals."""
    names: dict[str, Any] = {"__name__": "__main__", "count": 0, "kept": []}
    for original in (count_global, keep_global, count_attribute, count_through):
        made = FunctionType(original.__code__, names, original.__name__)
        made.__module__ = "__main__"
        names[original.__name__] = made
    found: Callable[..., int] = names[function.__name__]
    return found


FUNCTIONS: dict[str, Callable[[int], Callable[..., int]]] = {
    "global": lambda _: by_value(count_global),
    "global of another function": lambda _: by_value(count_through),
    "global list": lambda _: by_value(keep_global),
    "attribute": lambda _: by_value(count_attribute),
    "nonlocal": lambda _: with_nonlocal(),
    "closure": lambda size: with_closure(np.zeros(size)),
    "default": lambda size: with_default(np.zeros(size)),
    "partial": lambda size: functools.partial(bump_first, np.zeros(size)),
    "method": lambda _: Counter().step,
    "callable": lambda _: Counter(),
}


@pytest.mark.parametrize("size", [1_000, 100_000])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_each_call_has_a_function_of_its_own(one: distributed.Client, kind: str, size: int) -> None:
    function = FUNCTIONS[kind](size)
    assert one.gather(one.map(function, range(4), pure=False)) == [1] * 4
    # Likewise where it is an argument.
    called = one.map(lambda function, number: function(number), [function] * 4, range(4))
    assert one.gather(called) == [1] * 4


class Temperature:
    """An array type that knows DLPack, by which others may view its numbers."""

    def __init__(self, numbers: np.ndarray, unit: str) -> None:
        self.numbers = numbers
        self.unit = unit

    def __dlpack__(self, **options: Any) -> Any:
        return self.numbers.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.numbers.__dlpack_device__()


def unit_of(temperature: Temperature) -> str:
    return temperature.unit


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_tensor_of_another_library_stays_what_it_is(one: distributed.Client, size: int) -> None:
    given = Temperature(np.zeros(size), "K")
    made = one.submit(Temperature, np.zeros(size), "K", pure=False)
    assert unit_of(made.result()) == "K"
    for value in (given, made, one.scatter(given)):
        assert one.submit(unit_of, value, pure=False).result() == "K"


def test_a_value_of_more_buffers_than_a_message_has_frames(one: distributed.Client) -> None:
    def many(count: int) -> list[np.ndarray]:
        return [np.full(64, number) for number in range(count)]

    made = one.submit(many, 70_000, pure=False)
    [brought] = one.scatter([many(70_000)], hash=False)
    for value in (made, brought):
        assert [len(value.result()), int(value.result()[69_999][63])] == [70_000, 69_999]
