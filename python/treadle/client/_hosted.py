"""A client of a Treadle that lives in another engine's cluster."""

from __future__ import annotations

import html
from collections.abc import Awaitable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from treadle.client._connected import Connected

if TYPE_CHECKING:
    from treadle.hosting import Host

__all__ = ["Hosted"]


class Hosted(Connected):
    """What a client that :func:`treadle.attach` returned can do besides."""

    def __repr__(self) -> str:
        text: str = super().__repr__()
        if self._host is None:
            return text
        link = self._host.dashboard_link
        shown = "" if link is None else f", dashboard: {link}"
        return f"{text[:-1]} in {self._host}{shown}>"

    def _repr_html_(self) -> str:
        text: str = super()._repr_html_()
        if self._host is None:
            return text
        place = html.escape(f"In {self._host}")
        link = self._host.dashboard_link
        if link is not None:
            link = html.escape(link)
            place += f", dashboard: <a href='{link}' target='_blank'>{link}</a>"
        return f"<div>{place}</div>{text}"

    def detach(self, keep: bool = False) -> Any:
        """End Treadle in the cluster that it was attached to, and close this client.

        Nothing happens if it is closed already, since the cluster has ended, say.

        Parameters
        ----------
        keep
            Give the host's workers the values that are wanted first: those of all keys of which this
            client has a finished future at that time. Tasks that still run are cancelled, and failed
            ones have no value. For collections, see :func:`treadle.give_back`.

        Returns
        -------
        With ``keep``, a dictionary with a future of the host's client for each of these keys; else
        None. In an event loop, what has to be awaited for that.

        Raises
        ------
        RuntimeError
            This client is not what :func:`treadle.attach` returned; or a value could not be given
            back, in which case it stays attached; or there is none any more, with ``keep``.
        ValueError
            The host has another task of one of these keys; it stays attached.
        """
        if self._is_detached and not keep:
            return self.close()
        host = self.host()
        if not keep:
            return self.close()
        kept = self.sync(self._keep_values, host)
        if self.asynchronous:
            return self._detach(kept)
        self.close()
        return kept

    async def _detach(self, keeping: Awaitable[Any]) -> Any:
        kept = await keeping
        await self._close()
        return kept

    async def _keep_values(self, host: Host) -> Mapping[Hashable, Any]:
        # What was released is not wanted, and may be in the way there.
        self._collect()
        with self._refcount_lock:
            # A future that is collected meanwhile takes its key out.
            states = self.futures.copy()
            finished = [key for key, state in states.items() if state.status == "finished"]
            wanted = [self._claim(key) for key in finished]
        return await host.give_back(self, wanted)

    def host(self) -> Host:
        """Return what this client is attached to.

        Raises
        ------
        RuntimeError
            This client is not what :func:`treadle.attach` returned.
        """
        if self._is_detached:
            raise RuntimeError("this client is closed: it is not attached any more")
        if self._host is None:
            raise RuntimeError("this client was not made by treadle.attach, so there is no host")
        return self._host
