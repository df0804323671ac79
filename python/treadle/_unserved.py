"""What distributed has and Treadle does not serve."""

from __future__ import annotations

__all__ = ["UnservedError", "not_followed"]


class UnservedError(NotImplementedError, AttributeError):
    """An attribute of distributed's that is not served; to ``hasattr`` it is not there."""


def not_followed(what: str) -> UnservedError:
    """Return the error of what is known only while the steps of tasks are followed."""
    return UnservedError(
        f"{what} is kept only while steps of tasks are followed: set treadle.scheduler.steps in Dask's "
        "configuration where the scheduler starts, use distributed.span, or register a SchedulerPlugin "
        "with transition"
    )
