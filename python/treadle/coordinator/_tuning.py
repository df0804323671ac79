"""Tuning of a recurring job: one change at a time, tried on its runs, kept or rolled back by itself."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from treadle.coordinator._allowed import LIMITS
from treadle.coordinator._statistics import ENOUGH_BEFORE, FEWEST_BEFORE, Comparison, compare
from treadle.coordinator._watching import Run

__all__ = ["LIMITS", "MODES", "Change", "Proposal", "Tuning", "Window"]

MODES = ("watch", "propose", "apply")
_DEFAULT = "propose"
_KEPT_CHANGES = 50
# A change that was rolled back is not tried again for so many runs.
_NOT_AGAIN = 50
# A failure within so many runs after a change was kept undoes it.
_DOUBTED_FOR = 5
# A change in whose trials the job changed so often is not tried again for as many.
_MOST_ENDED = 2
# Runs of a trial that did far less than usual, after which it is rolled back.
_MOST_UNDECIDED = 3
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
    concerns: float = 0.0
    """The share of the tasks' time that it concerns, 0 to 1."""

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
    """``proposed``, ``trying``, ``kept``, ``replaced``, ``rolled back``, or ``ended``: the job changed meanwhile."""
    reason: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    at: float = 0.0
    begun_at_run: int = 0
    kept_at_run: int = 0
    undecided: int = 0
    """Runs with it that did far less than those before: they say nothing of it."""
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    expected: str = ""
    """What its rule says that it does, and of which share of the tasks' time, 0 to 1."""
    concerns: float = 0.0
    decided_by: str = ""
    """The id of the run whose end has decided it."""

    @property
    def usual(self) -> float:
        """The median of the durations without it, in seconds."""
        return statistics.median(self.before) if self.before else 0.0


