"""A method of shuffles that the user has not chosen."""

from __future__ import annotations

from typing import Any

__all__ = ["Unchosen"]


class Unchosen(str):
    """``"tasks"``, in place of what the user has not chosen."""

    __slots__ = ()

    def __repr__(self) -> str:
        # Dask makes tokens of it: what the user has chosen is another expression.
        return "'tasks, unchosen'"

    def __reduce__(self) -> tuple[Any, ...]:
        # Elsewhere nobody chooses.
        return str, (str(self),)
