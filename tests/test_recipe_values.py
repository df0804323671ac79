"""Keys and small values as bytes; keys of calls."""

from __future__ import annotations

import datetime
import decimal
import fractions
import functools
import operator
import pickle
import re
import subprocess
import sys
import threading
from collections import OrderedDict

import numpy as np
import pandas as pd
import pytest
from dask.base import tokenize
from dask.utils import funcname, key_split
from recipe_support import Colour, Future, Number, Pair, Point, Text, arguments, run

from treadle import _core


def named(value: object) -> str:
    """The name of a test: the same in each process, so that several can share the tests."""
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({sorted(map(repr, value))})"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


# Keys


KEYS = [
    "x",
    "",
    "naïve\N{SNOWMAN}",
    "\udc80",
    b"bytes",
    None,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    2**63,
    2**70,
    -(2**70) + 1,
    0.5,
    -0.25,
    float("inf"),
    1e300,
    ("x-abc123", 1, 2),
    ("x", ("y", ("z", None)), 0.9),
    (),
    frozenset({1}),
    decimal.Decimal("0.1"),
    fractions.Fraction(1, 3),
    1 + 2j,
    datetime.date(2020, 1, 1),
    Colour.RED,
]


@pytest.mark.parametrize("key", KEYS, ids=named)
def test_a_key_comes_back(key):
    back = _core._decode_key(_core._encode_key(key))
    assert back == key
    assert hash(back) == hash(key)
    assert _core._encode_key(back) == _core._encode_key(key)


@pytest.mark.parametrize(
    "equal",
    [
        (1, 1.0, True, np.int64(1), np.uint8(1), np.float32(1), np.True_, 1 + 0j),
        (1, decimal.Decimal(1), fractions.Fraction(1)),
        (0, 0.0, -0.0, False, np.int8(0)),
        (0.5, np.float64(0.5), np.float32(0.5), decimal.Decimal("0.5"), fractions.Fraction(1, 2)),
        (2**70, 2.0**70, fractions.Fraction(2**70)),
        (2**63, 2.0**63),
        ("x", Text("x"), np.str_("x")),
        (2, Number.TWO),
        (("x", 1), ("x", True), ("x", 1.0), ("x", np.int64(1)), Pair("x", 1)),
        (b"x", np.bytes_(b"x")),
    ],
    ids=named,
)
def test_equal_keys_are_equal_bytes(equal):
    assert len(set(equal)) == 1
    assert len({_core._encode_key(key) for key in equal}) == 1


def test_different_keys_are_different_bytes():
    different = {*KEYS, "1", 1, b"1", ("1",), (1,), ((1,),), ("x", "y"), ("xy",), 1.5, np.pi}
    assert len({_core._encode_key(key) for key in different}) == len(different)


def test_equal_keys_with_equal_strings_that_are_not_the_same():
    one, other = "".join(["ab", "c"]), "".join(["a", "bc"])
    assert one is not other
    first = frozenset({(one, one)})
    second = frozenset({(one, other)})
    assert _core._encode_key(first) == _core._encode_key(second)


def test_keys_that_are_nested_very_deeply():
    key = ()
    for _ in range(200):
        key = (key,)
    assert _core._decode_key(_core._encode_key(key)) == key


# Values

PLAIN = [
    None,
    True,
    False,
    1,
    -(2**63),
    1.5,
    -0.0,
    "text",
    b"bytes",
    (),
    [],
    {},
    [1, (2, {"a": [3.0, None]})],
    {1: "a", "b": (True, b"")},
]


@pytest.mark.parametrize("value", PLAIN, ids=named)
def test_plain_values_come_back(value):
    encoded = _core._encode_value(value, 1024)
    assert b"\x80\x05" not in encoded, "natively"
    back = _core._decode_value(encoded)
    assert repr(back) == repr(value)
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5),
        np.datetime64("2020-01-01"),
        2**100,
        1 + 2j,
        decimal.Decimal("1.50"),
        datetime.datetime(2020, 1, 2, 3),
        slice(1, None, 2),
        range(5),
        {1, 2},
        frozenset({"a"}),
        Colour.RED,
        Text("sub"),
        Pair(1, [2]),
        OrderedDict(a=1),
        Point(3),
        [Point(3)],
        "\udc80",
        pd.Timestamp("2020"),
        ...,
    ],
    ids=named,
)
def test_other_small_values_come_back(value):
    back = _core._decode_value(_core._encode_value(value, 1024))
    assert back == value
    assert type(back) is type(value)


