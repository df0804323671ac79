"""A rule tried on jobs of the past, before it is switched on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treadle.coordinator._jobs import Job
from treadle.coordinator._rules import Rule, Rules, decide

__all__ = ["DryRun", "try_rule"]

_EXAMPLES = 20


@dataclass(frozen=True)
class DryRun:
    """What a rule would have done."""

    jobs: int
    bytes: int
    taken: int
    taken_bytes: int
    changed: int
    """Jobs about which the decision would have been another one than with the other rules alone."""
    examples: tuple[str, ...]

    def sentence(self) -> str:
        """Return it in words."""
        share = f", {100 * self.taken_bytes / self.bytes:.0f} % of the bytes" if self.bytes else ""
        return f"would have taken {self.taken:,} of {self.jobs:,} jobs{share}; {self.changed:,} decisions change"

    def to_dict(self) -> dict[str, Any]:
        """Return its fields, and the sentence."""
        return {**self.__dict__, "examples": list(self.examples), "sentence": self.sentence()}


def try_rule(rule: Rule, others: Sequence[Rule], past: Iterable[tuple[Job, int, float]]) -> DryRun:
    """Try a rule on jobs, each with its shuffle bytes and its time. Dates count, the rule's switch does not."""
    tried = replace(rule, is_on=True)
    without = [one for one in others if not rule.id or one.id != rule.id]
    place = next(
        (at for at, one in enumerate(others) if rule.id and one.id == rule.id), len(without)
    )
    beside = Rules([*without[:place], tried, *without[place:]])
    present = Rules(others)
    counted = [0] * 5
    examples: list[str] = []
    for job, size, at in past:
        counted[0] += 1
        counted[1] += size
        if not tried.takes(job, at):
            continue
        counted[2] += 1
        counted[3] += size
        before = decide(job, present, is_on=True, now=at).uses_service
        if decide(job, beside, is_on=True, now=at).uses_service != before:
            counted[4] += 1
            if len(examples) < _EXAMPLES and job.name not in examples:
                examples.append(job.name)
    jobs, size, taken, taken_size, changed = counted
    return DryRun(jobs, size, taken, taken_size, changed, tuple(examples))
