"""Tracebacks that travel.

A traceback needs frames, and frames that were made by running something (which is what tblib does)
know who called them: they would keep everything alive that the receiver's own functions held when
they unpickled the traceback, futures above all. A generator that was not started has a frame that
nobody called.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from functools import lru_cache
from types import CodeType, FunctionType, GeneratorType, TracebackType
from typing import Any, cast

__all__ = ["rebuild", "reduce"]

# File, function, line, module.
_Entry = tuple[str, str, int, "str | None"]


def reduce(traceback: TracebackType) -> tuple[Any, ...]:
    """Return how to pickle a traceback: files, functions and lines, but no values."""
    entries: list[_Entry] = []
    one: TracebackType | None = traceback
    while one is not None:
        code = one.tb_frame.f_code
        module = one.tb_frame.f_globals.get("__name__")
        entries.append((code.co_filename, code.co_name, one.tb_lineno, module))
        one = one.tb_next
    return rebuild, (tuple(entries),)


def rebuild(entries: tuple[_Entry, ...]) -> TracebackType | None:
    """Return the traceback that :func:`reduce` took apart."""
    traceback = None
    for file, function, line, module in reversed(entries):
        make = FunctionType(_code(file, function, line), {"__name__": module, "__file__": file})
        generator = cast("GeneratorType[None, None, None]", make())
        frame = generator.gi_frame
        assert frame is not None
        # The first instruction. IPython looks for the one before, and for ever, where there is none.
        traceback = TracebackType(traceback, frame, 0, line)
    return traceback


def _template() -> Generator[None, None, None]:
    yield


def _on_one_line(code: CodeType) -> CodeType:
    """Return code whose instructions are all on its first line, in no column."""
    if sys.version_info < (3, 11):
        # What was not started is on the first line.
        return code
    # An entry stands for up to eight units of two bytes: "no columns", how many, and no further line
    # (Objects/locations.md of CPython).
    units = len(code.co_code) // 2
    entries = (bytes((0xE8 | min(8, units - first) - 1, 0)) for first in range(0, units, 8))
    return code.replace(co_linetable=b"".join(entries))


_TEMPLATE = _on_one_line(_template.__code__)


@lru_cache(4096)
def _code(file: str, function: str, line: int) -> CodeType:
    return _TEMPLATE.replace(co_filename=file, co_name=function, co_firstlineno=line)