@dataclass
class Tuning:
    """The tuning of one recurring job. Feed it with :meth:`ended` and :meth:`proposed`; ask :meth:`settings`."""

    mode: str = _DEFAULT
    runs: int = 0
    recent: list[float] = field(default_factory=list)
    """Durations of the runs since the last change that was kept."""
    changes: list[Change] = field(default_factory=list)
    last_number: int = 0
    is_own: bool = False
    """An operator has said the mode of this job: no rollout rule does."""
    rule: int = 0
    """The rollout rule that takes it and says a mode; 0: none."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Tuning:
        """Return what :meth:`to_dict` wrote."""
        known = {**values, "changes": [Change(**one) for one in values.get("changes", ())]}
        # Before rules had modes, whoever set another one than the default was an operator.
        known.setdefault("is_own", known.get("mode", _DEFAULT) != _DEFAULT)
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

    def set_mode(self, mode: str, now: float) -> None:
        """Change the mode, as an operator says. ``watch`` ends a trial, and gives nothing that was kept.

        Raises
        ------
        ValueError
            There is no such mode.
        """
        if mode not in MODES:
            raise ValueError(f"a mode is one of {', '.join(MODES)}, not {mode!r}")
        self._change_mode(mode, now)
        self.is_own = True

    def follow(self, rule: int, mode: str, now: float) -> bool:
        """Take the mode of the rollout rule that takes the job (0, and empty: none says one); return whether that is news."""
        before = (self.rule, self.mode)
        self.rule = rule
        if not self.is_own:
            self._change_mode(mode or _DEFAULT, now)
        return before != (self.rule, self.mode)

    def _change_mode(self, mode: str, now: float) -> None:
        if mode == "watch":
            self.end_trial("the mode was set to watch", now)
        if "watch" in (mode, self.mode) and mode != self.mode and self._kept():
            # Runs with what was kept and runs without it are not compared with each other.
            self.recent = []
        self.mode = mode

    def settings(
        self, now: float, windows: Sequence[Window] = (), *, is_paused: bool = False
    ) -> tuple[dict[str, str], int]:
        """Return the settings of the next run, and the number of the change that it tries; 0: none.

        In the mode ``watch`` there are none. In a window, and if it is paused, what is tried waits, and what was kept
        stays. After the first runs of a trial, runs with and without the change take turns: what else differs between
        last week and this one is no effect of it.
        """
        if self.mode == "watch":
            return {}, 0
        found = {one.parameter: _text(one.parameter, one.new) for one in self._kept()}
        change = self.trying
        if (
            change is None
            or is_paused
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
                proposal.evidence, at=now, expected=proposal.expected, concerns=proposal.concerns,
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
            Another one is tried, it is not one that waits, or the mode is ``watch``.
        """
        if self.mode == "watch":
            raise ValueError("nothing is tried in the mode watch: set another one first")
        if self.trying is not None or change.state != "proposed":
            raise ValueError("one change at a time: wait for the one that is tried, or end it")
        change.state, change.at, change.begun_at_run = "trying", now, self.runs
        # The fewest: then runs with and without it take turns, and what else changes with time is no effect of it.
        change.before = self.recent[-FEWEST_BEFORE:]

    def ended(
        self,
        duration: float,
        change: int,
        now: float,
        *,
        failed: bool = False,
        did_less: bool = False,
    ) -> Change | None:
        """Take the end of a run with the change of this number; return a change that is decided by it.

        ``did_less``: it ended well, and did far less than usual. It was fast because of that.
        """
        self.runs += 1
        tried = self.trying
        if tried is None or tried.number != change:
            if failed:
                return self._doubt(now)
            if change == 0 and not did_less:
                self.recent = [*self.recent, duration][-30:]
                if tried is not None:
                    tried.before.append(duration)
            return None
        if failed:
            return self._decide(tried, "rolled back", "a run with it failed", now)
        if did_less:
            tried.undecided += 1
            tried.reason = "a run with it did less than half of what is usual, and does not count"
            if tried.undecided < _MOST_UNDECIDED:
                return None
            reason = f"{tried.undecided} runs with it did less than half of what is usual"
            return self._decide(tried, "rolled back", reason, now)
        tried.after.append(duration)
        told = compare(tried.before, tried.after)
        by_all = compare(self.recent, tried.after)
        if told.verdict == "wait" and by_all.verdict == "roll back":
            # All runs before it know the noise better. Nothing is kept by them: they may be of another time.
            told = by_all
        self._note(tried, told)
        if told.verdict == "wait":
            tried.reason = told.reason
            return None
        state = "kept" if told.verdict == "keep" else "rolled back"
        return self._decide(tried, state, told.reason, now)

    def end_trial(self, reason: str, now: float) -> Change | None:
        """Roll back what is tried, because somebody says so."""
        return self._decide(self.trying, "rolled back", reason, now) if self.trying else None

    def job_changed(self, run: str, durations: Sequence[float], now: float) -> Change | None:
        """End what is tried or proposed, as the job is another one since this run; return what was tried.

        What the end of that run has decided was decided by another job's runs, too. ``durations`` are those of the runs
        since then, without a change on trial.
        """
        tried = None
        for one in self.changes:
            is_decided = one.decided_by == run and one.state in ("kept", "rolled back")
            if one.state in ("trying", "proposed") or is_decided:
                tried = one if one.state != "proposed" else tried
                self._decide(one, "ended", "the job changed: its queries have another plan", now)
        self.recent = list(durations)[-30:]
        return tried

    def undo(self, number: int, reason: str, now: float) -> Change:
        """Roll back a change that is tried, or that was kept.

        Raises
        ------
        KeyError
            There is no such change.
        ValueError
            It is not in force.
        """
        change = next((one for one in self.changes if one.number == number), None)
        if change is None:
            raise KeyError(f"there is no change {number}")
        if change.state == "kept":
            # What was measured beside it says nothing of runs without it.
            self.end_trial(f"change {number}, which was in force beside it, was undone", now)
            self.recent = []
        elif change.state != "trying":
            raise ValueError(f"change {number} is {change.state}, and not in force")
        return self._decide(change, "rolled back", reason, now)

    def _doubt(self, now: float) -> Change | None:
        """Undo a change that was kept a few runs ago, as a run has failed."""
        kept = [one for one in self._kept() if self.runs - one.kept_at_run <= _DOUBTED_FOR]
        if not kept or self.mode == "watch":
            return None
        latest = max(kept, key=lambda one: one.kept_at_run)
        return self.undo(latest.number, "a run failed soon after it was kept", now)

    def like_the_next(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Return those of the latest runs that had what was kept last, or all: a change may save most of the bytes."""
        if self.mode == "watch" or not (kept := self._kept()):
            return runs
        latest = max(kept, key=lambda one: one.kept_at_run).number
        tried = [at for at, one in enumerate(runs) if one.change == latest]
        if not tried:
            return runs
        return [*(runs[at] for at in tried), *runs[tried[-1] + 1 :]]

    def _kept(self) -> list[Change]:
        return [one for one in self.changes if one.state == "kept"]

    def _decide(self, change: Change, state: str, reason: str, now: float) -> Change:
        change.state, change.reason, change.at = state, reason, now
        if state == "kept":
            # An earlier value of the same parameter is no longer in force.
            for one in self.changes:
                if one is not change and one.state == "kept" and one.parameter == change.parameter:
                    one.state = "replaced"
            self.recent = list(change.after)
            change.kept_at_run = self.runs
        return change

    @staticmethod
    def _note(change: Change, told: Comparison) -> None:
        change.ratio, change.low, change.high = told.ratio, told.low, min(told.high, 1e9)

    def _was_tried(self, parameter: str, value: float) -> bool:
        same = [one for one in self.changes if (one.parameter, one.new) == (parameter, value)]
        lately = [one for one in same if self.runs - one.begun_at_run < _NOT_AGAIN]
        # The change itself may be what gives the job another plan.
        ended = sum(one.state == "ended" and bool(one.before) for one in lately)
        return (
            ended >= _MOST_ENDED
            or any(one.state == "rolled back" for one in lately)
            or any(one.state in ("proposed", "trying", "kept") for one in same)
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
