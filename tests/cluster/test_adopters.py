"""What users of comparable engines report missing: each is a sentence of issue 21, as a test."""

from __future__ import annotations

import threading
import traceback

import pytest

from client_support import AGAINST

here = threading.local()


def fail():
    try:
        raise KeyError("the first")
    except KeyError as error:
        raise ValueError("the second") from error


@pytest.mark.parametrize("collect", ["result", "exception", "gather"])
def test_an_exception_keeps_its_cause_and_traceback(client, collect):
    future = client.submit(fail)
    if collect == "exception":
        error = future.exception()
    else:
        with pytest.raises(ValueError, match="the second") as caught:
            future.result() if collect == "result" else client.gather([future])
        error = caught.value
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert "fail" in frames
    assert isinstance(error, ValueError)
    assert isinstance(error.__cause__, KeyError)
    assert error.__cause__.args == ("the first",)
    assert "fail" in [frame.name for frame in traceback.extract_tb(future.traceback())]


def count():
    here.calls = getattr(here, "calls", 0) + 1
    return threading.get_ident(), here.calls


def test_the_state_of_a_worker_thread_lives_from_task_to_task(client, workers):
    calls = [client.submit(count, pure=False, workers=workers[:1]).result() for _ in range(5)]
    threads = {thread for thread, _ in calls}
    assert len(threads) == 1, "the worker has one thread"
    first = calls[0][1]
    assert [number for _, number in calls] == list(range(first, first + 5))


def test_many_values_are_gathered_at_once(client):
    pieces = 2000
    futures = client.map(bytes, [10_000] * pieces, pure=False)
    values = client.gather(futures)
    assert len(values) == pieces
    assert {len(value) for value in values} == {10_000}


@pytest.mark.skipif(AGAINST != "treadle", reason="it has no trace")
def test_what_a_client_remembers_of_its_calls_is_bounded():
    from treadle.client._tracing import _MOST, Spans

    spans = Spans()
    for number in range(_MOST + 10):
        spans.add("submit", 0, number)
    assert len(spans.calls) == _MOST
    assert spans.dropped == 10, "and what is missing is counted"
    assert spans.calls[0][-1] == 10, "the oldest go"
