"""Lines of the table, and rates taken in turns: every figure is a ratio of things measured side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MISSING = "not run"


@dataclass(frozen=True)
class Figure:
    """One line of the table. ``passed`` is None where the line only informs."""

    what: str
    measured: str
    peer: str = ""
    ratio: str = ""
    bar: str = ""
    passed: bool | None = None
    limit: str = ""

    COLUMNS = ("what", "measured", "peer", "ratio", "bar", "ok", "what limits it")

    @property
    def verdict(self) -> str:
        return "" if self.passed is None else "met" if self.passed else "**missed**"

    def cells(self) -> tuple[str, ...]:
        return (
            self.what,
            self.measured,
            self.peer,
            self.ratio,
            self.bar,
            self.verdict,
            self.limit,
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Samples:
    """One number a round and name; numbers of one round were taken one after the other."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])

    def ratio(self, name: str, base: str) -> float:
        """Median over the rounds of ``name`` over ``base``: a slow spell of the machine hits both."""
        return statistics.median(
            a / b for a, b in zip(self.values[name], self.values[base], strict=True)
        )

    def highest(self, names: Iterable[str]) -> str:
        return max(names, key=self.median)

    def against(
        self,
        what: str,
        ours: str,
        peers: Iterable[str],
        least: float | None,
        *,
        unit: str = "MB/s",
        also: Iterable[str] = (),
        limit: str = "",
    ) -> Figure:
        """``ours`` over the best of ``peers``, which has to be ``least`` or more if that is given.

        ``also`` names others that are only told.
        """
        peers = list(peers)
        best = self.highest(peers)
        told = f"{best}: {self.median(best):,.0f} {unit}"
        if rest := [f"{name} {self.median(name):,.0f}" for name in (*peers, *also) if name != best]:
            told += f" ({', '.join(rest)})"
        bar = "" if least is None else f"≥ {least:.0%}" if least < 2 else f"≥ {least:g} ×"
        if ours not in self:
            return Figure(what, MISSING, told, bar=bar)
        ratio = self.ratio(ours, best)
        return Figure(
            what,
            f"{self.median(ours):,.0f} {unit}",
            told,
            f"{ratio:.0%}" if ratio < 2 else f"{ratio:.1f} ×",
            bar,
            None if least is None else ratio >= least,
            limit,
        )


def interleave(turns: Mapping[str, Callable[[], float]], rounds: int) -> Samples:
    """Take one number from each of ``turns`` a round, after one that does not count.

    Every other round is the other way round: nobody always comes after the same one, and finds the
    caches and the hub as that one leaves them.
    """
    for turn in turns.values():
        turn()
    samples = Samples({name: [] for name in turns})
    for number in range(rounds):
        for name, turn in list(turns.items())[:: -1 if number % 2 else 1]:
            samples.values[name].append(turn())
    return samples


def time_of(seconds: float) -> str:
    """Three digits, in the unit that suits."""
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
