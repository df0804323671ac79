"""Results: waiting, outputs, timings, errors."""

from __future__ import annotations

import copy
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from ipyparallel import CompositeError, RemoteError, TaskAborted, interactive
from ipyparallel.error import EngineError  # noqa: F401 (its name is what comes)

from treadle.views._transport import Transport
from views_support import SOON, endless
from waiting import until


def test_waiting(view: Any, tmp_path: Any) -> None:
    gate = tmp_path / "gate"

    def wait(path: str) -> int:
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.01)
        return 7

    result = view.apply_async(wait, str(gate))
    assert not result.ready()
    assert result.wait(0.01) is False
    assert result.progress == 0
    with pytest.raises(TimeoutError):
        result.get(0.01)
    with pytest.raises(RuntimeError):
        result.successful()
    gate.touch()
    result.wait_interactive(timeout=SOON)
    assert result.ready()
    assert result.get() == [7, 7, 7]
    assert list(result) == [7, 7, 7]
    assert result.progress == len(result) == 3
    assert result.get_dict() == dict.fromkeys(view.client.ids, 7)


def test_outputs(all_engines: Any) -> None:
    def speak() -> int:
        import sys

        print("out")
        print("err", file=sys.stderr)
        return 1

    result = all_engines.apply_async(speak)
    assert result.get(SOON) == [1, 1, 1]
    assert result.stdout == ["out\n"] * 3
    assert result.stderr == ["err\n"] * 3
    assert result.engine_id == all_engines.client.ids


def test_outputs_come_while_a_call_runs(view: Any, tmp_path: Any) -> None:
    gate = tmp_path / "gate"

    def speak(path: str) -> None:
        import os
        import time

        print("first")
        while not os.path.exists(path):
            time.sleep(0.01)
        print("second")

    result = view.apply_async(speak, str(gate))
    until(lambda: result.stdout == ["first\n"] * 3, "outputs of a call that runs")
    assert not result.ready()
    gate.touch()
    result.get(SOON)
    assert result.stdout == ["first\nsecond\n"] * 3


def test_displays_and_results_of_code(view: Any) -> None:
    view.execute("from IPython.display import display, HTML", block=True)
    result = view.execute("display(HTML('<b>x</b>'))\n6 * 7", silent=False, block=True)
    assert [out[0]["data"]["text/html"] for out in result.outputs] == ["<b>x</b>"] * 3
    assert [one["data"] for one in result.execute_result] == [{"text/plain": "42"}] * 3
    assert [str(reply).partition("]: ")[2] for reply in result.get()] == ["42>"] * 3
    view.execute("%timeit -n1 -r1 pass\nshell = get_ipython(); twice = _ * 2", block=True)
    assert view["twice"] == [84, 84, 84]


def test_threads_that_calls_leave_alone_print_elsewhere(view: Any) -> None:
    """What is captured is what the call itself prints."""
    result = view.apply_async(lambda: print("mine"))
    result.get(SOON)
    assert result.stdout == ["mine\n"] * 3


def test_timings(view: Any) -> None:
    result = view.apply_async(time.sleep, 0.05)
    result.get(SOON)
    for name in ("submitted", "started", "completed", "received"):
        assert all(isinstance(moment, datetime) for moment in result[name])
    assert result.serial_time >= 3 * 0.05
    assert result.wall_time >= 0.05
    assert result.elapsed >= 0.05


def test_errors_of_some_engines(view: Any) -> None:
    view.scatter("rank", range(3), flatten=True)

    def fail() -> int:
        if rank == 1:  # noqa: F821
            raise ValueError("one is bad")
        return rank  # noqa: F821

    result = view.apply_async(interactive(fail))
    with pytest.raises(CompositeError, match="one is bad") as caught:
        result.get(SOON)
    assert not result.successful()
    ((name, text, traceback, engine),) = caught.value.elist
    assert (name, text) == ("ValueError", "one is bad")
    assert "one is bad" in traceback
    assert "perform" not in traceback  # the engine's own frames
    assert engine["engine_id"] == view.targets[1]
    assert engine["method"] == "apply"
    zero, error, two = result.get(return_exceptions=True)
    assert (zero, two) == (0, 2)
    assert isinstance(error, RemoteError)


def test_a_single_engine_raises_its_own_error(client: Any) -> None:
    with pytest.raises(RemoteError, match="ZeroDivisionError") as caught:
        client[0].execute("1 / 0", block=True)
    assert not isinstance(caught.value, CompositeError)
    assert caught.value.ename == "ZeroDivisionError"


def test_what_cannot_be_pickled_here(view: Any) -> None:
    count = len(view.client.history)
    with pytest.raises(TypeError, match="cannot pickle"):
        view.apply_async(len, threading.Lock())
    with pytest.raises(TypeError, match="cannot pickle"):
        view.push({"lock": threading.Lock()})
    assert len(view.client.history) == count
    assert view.apply_sync(len, [1]) == [1, 1, 1]


