"""Tuning of a recurring job: one change at a time, tried on its runs, kept or rolled back by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from treadle.coordinator._allowed import LIMITS
from treadle.coordinator._statistics import ENOUGH_BEFORE, FEWEST_BEFORE, Comparison, compare

__all__ = ["LIMITS", "MODES", "Change", "Proposal", "Tuning", "Window"]

MODES = ("watch", "propose", "apply")
_KEPT_CHANGES = 50
# A change that was rolled back is not tried again for so many runs.
_NOT_AGAIN = 50
_MiB = 2**20
_SWITCHES = ("spark.sql.adaptive.skewJoin.enabled", "spark.sql.adaptive.enabled")
_SIZES = (
    "spark.sql.adaptive.advisoryPartitionSizeInBytes", "spark.sql.files.maxPartitionBytes",
    "spark.sql.autoBroadcastJoinThreshold",
)  # fmt: skip


@dataclass(frozen=True)
class Window:
    """A time in which nothing is changed: seconds since 1970."""

    begins: float
    ends: float
    reason: str = ""


@dataclass(frozen=True)
class Proposal:
    """What a diagnosis proposes. Values are numbers: bytes, counts, or 0 and 1 for switches."""

    rule: str
    parameter: str
    old: float | None
    new: float
    evidence: str
    expected: str = ""

    @property
    def within_limits(self) -> float | None:
        """The new value within its floor and ceiling; None: it may not be changed, or that is no change."""
        if self.parameter not in LIMITS:
            return None
        least, most = LIMITS[self.parameter]
        value = min(max(self.new, least), most)
        return None if value == self.old else value


@dataclass
class Change:
    """A change of a setting, and what came of it."""

    number: int
    rule: str
    parameter: str
    old: float | None
    new: float
    evidence: str
    state: str = "proposed"
    """``proposed``, ``trying``, ``kept`` or ``rolled back``."""
    reason: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    at: float = 0.0
    begun_at_run: int = 0
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)


@dataclass
class Tuning:
    """The tuning of one recurring job. Feed it with :meth:`ended` and :meth:`proposed`; ask :meth:`settings`."""

    mode: str = "propose"
    runs: int = 0
    recent: list[float] = field(default_factory=list)
    """Durations of the runs since the last change that was kept."""
    changes: list[Change] = field(default_factory=list)
    last_number: int = 0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Tuning:
        """Return what :meth:`to_dict` wrote."""
        known = {**values, "changes": [Change(**one) for one in values.get("changes", ())]}
        return cls(**known)

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can keep."""
        return asdict(self)

    @property
    def trying(self) -> Change | None:
        """The change that is tried now."""
        return next((one for one in self.changes if one.state == "trying"), None)

    @property
    def waiting(self) -> Change | None:
        """The change that was proposed, and that nobody has decided about."""
        return next((one for one in self.changes if one.state == "proposed"), None)

    def settings(self, now: float, windows: Sequence[Window] = ()) -> tuple[dict[str, str], int]:
        """Return the settings of the next run, and the number of the change that it tries; 0: none.

        In a window, what is tried pauses, and what was kept stays. After the first runs of a trial, runs with and
        without the change take turns: what else differs between last week and this one is no effect of it.
        """
        found = {
            one.parameter: _text(one.parameter, one.new)
            for one in self.changes
            if one.state == "kept"
        }
        change = self.trying
        if (
            change is None
            or _is_without(change)
            or any(one.begins <= now < one.ends for one in windows)
        ):
            return found, 0
        return {**found, change.parameter: _text(change.parameter, change.new)}, change.number

    def proposed(
        self, proposals: Sequence[Proposal], now: float, windows: Sequence[Window] = ()
    ) -> Change | None:
        """Take the first proposal that may be tried; return the change that was made of it."""
        if self.mode == "watch" or self.trying or any(w.begins <= now < w.ends for w in windows):
            return None
        if len(self.recent) < FEWEST_BEFORE:
            return None
        for proposal in proposals:
            value = proposal.within_limits
            if value is None or self._was_tried(proposal.parameter, value):
                continue
            if (waiting := self.waiting) is not None:
                if self.mode == "propose":
                    return None
                self.changes.remove(waiting)
            self.last_number += 1
            change = Change(
                self.last_number, proposal.rule, proposal.parameter, proposal.old, value,
                proposal.evidence, at=now,
            )  # fmt: skip
            self.changes.append(change)
            self._forget()
            if self.mode == "apply":
                self.begin(change, now)
            return change
        return None

    def begin(self, change: Change, now: float) -> None:
        """Try a change from the next run on.

        Raises
        ------
        ValueError
            Another one is tried, or it is not one that waits.
        """
        if self.trying is not None or change.state != "proposed":
            raise ValueError("one change at a time: wait for the one that is tried, or end it")
        change.state, change.at, change.begun_at_run = "trying", now, self.runs
        change.before = list(self.recent)

    def ended(
        self, duration: float, change: int, now: float, *, failed: bool = False
    ) -> Change | None:
        """Take the end of a run with the change of this number; return a change that is decided by it."""
        self.runs += 1
        tried = self.trying
        if tried is None or tried.number != change:
            if not failed and change == 0:
                self.recent = [*self.recent, duration][-30:]
                if tried is not None:
                    tried.before.append(duration)
            return None
        if failed:
            return self._decide(tried, "rolled back", "a run with it failed", now)
        tried.after.append(duration)
        told = compare(tried.before, tried.after)
        self._note(tried, told)
        if told.verdict == "wait":
            tried.reason = told.reason
            return None
        state = "kept" if told.verdict == "keep" else "rolled back"
        return self._decide(tried, state, told.reason, now)

    def end_trial(self, reason: str, now: float) -> Change | None:
        """Roll back what is tried, because somebody says so."""
        return self._decide(self.trying, "rolled back", reason, now) if self.trying else None

    def _decide(self, change: Change, state: str, reason: str, now: float) -> Change:
        change.state, change.reason, change.at = state, reason, now
        if state == "kept":
            # An earlier value of the same parameter is no longer in force.
            for one in self.changes:
                if one is not change and one.state == "kept" and one.parameter == change.parameter:
                    one.state = "replaced"
            self.recent = list(change.after)
        return change

    @staticmethod
    def _note(change: Change, told: Comparison) -> None:
        change.ratio, change.low, change.high = told.ratio, told.low, min(told.high, 1e9)

    def _was_tried(self, parameter: str, value: float) -> bool:
        return any(
            one.parameter == parameter
            and one.new == value
            and (one.state != "rolled back" or self.runs - one.begun_at_run < _NOT_AGAIN)
            for one in self.changes
            if one.state != "replaced"
        )

    def _forget(self) -> None:
        """Keep what is in force, and the latest of the rest."""
        in_force = [one for one in self.changes if one.state in ("kept", "trying", "proposed")]
        others = [one for one in self.changes if one not in in_force][-_KEPT_CHANGES:]
        self.changes = sorted([*others, *in_force], key=lambda one: one.number)


def _is_without(change: Change) -> bool:
    """Return whether the next run of a trial is one without the change."""
    before, after = len(change.before), len(change.after)
    return after >= FEWEST_BEFORE and before < ENOUGH_BEFORE and before <= after


def _text(parameter: str, value: float) -> str:
    if parameter in _SWITCHES:
        return "true" if value else "false"
    if parameter in _SIZES:
        return f"{int(value)}b"
    return f"{int(value / _MiB)}m" if parameter == "spark.executor.memory" else str(int(value))
