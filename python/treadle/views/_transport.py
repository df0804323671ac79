"""What carries casts to engines: the seam between views and the broadcast plane (``docs/internals/broadcast.md``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from treadle.common._calls import error_of, pack, unpack_answer
from treadle.worker import _cast_reply

if TYPE_CHECKING:
    from treadle.client._client import Client
    from treadle.views._flag import Flag

__all__ = ["Engine", "Transport"]

# Seconds that the scheduler has to say who the engines are, and engines to answer what is not a cast.
_PATIENCE = 30.0


class Engine(NamedTuple):
    """An engine, for as long as its worker lives."""

    #: Small, and never given to another one.
    id: int
    uuid: str
    address: str


class Transport:
    """Sends casts to engines.

    Parameters
    ----------
    arrived
        Called with the number of a cast, engines that have sent the same, what it is, its frames,
        and when each of these engines began and ended (two doubles), in any thread: ``"output"`` as it comes, then of
        each engine once ``"finished"``, or ``"lost"`` with the reason as the only frame, or
        ``"refused"`` with the reason why it did not take the payload.
    """

    def __init__(self, client: Client, arrived: Callable[..., None]) -> None:
        self._client = client
        self._arrived = arrived
        self._addresses: dict[int, str] = {}
        self._last_at: dict[str, Engine] = {}
        connection = client._usable("talk to engines")
        connection.on_casts(self._came)

    def engines(self) -> dict[int, Engine]:
        """Return the engines that there are, by their numbers."""
        connection = self._client._usable("ask who the engines are")
        members = connection.members()
        if members is None:
            self._wait(lambda: connection.members() is not None)
            members = connection.members()
        engines = [Engine(id_, f"{id_}-{name}", address) for id_, name, address, _ in members or ()]
        for engine in engines:
            self._addresses[engine.id] = engine.address
            self._last_at[engine.address] = engine
        return {engine.id: engine for engine in sorted(engines)}

    def cast(
        self,
        engines: Sequence[int],
        head: bytes,
        frames: Sequence[Any],
        depth: int | None = None,
        degree: int | None = None,
    ) -> int:
        """Send one payload to engines; returns the cast's number.

        Raises
        ------
        OSError
            The client is closed.
        ValueError
            The engines have no tree of this depth and degree.
        """
        connection = self._client._usable("cast to engines")
        number: int = connection.cast(engines, head, frames, depth, degree)
        return number

    def _came(self, arrivals: list[tuple[int, list[int], str, list[Any], bytes]]) -> None:
        # What was dealt with is taken off the list: an interrupted call is made again, with what is
        # left of it.
        while arrivals:
            number, engines, kind, frames, times = arrivals[0]
            if kind == "aborted":
                self._arrived(number, engines, "finished", [_cast_reply.ABORTED], times)
            elif kind != "complete":
                self._arrived(number, engines, kind, frames, times)
            del arrivals[0]

    def address(self, engine: int) -> str:
        """Return the address of an engine's worker."""
        return self._addresses[engine]

    def engine_at(self, address: str) -> Engine | None:
        """Return the engine that is, or was the last, at an address."""
        return self._last_at.get(address)

    def abort(self, numbers: Sequence[int], engines: Sequence[int] | None = None) -> None:
        """Have casts not run where they have not begun: they finish as aborted."""
        connection = self._client._usable("abort")
        if engines is None:
            connection.abort(numbers)
        else:
            client = connection.id
            self.ask(engines, "engine-drop-casts", client=client, numbers=list(numbers))

    def ask(self, engines: Sequence[int], operation: str, **kwargs: Any) -> dict[int, Any]:
        """Ask engines something; answers, or the exceptions in their place, by engine."""
        places = {engine: self._addresses[engine] for engine in engines}
        return self._ask_all(places, operation, kwargs)

    def _ask_all(
        self, places: Mapping[Any, str], operation: str, kwargs: Mapping[str, Any]
    ) -> dict[Any, Any]:
        connection = self._client._usable("ask engines")
        argument = pack(kwargs)
        answers: dict[Any, Any] = {}

        def done_at(place: Any) -> Callable[[Any, Any], None]:
            def done(result: Any, error: Any) -> None:
                answers[place] = error_of(error) if error is not None else unpack_answer(result)

            return done

        for place, address in places.items():
            connection.call(address, operation, argument, done_at(place))
        self._wait(lambda: len(answers) == len(places))
        return answers

    def _wait(self, done: Callable[[], bool]) -> None:
        connection = self._client._connection
        if connection is None or not connection.wait(done, _PATIENCE):
            raise TimeoutError(f"no answer within {_PATIENCE:.0f} s")

    def wait(self, flag: Flag, is_set: Callable[[], bool], timeout: float | None) -> None:
        """Wait for a flag that is set when something arrives, as a function says; as long as there is a connection."""
        connection = self._client._connection
        if connection is None:
            flag.wait(timeout)
            return
        try:
            connection.wait(is_set, timeout)
        except (OSError, ValueError):
            # It ended meanwhile: what is under way is lost, which sets the flag.
            flag.wait(timeout)
