"""What tasks of P2P shuffles are told. On its own: it imports all of distributed's shuffles."""

from __future__ import annotations

from distributed.shuffle._exceptions import P2PConsistencyError

__all__ = ["P2PNotSupportedError"]


# distributed wraps other errors of such tasks in one that only says that the shuffle failed.
class P2PNotSupportedError(NotImplementedError, P2PConsistencyError):
    """Treadle's workers have no P2P shuffles."""
