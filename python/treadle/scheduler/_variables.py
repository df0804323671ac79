"""Variables that nobody waits for in vain."""

from __future__ import annotations

import asyncio
from typing import Any

from treadle._compat.distributed import VariableExtension

__all__ = ["Variables"]


class Variables(VariableExtension):  # type: ignore[misc]
    """distributed's, whose ``get`` sees what is set between its look and its wait.

    Before Python 3.12 ``asyncio.wait_for`` waits in a task of its own, which starts later. distributed's
    does not look again, and waits for the next value or for its timeout.
    """

    async def get(
        self, name: str | None = None, client: str | None = None, timeout: float | None = None
    ) -> Any:
        async with self.started:
            is_set = self.started.wait_for(lambda: name in self.variables)
            await asyncio.wait_for(is_set, timeout)
        return await super().get(name, client, timeout)
