"""What distributed has and Treadle does not serve."""

from __future__ import annotations

__all__ = ["UnservedError"]


class UnservedError(NotImplementedError, AttributeError):
    """An attribute of distributed's that is not served; to ``hasattr`` it is not there."""
