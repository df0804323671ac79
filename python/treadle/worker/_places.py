"""Where the threads of tasks were: a tree of groups, functions, and what they called, of bounded size."""

from __future__ import annotations

from types import CodeType, FrameType

__all__ = ["Places"]

# Places that are told apart until they are told; more count where they were called.
_MOST = 2_000
# How deep they are told apart, and how many frames of a stack are looked at.
_DEEPEST = 100
_LOOKS = 1_000


class _Place:
    """A function, or a group."""

    __slots__ = ("called", "code", "seconds")

    def __init__(self, code: CodeType | str) -> None:
        # Of a code object no other has the address while this is here.
        self.code = code
        self.seconds = 0.0
        self.called: dict[int, _Place] = {}


class Places:
    """Sums up the time that threads were at places. In one thread."""

    def __init__(self) -> None:
        self._groups: dict[str, _Place] = {}
        self._count = 0

    def add(self, group: str, frame: FrameType | None, seconds: float) -> None:
        """Count a time for where a thread is; its stack is below a group."""
        stack: list[CodeType] = []
        while frame is not None and len(stack) < _LOOKS:
            stack.append(frame.f_code)
            frame = frame.f_back
        place = self._groups.get(group)
        if place is None:
            # Groups are bounded where they are taken in, too.
            if self._count >= 2 * _MOST:
                return
            place = self._groups[group] = _Place(group)
            self._count += 1
        for code in stack[: -_DEEPEST - 1 : -1]:
            known = place.called.get(id(code))
            if known is None:
                if self._count >= _MOST:
                    break
                known = place.called[id(code)] = _Place(code)
                self._count += 1
            place = known
        place.seconds += seconds

    def take(self) -> list[tuple[int, str, int]]:
        """Return all that was counted since the last time: see ``Worker.sampled``."""
        found: list[tuple[int, str, int]] = []
        waiting = [(-1, place) for place in self._groups.values()]
        while waiting:
            parent, place = waiting.pop()
            waiting.extend((len(found), below) for below in place.called.values())
            found.append((parent, _name(place.code), round(place.seconds * 1e6)))
        self._groups, self._count = {}, 0
        return found


def _name(code: CodeType | str) -> str:
    """Return a function's name with the end of its file's, and the line where it begins."""
    if isinstance(code, str):
        return code
    name = getattr(code, "co_qualname", code.co_name)
    file = "/".join(code.co_filename.replace("\\", "/").rsplit("/", 3)[-3:])
    return f"{name} ({file}:{code.co_firstlineno})"
