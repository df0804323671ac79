"""Direct and broadcast views: calls, names, partitions."""

from __future__ import annotations

import itertools
import pickle
import threading
from functools import partial
from typing import Any

import ipyparallel
import numpy as np
import pytest
from ipyparallel import AsyncMapResult, AsyncResult, Reference, interactive

from treadle.cluster import _templates
from treadle.pickling import _canning
from views_support import SOON


def power(x: int, exponent: int = 2) -> int:
    return x**exponent


def test_apply_runs_on_each_engine(all_engines: Any) -> None:
    assert all_engines.apply_sync(power, 3) == [9, 9, 9]
    assert all_engines.apply_sync(power, 3, exponent=3) == [27, 27, 27]
    result = all_engines.apply_async(power, 4)
    assert isinstance(result, AsyncResult)
    assert result.get(SOON) == [16, 16, 16]
    assert result.successful()
    with all_engines.temp_flags(block=True):
        assert all_engines.apply(power, 5) == [25, 25, 25]


def test_a_client_is_indexed_as_ipyparallels(client: Any) -> None:
    first, second, third = client.ids
    assert client[0].apply_sync(power, 3) == 9
    assert client[first].targets == first
    assert client[-1].targets == third
    assert client[[second]].apply_sync(power, 3) == [9]
    assert client[::2].targets == [first, third]
    assert client[:].targets == [first, second, third]
    assert client["all"].targets == "all"
    with pytest.raises(ValueError, match="is named twice"):
        client[[first, first]].apply_async(len, "")
    with pytest.raises(IndexError, match="No such engine"):
        client[third + 1000]
    # Distributed asks whether there is a client.
    assert client
    with pytest.raises(TypeError):
        iter(client)


def test_a_namespace_stays(all_engines: Any) -> None:
    all_engines["a"] = 5
    all_engines.execute("b = a + 1", block=True)
    assert all_engines["b"] == [6, 6, 6]
    assert all_engines.pull(("a", "b"), block=True) == [[5, 6]] * 3
    assert all_engines.get("a * b") == [30, 30, 30]
    assert all_engines.apply_sync(lambda x: x + 1, Reference("b")) == [7, 7, 7]
    all_engines.push({"d": {}}, block=True)
    all_engines["d['x']"] = 1
    assert all_engines["d"] == [{"x": 1}] * 3


def test_functions_use_the_globals_of_the_engine(view: Any) -> None:
    view["there"] = 7
    assert view.apply_sync(interactive(lambda: there)) == [7, 7, 7]  # noqa: F821
    view["function"] = interactive(lambda x: x + there)  # noqa: F821
    view.execute("there = 8; result = function(1)", block=True)
    assert view["result"] == [9, 9, 9]


def test_functions_take_what_they_close_over(view: Any) -> None:
    base = np.arange(3)

    def count(n: int) -> int:
        return 0 if n == 0 else 1 + count(n - 1)

    def added(x: int) -> Any:
        return base + x

    assert view.apply_sync(count, 3) == [3, 3, 3]
    for found in view.apply_sync(partial(added, 1)):
        np.testing.assert_array_equal(found, [1, 2, 3])


def test_functions_arrive_with_all_that_they_have(view: Any) -> None:
    def renamed() -> None:
        """Say nothing."""

    def kept(a: int = 1, *, b: int = 2) -> int:
        return a + b

    def annotated(a, b: int, c: int) -> None: ...  # type: ignore[no-untyped-def]

    annotated.__annotations__["c"] = int

    class Own:
        pass

    def of_own(a, b) -> None: ...  # type: ignore[no-untyped-def]

    of_own.__annotations__["b"] = Own

    def describe(function: Any) -> list[Any]:
        names = ["name", "qualname", "doc", "module", "defaults", "kwdefaults"]
        found = [getattr(function, f"__{name}__") for name in names]
        kinds = function.__annotations__.items()
        return [*found, [(name, getattr(kind, "__name__", kind)) for name, kind in kinds]]

    for change in ("", "__name__", "__qualname__", "__doc__"):
        if change:
            setattr(renamed, change, "another")
        assert view.apply_sync(describe, renamed) == [describe(renamed)] * 3
    for function in (kept, annotated, of_own):
        assert view.apply_sync(describe, function) == [describe(function)] * 3
    # What is called is sent in another way than what is an argument.
    renamed.__name__ = "named"
    assert view.apply_sync(renamed) == [None] * 3
    assert view.apply_sync(kept) == [3] * 3
    assert view.apply_sync(kept, 5, b=6) == [11] * 3


def test_functions_of_the_same_code_are_not_the_same_function(view: Any) -> None:
    # An engine reads the code of the first once, and makes a function for each call.
    bound = [lambda x=number: x for number in range(3)]
    assert [view.apply_sync(function) for function in bound] == [[0] * 3, [1] * 3, [2] * 3]
    closed = [(lambda x: lambda: x)(number) for number in range(3)]
    assert [view.apply_sync(function) for function in closed] == [[0] * 3, [1] * 3, [2] * 3]

    def mark(value: int) -> Any:
        def call() -> Any:
            return None

        call.mark = value  # type: ignore[attr-defined]
        return call

    def marked(function: Any) -> Any:
        return getattr(function, "mark", None)

    assert [view.apply_sync(marked, mark(number)) for number in range(2)] == [[0] * 3, [1] * 3]
    # Longer than what is remembered.
    long = eval("lambda: " + repr("x" * 20_000))
    assert view.apply_sync(long) == ["x" * 20_000] * 3


