"""Interrupts at the client while results are delivered: the delivery is made again, as the engine does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from treadle.pickling import _canning
from treadle.views._cast import CastResult
from treadle.worker import _cast_reply
from views_support import SOON

# What is still to be raised where a value is unpickled.
interrupts: list[type[BaseException]] = []


class Interrupted:
    """Unpickled, it is a list; but at first a signal handler raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, ()


def _load() -> list[int]:
    if interrupts:
        raise interrupts.pop()
    return [7]


FRAMES = [_cast_reply.OK, *_canning.dumps(Interrupted(), by_value=False)]


@pytest.fixture
def deliver(client: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Engines that nothing is sent to; the function delivers their results, and counts interrupts."""
    engines = client.engines
    ids = list(engines.ids)
    number = 1 << 60
    monkeypatch.setattr(engines._transport, "cast", lambda *_: number)
    # The first comes alone.
    arrivals = [(number, some, "finished", FRAMES, b"") for some in (ids[:1], ids[1:])]

    def deliver() -> int:
        count = 0
        while arrivals:
            try:
                engines._transport._came(arrivals)
            except KeyboardInterrupt:
                count += 1
        assert number not in engines._casts
        assert not engines._arriving
        return count

    return deliver


@pytest.mark.parametrize("how", ["apply", "map"])
@pytest.mark.parametrize("times", [1, 3])
def test_while_results_are_unpickled(view: Any, deliver: Any, how: str, times: int) -> None:
    interrupts[:] = [KeyboardInterrupt] * times
    if how == "apply":
        result = view.apply_async(len, [])
        expected: list[Any] = [[7], [7], [7]]
    else:
        result = view.map(abs, range(3), block=False)
        expected = [7, 7, 7]
    told: list[Any] = []
    result.add_done_callback(told.append)
    assert deliver() == times
    assert result.ready()
    assert result.get(SOON) == expected
    assert told == [result]


def test_while_it_is_told(view: Any, deliver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    finalize = CastResult._finalize_result
    to_raise = [KeyboardInterrupt]

    def interrupted(self: CastResult, future: Any) -> None:
        if to_raise:
            raise to_raise.pop()
        finalize(self, future)

    monkeypatch.setattr(CastResult, "_finalize_result", interrupted)
    result = view.apply_async(len, [])
    assert deliver() == 1
    assert result.ready()
    assert result.get(SOON) == [[7], [7], [7]]
    # Those who look for it by its id find it, too.
    assert view.client.get_result(result.msg_ids[0]).get(SOON) == [7]