def test_what_cannot_be_pickled_there(view: Any) -> None:
    view.execute("import threading; lock = threading.Lock()", block=True)
    with pytest.raises(CompositeError, match=r"Could not serialize object of type .*lock"):
        view.pull("lock", block=True)
    assert view.apply_sync(len, [1]) == [1, 1, 1]


def test_what_cannot_be_unpickled(view: Any) -> None:
    def refuse() -> Any:
        raise OSError("not here")

    class Refusing:
        def __reduce__(self) -> Any:
            return refuse, ()

    with pytest.raises(CompositeError, match="not here"):
        view.apply_sync(lambda x: x, Refusing())
    view.execute(
        "class Refusing:\n    def __reduce__(self): return __import__, ('no_such_module',)",
        block=True,
    )
    with pytest.raises(CompositeError, match="cannot be unpickled here: No module"):
        view.pull("Refusing()", block=True)
    assert view.apply_sync(len, [1]) == [1, 1, 1]


def test_what_was_asked_for_wrongly(view: Any) -> None:
    with pytest.raises(TypeError):
        view.apply_sync(5)
    with pytest.raises(TypeError):
        view.push([1])
    with pytest.raises(TypeError):
        view.pull(3)
    with pytest.raises(CompositeError, match="NameError"):
        view["no_such_name"]


def test_abort_of_what_waits(client: Any) -> None:
    view = client[:]
    running = endless(view)
    waiting = [view.apply_async(len, [1]) for _ in range(3)]
    kept = view.execute("kept = 1", block=False)
    waiting[0].abort()
    view.abort(waiting[1:])
    # Engines say so at once.
    for result in waiting:
        assert all(isinstance(one, TaskAborted) for one in result.get(SOON))
    assert not running.ready()
    # What is called later waits all the same.
    later = view.apply_async(len, [1])
    client.interrupt()
    with pytest.raises(CompositeError, match="KeyboardInterrupt"):
        running.get(SOON)
    kept.get(SOON)
    assert later.get(SOON) == [1, 1, 1]
    assert view["kept"] == [1, 1, 1]
    with pytest.raises(RuntimeError, match="already done"):
        running.abort()


def test_abort_of_what_waits_behind_a_task(client: Any, tmp_path: Path) -> None:
    def wait(begun: str, gate: str) -> None:
        import os
        import time

        with open(begun, "w"):
            pass
        while not os.path.exists(gate):
            time.sleep(0.005)

    begun, gate = tmp_path / "begun", tmp_path / "gate"
    engine = client.ids[0]
    task = client.load_balanced_view([engine]).apply_async(wait, str(begun), str(gate))
    until(begun.exists, "the task runs")
    result, kept = client[0].apply_async(len, [1]), client[0].apply_async(len, [1, 2])
    until(lambda: client.engines.queue_status(engine)["queue"] == 3, "the calls wait")
    result.abort()
    with pytest.raises(TaskAborted):
        result.get(SOON)
    assert not task.ready()
    gate.touch()
    task.get(SOON)
    assert kept.get(SOON) == 2


def test_each_engine_has_its_own_times(client: Any) -> None:
    """Their results are the same, and what is the same is kept together."""
    view = client[:]
    pauses = dict(zip(client.ids, (0.1, 0.3, 0.2), strict=True))
    for engine, pause in pauses.items():
        client[engine].push({"own_pause": pause}, block=True)
    view.execute("import time", block=True)
    result = view.apply_async(interactive(lambda: time.sleep(own_pause)))  # noqa: F821
    assert result.get(SOON) == [None] * 3
    assert result.engine_id == list(pauses)
    for began, ended, pause in zip(result.started, result.completed, pauses.values(), strict=True):
        assert (ended - began).total_seconds() >= pause


def test_waiting_in_several_threads(client: Any) -> None:
    result = endless(client[:])
    events = [result._ready_event, result._output_event, result._ready_event]
    with ThreadPoolExecutor(5) as pool:
        waits = [pool.submit(event.wait, SOON) for event in events]
        waits += [pool.submit(result.wait, SOON), pool.submit(result.wait_for_output, SOON)]
        assert not result._ready_event.wait(0.05)
        assert not any(wait.done() for wait in waits)
        client.interrupt()
        assert all(wait.result(SOON) for wait in waits)


def test_interrupt_of_some(client: Any) -> None:
    view = client[:]
    result = endless(view)
    client.interrupt(client.ids[:2])
    first, second, third = result.split()
    for one in (first, second):
        with pytest.raises(RemoteError, match="KeyboardInterrupt"):
            one.get(SOON)
    assert not third.ready()
    client.interrupt([client.ids[2]])
    with pytest.raises(CompositeError):
        result.get(SOON)
    # Engines that run nothing take no notice.
    client.interrupt()
    assert view.apply_sync(len, [1]) == [1, 1, 1]


@interactive
def _until_there(path: str) -> None:
    import os
    import time

    while not os.path.exists(path):
        time.sleep(0.01)


