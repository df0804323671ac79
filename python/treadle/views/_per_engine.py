"""Functions of which each engine, or each task, gets a part of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ipyparallel import AsyncMapResult

from treadle._compat.ipyparallel import ParallelFunction, getname

__all__ = ["SpreadFunction", "Spreading"]


class SpreadFunction(ParallelFunction):  # type: ignore[misc]
    """A function whose arguments are spread."""

    def __call__(self, *sequences: Any, **kwargs: Any) -> Any:
        """Call it with the parts of sequences."""
        elementwise, sequences, longest = _to_spread(sequences, kwargs)
        if longest == 0:
            return []
        children, counts = self._cast(sequences, longest, elementwise)
        result = AsyncMapResult(
            self.view.client,
            children,
            self.mapObject,
            fname=getname(self.func),
            ordered=self.ordered,
            return_exceptions=self.return_exceptions,
            chunk_sizes=counts,
        )
        return self.view._finish(result, bool(self.block))

    def _cast(
        self, sequences: Sequence[Any], longest: int, elementwise: bool
    ) -> tuple[list[Any], dict[str, int]]:
        """Send the parts; return what waits for them, and how many elements each has, by message."""
        raise NotImplementedError


class Spreading:
    """What views do that spread the arguments of functions."""

    block: bool

    # What a function becomes here.
    _function: type[SpreadFunction]

    def parallel(self, dist: str = "b", block: bool | None = None, **flags: Any) -> Any:
        """Decorate a function: it is called with parts of its arguments."""
        block = self.block if block is None else block

        def decorate(function: Callable[..., Any]) -> SpreadFunction:
            return self._function(self, function, dist=dist, block=block, **flags)

        return decorate

    def _finish(self, result: Any, block: bool | None) -> Any:
        """Return the value if the view waits, and else, or after Ctrl-C, the result."""
        if self.block if block is None else block:
            try:
                return result.get()
            except KeyboardInterrupt:
                pass
        return result


def _to_spread(
    sequences: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[bool, tuple[Any, ...], int]:
    """Return what a function that spreads its arguments is called with.

    That is whether its elements are meant (a ``map``), the sequences, and the longest one's length.

    Raises
    ------
    TypeError
        It has keyword arguments.
    ValueError
        The sequences themselves are meant, and are not equally long.
    """
    elementwise = kwargs.pop("__ipp_mapping", False)
    if kwargs:
        raise TypeError(f"Unexpected keyword arguments: {kwargs}")
    sequences = tuple(map(_sized, sequences))
    lengths = [len(sequence) for sequence in sequences]
    longest = max(lengths)
    if longest and not elementwise and min(lengths) != longest:
        raise ValueError(f"all sequences must have equal length, but have {lengths}")
    return elementwise, sequences, longest


def _sized(sequence: Any) -> Any:
    """Return a sequence, or a list of what an iterator has."""
    try:
        len(sequence)
    except Exception:
        return list(sequence)
    return sequence