def test_small_arrays_and_exceptions_come_back():
    back = _core._decode_value(_core._encode_value(np.arange(3), 1024))
    assert back.tolist() == [0, 1, 2]
    back.sort()
    error = _core._decode_value(_core._encode_value(KeyError("k"), 1024))
    assert type(error) is KeyError
    assert error.args == ("k",)


class Huge:
    """Pickling it would be noticed."""

    def __init__(self):
        self.data = np.zeros(1 << 20)

    def __reduce__(self):
        raise AssertionError("pickled")


class Counts(list):
    """Says how many items were pickled."""

    pickled = 0

    def __reduce__(self):
        def items():
            for item in range(10_000_000):
                Counts.pickled += 1
                yield item

        return list, (), None, items()


@pytest.mark.parametrize(
    "value",
    [
        "x" * 2000,
        b"x" * 2000,
        list(range(2000)),
        [[str(i) * 100] for i in range(50)],
        {i: i for i in range(2000)},
        np.zeros(1000),
        [np.zeros(1000)],
        {"a": np.zeros(1000)},
        Huge(),
        [Huge()],
        set(range(2000)),
        lambda: 1,
        threading.Lock(),
        (i for i in ()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_small_has_no_encoding(value):
    assert _core._encode_value(value, 1024) is None


DATA = [
    *PLAIN,
    2**100,
    1 + 2j,
    ...,
    "\udc80",
    bytearray(b"bytes"),
    {1, (2, "a")},
    frozenset({"a"}),
    np.float64(1.5),
    np.bool_(True),
    np.str_("a"),
    np.datetime64("2020-01-01"),
    np.arange(3),
    {"n": np.arange(3), "total": [np.zeros((2, 2)), np.float32(1)]},
]


@pytest.mark.parametrize("value", DATA, ids=named)
def test_data_is_encoded_as_any_value(value):
    assert _core._encode_data(value, 1024) == _core._encode_value(value, 1024) is not None


class Array(np.ndarray):
    pass


@pytest.mark.parametrize(
    "value",
    [
        Point(3),
        [Point(3)],
        {"a": (1, [Point(3)])},
        {Point: 1},
        Text("sub"),
        Pair(1, [2]),
        OrderedDict(a=1),
        Future("f"),
        [Future("f")],
        KeyError("k"),
        len,
        Point,
        np.array([Point(3)]),
        np.zeros(3).view(Array),
        np.zeros(1, dtype=[("a", object)]),
        pd.DataFrame({"a": range(3)}),
        Huge(),
    ],
    ids=named,
)
def test_what_is_more_than_data_has_no_encoding_as_data(value):
    assert _core._encode_data(value, 1024) is None
    assert _core._encode_data((1, value), 1024) is None


def test_long_data_has_no_encoding_as_data():
    part = np.zeros(200)
    for value in [np.zeros(1000), [part] * 3, set(range(300)), bytearray(5000), 1 << 10_000]:
        assert _core._encode_data(value, 1024) is None


def test_pickling_ends_soon_after_the_limit():
    assert _core._encode_value(Counts(), 1024) is None
    assert 0 < Counts.pickled < 100_000


def test_limits_are_bytes():
    for value in ["abc", [1, 2], 1 + 2j]:
        length = len(_core._encode_value(value, 1024))
        assert _core._encode_value(value, length) is not None
        assert _core._encode_value(value, length - 1) is None


def test_values_that_share_parts_still_do():
    part = [1]
    back = _core._decode_value(_core._encode_value([part, part], 1024))
    assert back[0] is back[1]
    back = _core._decode_value(_core._encode_value({"a": part, "b": (part,)}, 1024))
    assert back["a"] is back["b"][0]
    part.append(part)
    back = _core._decode_value(_core._encode_value(part, 1024))
    assert back[1] is back
    pair = ([],)
    pair[0].append(pair)
    back = _core._decode_value(_core._encode_value(pair, 1024))
    assert back[0][0] is back
    table = {}
    table["self"] = table
    back = _core._decode_value(_core._encode_value(table, 1024))
    assert back["self"] is back


def test_values_that_are_nested_too_deeply_do_not_crash():
    value = []
    for _ in range(100):
        value = [value]
    assert _core._decode_value(_core._encode_value(value, 1 << 20)) == value
    for _ in range(100_000):
        value = [value]
    assert _core._encode_value(value, 1 << 20) is None
    while value:
        value = value[0]


# Keys of calls


def test_equal_calls_have_equal_keys():
    recipes, other = _core._Recipes(), _core._Recipes()
    key = recipes.call_key(operator.add, (1, [2, {"a": 3, "b": (4, None)}]), {"x": 1, "y": 2})
    assert key == other.call_key(operator.add, (1, [2, {"b": (4, None), "a": 3}]), {"y": 2, "x": 1})
    assert key_split(key) == "add"
    assert key.startswith("add-")
    assert len(key) == len("add-") + 32


@pytest.mark.parametrize(
    "function",
    [arguments, len, lambda x: x, functools.partial(arguments, 1), np.sum, Point, [].append],
)
def test_names_are_those_of_dask(function):
    key = _core._Recipes().call_key(function, (1,))
    assert key.rsplit("-", 1)[0] == funcname(function)


def test_different_arguments_have_different_keys():
    recipes = _core._Recipes()
    future = Future("f")
    different = [
        *[(1,), (1.0,), (True,), ("1",), (b"1",), (None,), (1, 1), ((1,),), ([1],), ({1},)],
        *[({1: 1},), ({"1": 1},), (frozenset({1}),), (), ("",), ("ab", "c"), ("a", "bc")],
        *[(0.0,), (-0.0,), (2**70,), (2**70 + 1,), (1j,), (slice(1),), (slice(1, 2),)],
        *[(np.arange(3),), (np.arange(3.0),), (np.int64(1),), (datetime.date(2020, 1, 1),)],
        *[(future,), (Future("f"),), ("f",), (len,), (Point(1),), (Point(2),), ("\udc80",)],
    ]
    keys = {recipes.call_key(arguments, args) for args in different}
    keys |= {recipes.call_key(arguments, (), {name: 1}) for name in "xy"}
    keys |= {recipes.call_key(run, (1,)), recipes.call_key(arguments, (), {"x": "1"})}
    assert len(keys) == len(different) + 4
    for args in different:
        assert recipes.call_key(arguments, args) == recipes.call_key(arguments, args)


def test_keys_are_the_same_in_another_process():
    script = (
        "import operator, numpy; from treadle import _core; "
        "print(_core._Recipes().call_key(operator.add, "
        "({'a', 'b', 'c'}, {'x': numpy.arange(3)}), {'k': 'text'}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, timeout=60, text=True
    ).stdout.strip()
    args = ({"c", "b", "a"}, {"x": np.arange(3)})
    assert out == _core._Recipes().call_key(operator.add, args, {"k": "text"})


def test_arguments_that_contain_themselves_have_keys():
    loop = []
    loop.append(loop)
    recipes = _core._Recipes()
    assert recipes.call_key(len, (loop,)) == recipes.call_key(len, (loop,))


def test_what_knows_its_own_token_is_asked():
    class Tokenised:
        def __dask_tokenize__(self):
            return "always the same"

    recipes = _core._Recipes()
    assert tokenize(Tokenised()) == tokenize(Tokenised())
    assert recipes.call_key(len, (Tokenised(),)) == recipes.call_key(len, (Tokenised(),))


def test_keys_of_many_calls():
    recipes = _core._Recipes()
    keys = recipes.call_keys(operator.add, [(i, 10.0) for i in range(3)])
    assert keys == [recipes.call_key(operator.add, (i, 10.0)) for i in range(3)]
    assert recipes.call_keys(operator.add, []) == []


SCALARS = [
    np.dtype(name).type(value)
    for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
    for value in (0, 1, 107)
] + [
    np.int64(-1),
    np.int64(-(2**63)),
    np.uint64(2**64 - 1),
    np.float64("nan"),
    np.float64("-inf"),
    np.complex128(1, -2),
]


@pytest.mark.parametrize("value", SCALARS, ids=named)
def test_a_scalar_of_numpy_is_written_as_its_pickle(value):
    pickled = pickle.dumps(value, protocol=5)
    encoded = _core._encode_value(value, 1024)
    assert encoded.endswith(pickled)
    back = _core._decode_value(encoded)
    assert type(back) is type(value)
    assert back.tobytes() == value.tobytes()


@pytest.mark.parametrize("value", [np.bool_(True), np.str_("a"), np.datetime64("2020-01-01")])
def test_other_scalars_of_numpy_come_back(value):
    back = _core._decode_value(_core._encode_value(value, 1024))
    assert type(back) is type(value)
    assert back == value