def test_an_interrupt_at_the_client(view: Any, tmp_path: Path) -> None:
    """Who waits has the pending result instead, as in ipyparallel; the engines go on."""
    main, gate = threading.get_ident(), tmp_path / "gate"

    def interrupt() -> None:
        until(lambda: _waits_for_what_arrives(main), "the call is waited for")
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = view.apply_sync(_until_there, str(gate))
    thread.join()
    assert not result.ready()
    gate.touch()
    assert result.get(SOON) == [None] * 3
    assert view.apply_sync(len, []) == [0] * 3


def _waits_for_what_arrives(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code is Transport.wait.__code__:
            return True
        frame = frame.f_back
    return False


def test_code_that_fails_stops_what_was_to_follow_it(client: Any) -> None:
    view = client[0]
    first = endless(view)
    failing = view.execute("1 / 0", silent=False, block=False)
    following = view.execute("followed = 1", silent=False, block=False)
    until(lambda: client.engines.queue_status(client.ids[0])["queue"] == 3, "all of them wait")
    client.interrupt()
    with pytest.raises(RemoteError, match="KeyboardInterrupt"):
        first.get(SOON)
    with pytest.raises(RemoteError, match="ZeroDivisionError"):
        failing.get(SOON)
    with pytest.raises(TaskAborted):
        following.get(SOON)
    with pytest.raises(RemoteError, match="NameError"):
        view["followed"]


def test_results_by_their_ids(client: Any) -> None:
    view = client[:]
    result = view.apply_async(len, [1, 2])
    result.get(SOON)
    again = client.engines.get_result(result.msg_ids)
    assert again.get(SOON) == [2, 2, 2]
    assert again.engine_id == client.ids
    client.engines.purge_results("all")
    with pytest.raises(KeyError):
        client.engines.get_result(result.msg_ids).get(SOON)


def test_the_oldest_results_give_way(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To larger ones, and to many: a result that is nothing takes memory, too."""
    monkeypatch.setattr("treadle.views._finished._BYTES", 100_000)
    view = client[:]
    first = view.apply_async(len, [])
    first.get(SOON)
    large = view.apply_async(bytes, 20_000)
    large.get(SOON)
    assert client.engines.get_result(first.msg_ids).get(SOON) == [0] * 3
    larger = view.apply_async(bytes, 25_000)
    larger.get(SOON)
    for gone in (first, large):
        with pytest.raises(KeyError):
            client.engines.get_result(gone.msg_ids).get(SOON)
    assert client.engines.get_result(larger.msg_ids).get(SOON) == [bytes(25_000)] * 3
    for _ in range(100):
        view.push({"x": 1}, block=True)
    with pytest.raises(KeyError):
        client.engines.get_result(larger.msg_ids).get(SOON)


def test_history_and_outstanding_are_a_list_and_a_set(client: Any, tmp_path: Any) -> None:
    view, engines = client[:], client.engines
    before = list(engines.history)
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)"
    first, second = view.execute(code, block=False), view.apply_async(len, "ab")
    names = first.msg_ids + second.msg_ids
    for history in (view.history, copy.copy(view.history), engines.history[len(before) :]):
        assert history == names
        assert history[-1] == names[-1]
        assert history[:2] == names[:2]
        assert len(history) == len(names)
        assert names[0] in history
    for outstanding in (view.outstanding, engines.outstanding):
        assert names[-1] in outstanding
        assert set(names) == outstanding == set(outstanding)
        assert outstanding - set(first.msg_ids) == set(second.msg_ids)
        assert outstanding & {names[0], "another"} == {names[0]}
        assert outstanding.difference(first.msg_ids) == set(second.msg_ids)
        assert "another" not in outstanding
    go.touch()
    assert second.get(SOON) == [2, 2, 2]
    for outstanding in (view.outstanding, engines.outstanding):
        assert not outstanding
        assert not outstanding | set()
    engines.purge_everything()
    assert engines.history == []


def test_calls_to_the_same_engines_share_their_list(client: Any) -> None:
    """The history keeps it, for each call."""
    view, one = client[:], client[[client.ids[0]]]
    first = view.apply_async(len, [])._cast
    other = one.apply_async(len, [])._cast
    second = view.apply_async(len, [])._cast
    assert second.engines is first.engines
    assert second.names._engines is first.engines
    assert other.engines == client.ids[:1]
    assert client[client.ids[1:2]].apply_async(len, [])._cast.engines == client.ids[1:2]
    assert first.engines == client.ids


def test_waiting_for_all(client: Any) -> None:
    view = client[:]
    results = [view.apply_async(time.sleep, 0.01) for _ in range(5)]
    assert client.engines.wait(results, SOON)
    assert all(result.ready() for result in results)
    assert client.engines.wait(timeout=SOON)
    assert not client.engines.outstanding


def test_closing_ends_what_is_under_way() -> None:
    import treadle

    client = treadle.Client(workers=1, set_as_default=False)
    result = client[:].apply_async(time.sleep, 1000)
    client.close()
    with pytest.raises(CompositeError, match=r"EngineError.*closed"):
        result.get(SOON)
    with pytest.raises(RuntimeError, match="closed"):
        client.engines.cast([0], "apply", [])