def test_what_is_read_once_is_not_shared() -> None:
    def call(a: int) -> None:
        pass

    frames = _canning.dumps_call(call, (1,), {})
    first, *_ = _canning.loads_call(frames, {})
    first.__annotations__["a"] = "changed"
    second, args, kwargs = _canning.loads_call(frames, {})
    assert second is not first
    assert second.__code__ is first.__code__
    assert second.__annotations__ == {"a": "int", "return": "None"}
    assert (args, kwargs) == ((1,), {})

    frames = _canning.dumps_values({"a": np.arange(3)})
    first = _canning.loads_values(frames, {})
    del first["a"]
    assert list(_canning.loads_values(frames, {})) == ["a"]


def test_code_of_another_python_is_refused() -> None:
    call = eval("lambda: None")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_canning, "MAGIC_NUMBER", b"\0\0\r\n")
        frames, argument = _canning.dumps_call(call, (), {}), _canning.dumps(call)
    with pytest.raises(pickle.UnpicklingError, match="code of another version of Python"):
        _canning.loads_call(frames, {})
    with pytest.raises(pickle.UnpicklingError, match="code of another version of Python"):
        _canning.loads(argument, {})


@pytest.mark.parametrize("count", [1, 3])
def test_values_of_every_kind_are_pushed(view: Any, count: int) -> None:
    structured = np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])
    kinds: list[Any] = [
        np.arange(6.0).reshape(2, 3),
        np.arange(6.0).reshape(2, 3).T,
        np.arange(10)[::2],
        np.array(5),
        np.zeros((0, 3)),
        np.array(["a", None], dtype=object),
        np.array(["ab", "c"]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        structured,
        np.float64(3.0),
        np.ma.masked_array([1, 2], [True, False]),
        [np.arange(3), "text"],
    ]
    for value in kinds:
        values = {f"pushed{number}": value for number in range(count)}
        view.push(values, block=True)
        for found in itertools.chain(*(view[name] for name in values)):
            assert type(found) is type(value)
            assert repr(found) == repr(value)
    # Arrays beside others.
    view.push({"array": np.ones(3), "text": "abc"}, block=True)
    assert view["text"] == ["abc"] * 3
    assert all((array == 1).all() for array in view["array"])


def test_a_function_comes_back(view: Any) -> None:
    view.execute("def made(x): return 2 * x", block=True)
    assert [made(4) for made in view["made"]] == [8, 8, 8]


def test_arrays_arrive_as_they_are_and_can_be_written_to(all_engines: Any) -> None:
    values = np.random.default_rng(1).random((300, 200))
    all_engines.push({"values": values, "fortran": np.asfortranarray(values)}, block=True)
    all_engines.execute("values += 1; fortran *= 2", block=True)
    for found, doubled in all_engines.pull(("values", "fortran"), block=True):
        np.testing.assert_array_equal(found, values + 1)
        np.testing.assert_array_equal(doubled, values * 2)


def test_map_partitions(all_engines: Any) -> None:
    result = all_engines.map_async(power, range(10))
    assert isinstance(result, AsyncMapResult)
    assert len(result) == 10
    assert result.get(SOON) == [x**2 for x in range(10)]
    assert all_engines.map_sync(power, range(4), [0, 1, 2, 3]) == [1, 1, 4, 27]
    assert list(all_engines.imap(power, range(5))) == [0, 1, 4, 9, 16]
    assert all_engines.map_sync(power, []) == []
    assert all_engines.map_sync(power, iter([3])) == [9]


def test_map_of_much(all_engines: Any) -> None:
    """Partitions that are a message each."""
    rows = np.arange(300_000.0).reshape(30, 10_000)
    sums = all_engines.map_sync(np.sum, rows)
    assert sums == list(rows.sum(axis=1))


def test_scatter_and_gather(all_engines: Any) -> None:
    all_engines.scatter("part", range(10), block=True)
    assert [list(part) for part in all_engines["part"]] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    all_engines.scatter("one", all_engines.client.ids, flatten=True)
    assert all_engines["one"] == all_engines.client.ids
    values = np.arange(100_000)
    all_engines.scatter("many", values)
    all_engines.execute("many = many * 2")
    np.testing.assert_array_equal(all_engines.gather("many", block=True), values * 2)


def test_run_runs_a_file(view: Any, tmp_path: Any) -> None:
    (tmp_path / "code.py").write_text("def found():\n    return 42\n    ")
    view.run(str(tmp_path / "code.py"), block=True)
    assert view.apply_sync(lambda function: function(), Reference("found")) == [42, 42, 42]


def test_imports_are_made_on_both_sides(view: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with view.sync_imports():
        import colorsys  # noqa: F401
    assert "importing colorsys on engine(s)" in capsys.readouterr().out
    assert view["colorsys.__name__"] == ["colorsys"] * 3


def test_decorators(view: Any) -> None:
    @view.remote(block=True)
    def doubled(x: int) -> int:
        return 2 * x

    @view.parallel(block=True)
    def squared(x: Any) -> Any:
        return x**2

    assert doubled(4) == [8, 8, 8]
    np.testing.assert_array_equal(squared(np.arange(7)), np.arange(7) ** 2)
    assert squared.map(range(7)) == [x**2 for x in range(7)]


def test_a_dependency_of_a_function(view: Any) -> None:
    @ipyparallel.require("colorsys", helper=power)
    def found() -> Any:
        return helper(3), colorsys.__name__  # noqa: F821

    found.f.__module__ = "__main__"
    assert view.apply_sync(found) == [(9, "colorsys")] * 3


def test_calls_run_once_each_in_their_order(client: Any) -> None:
    """Calls of several kinds and threads; those of one thread are in order."""
    view = client[:]
    view["seen"] = []

    def cast(thread: int) -> None:
        for number in range(20):
            if number % 2:
                view.execute(f"seen.append(({thread}, {number}, arrived))")
            else:
                # What follows would not find it, or find an older one, if it came first.
                view.push({"arrived": number})
                view.apply_async(interactive(lambda *pair: seen.append(pair)), thread, number)  # noqa: F821

    threads = [threading.Thread(target=cast, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    for found in view["seen"]:
        assert len(found) == 80
        for thread in range(4):
            assert [item[1] for item in found if item[0] == thread] == list(range(20))


def test_an_execute_does_not_overtake_a_push(view: Any) -> None:
    results = []
    for number in range(50):
        view.push({"number": number, "ballast": np.zeros(50_000)}, block=False)
        results.append(view.execute("print(number)", block=False))
    for number, result in enumerate(results):
        result.get(SOON)
        assert result.stdout == [f"{number}\n"] * 3


def test_two_clients_share_engines(client: Any) -> None:
    import treadle

    other = treadle.Client(client.cluster, set_as_default=False)
    try:
        assert other.ids == client.ids
        # What two clients do has no order but that of its ends.
        other[:].push({"shared": 3}, block=True)
        assert client[:]["shared"] == [3, 3, 3]
    finally:
        other.close()


def test_a_new_worker_is_a_new_engine(client: Any) -> None:
    before = client.ids
    view, later = client[:], client["all"]
    client.cluster.scale(4)
    try:
        client.engines.wait_for_engines(4, timeout=SOON)
        assert client.ids[:3] == before
        assert view.apply_sync(power, 2) == [4] * 3
        assert later.apply_sync(power, 2) == [4] * 4
    finally:
        client.cluster.scale(3)


def test_engines_in_the_clients_own_process() -> None:
    import treadle

    with treadle.Client(processes=False, n_workers=2, set_as_default=False) as client:
        view = client[:]
        view["a"] = 3
        done = view.execute("print(a)\na + 1", silent=False, block=True)
        assert done.stdout == ["3\n", "3\n"]
        assert [reply.execute_result["data"] for reply in done.get()] == [{"text/plain": "4"}] * 2
        assert view.apply_sync(threading.get_ident) != [threading.get_ident()] * 2
        assert view.map_sync(power, range(4)) == [0, 1, 4, 9]


def test_engines_take_nothing_before_they_are_used() -> None:
    import treadle

    def shells() -> bool:
        import sys

        return any(
            name.partition(".")[0] in ("IPython", "ipykernel", "zmq") for name in sys.modules
        )

    # What workers are forked from has IPython where that is installed, once for all of them.
    _templates.release()
    with treadle.Client(workers=1, set_as_default=False) as client:
        assert client.ids == [0]
        assert list(client.run(shells).values()) == [False]
        client[:].apply_sync(power, 2)
        assert list(client.run(shells).values()) == [True]


def test_one_pickle_however_many_engines(client: Any) -> None:
    pickled = itertools.count()

    class Counted:
        def __reduce__(self) -> Any:
            next(pickled)
            return int, (3,)

    for view in (client[:], client.broadcast_view()):
        assert view.apply_sync(power, Counted()) == [9, 9, 9]
    assert next(pickled) == 2


def test_values_arrive_with_all_that_they_carry() -> None:
    unit = np.dtype("f8", metadata={"unit": "m"})
    record = np.dtype((np.record, "V4"))
    masked = np.ma.array([1, 2], mask=[0, 1], hard_mask=True)
    view = memoryview(np.zeros((2, 3), ">i4"))[::2]
    values = {"unit": np.zeros(3, unit), "record": np.zeros(3, record)}
    for given in (values, {**values, "masked": masked, "view": view}):
        frames = [bytes(frame) for frame in _canning.dumps_values(given)]
        found = _canning.loads_values(frames, {})
        assert found["unit"].dtype.metadata == {"unit": "m"}
        assert found["record"].dtype.type is np.record
    assert found["masked"].hardmask
    assert (found["view"].format, found["view"].shape) == (view.format, view.shape)
