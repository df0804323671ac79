"""What a rule of diagnosis is, and what it finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from treadle.coordinator._measures import Application

__all__ = ["Finding", "Rule", "size_text"]


@dataclass(frozen=True)
class Finding:
    """A cause, what shows it, and what would help.

    ``parameter`` is None where no setting helps by itself. Values are bytes, counts, or 0 and 1 for switches.
    """

    rule: str
    evidence: str
    expected: str
    weight: float
    """The share of the executors' busy time that it concerns, 0 to 1: the largest is first."""
    parameter: str | None = None
    old: float | None = None
    new: float | None = None
    stage: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return its fields."""
        return asdict(self)


class Rule(Protocol):
    """What names one cause."""

    name: str

    def look(self, app: Application) -> Finding | None:
        """Return what it has found, if anything."""


def size_text(number: float) -> str:
    """Return bytes in words."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.0f} {unit}" if number >= 10 or unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError
