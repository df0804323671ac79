"""Values that options of commands have, checked: an error names the option, and what it may be."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import click

__all__ = ["Number", "Seconds", "checked_address", "file_to_write", "limit_of"]

# Seconds of 31 years: whoever gives them does not want to wait for the end.
_LONGEST = 1e9


class Number(click.FloatRange):
    """A number in a range: ``nan`` is in none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


class Seconds(Number):
    """So many seconds, or more."""

    def __init__(self, least: float) -> None:
        super().__init__(least, _LONGEST)


def limit_of(read: Callable[..., int], text: str, option: str, *share: float) -> int:
    """Return the bytes that a limit stands for, as ``read`` of ``_memory_limit`` reads it.

    Raises
    ------
    click.BadParameter
        It stands for none.
    """
    try:
        return read(text, option, *share)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def checked_address(address: str) -> str:
    """Return ``SCHEME://HOST:PORT`` as it is; the native side checks the scheme and the host.

    Raises
    ------
    click.UsageError
        There is no such port.
    """
    scheme, _, place = address.partition("://")
    if scheme not in ("treadle", "treadle+tls"):
        return address
    if place.isdecimal():
        # A port alone is one of this machine.
        place = f":{place}"
    _, colon, port = place.rpartition(":")
    if not colon or "]" in port:
        raise click.UsageError(f"{address} has no port: write {address}:PORT")
    if not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"{address}: {port!r} is no port: give a number from 0 to 65535")
    return address


def file_to_write(
    _context: click.Context, _option: click.Parameter, path: str | None
) -> str | None:
    """Return the path of an option whose file is written, of which the directory is there.

    Raises
    ------
    click.BadParameter
        It is not.
    """
    if path is not None and not os.path.isdir(directory := os.path.dirname(path) or "."):
        raise click.BadParameter(f"{path}: there is no directory {directory}: make it first")
    return path
