"""Who may do what: roles, tokens, and the headers of a reverse proxy."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import secrets
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers

__all__ = [
    "PROXY_SECRET",
    "ROLES",
    "Access",
    "TokenFile",
    "Who",
    "check_mode",
    "read_secret",
    "read_tokens",
]

_logger = logging.getLogger("treadle.coordinator")

# Each may do what those before it may. A job asks and reports, and sees nothing.
ROLES = ("job", "viewer", "operator")
COOKIE = "treadle_session"
# By it a proxy proves that it is the one: on its own machine, all users have its address.
PROXY_SECRET = "x-treadle-proxy-secret"
_MOST_SESSIONS = 10_000
_SESSION_SECONDS = 12 * 3600.0
_SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True)
class Who:
    """Who asks."""

    name: str
    role: str
    by_cookie: bool = False
    """A browser sends it by itself: changes need to come from our own page."""
    by_session: bool = False
    """He has logged in here, and can log out."""

    def may(self, role: str) -> bool:
        """Return whether the role is enough."""
        return ROLES.index(self.role) >= ROLES.index(role)


def read_tokens(path: Path) -> dict[str, Who]:
    """Return whose tokens a file has, by their hashes: lines of ROLE NAME TOKEN.

    Raises
    ------
    ValueError
        Others can read the file, or a line is malformed. No token is in the message.
    """
    check_mode(path)
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = line.split()
        if len(parts) != 3 or parts[0] not in ROLES or len(parts[2]) < 16:
            raise ValueError(
                f"{path}, line {number}: write ROLE NAME TOKEN, with a role of {', '.join(ROLES)} "
                "and a token of at least 16 characters"
            )
        found[_hash(parts[2])] = Who(parts[1], parts[0])
    return found


def read_secret(path: Path) -> str:
    """Return the secret of a reverse proxy: one word.

    Raises
    ------
    ValueError
        Others can read the file, or it has no secret. The secret is not in the message.
    """
    check_mode(path)
    words = path.read_text("utf-8", "replace").split()
    if len(words) != 1 or not words[0].isascii() or len(words[0]) < 16:
        raise ValueError(f"{path} must have one word of at least 16 characters")
    return words[0]


def check_mode(path: Path) -> None:
    """Check that others cannot read a file.

    Raises
    ------
    ValueError
        They can.
    """
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ValueError(f"{path} can be read by others: chmod 600 {path}")


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class TokenFile:
    """The tokens of a file, which is read again when it has changed.

    What is wrong with it then is logged, and those of before count.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._told = path, ""
        self._stamp, self._tokens = self._look(), read_tokens(path)

    def __call__(self) -> Mapping[str, Who]:
        """Return whose tokens it has, by their hashes."""
        try:
            # Before it is read: what is written meanwhile is read at the next call.
            if (stamp := self._look()) != self._stamp:
                tokens = read_tokens(self._path)
                self._stamp, self._tokens, self._told = stamp, tokens, ""
                _logger.info("%s is read again: %d tokens", self._path, len(tokens))
        except (OSError, ValueError) as error:
            if self._told != str(error):
                self._told = str(error)
                _logger.warning("the tokens of before count: %s", error)
        return self._tokens

    def _look(self) -> tuple[int, ...]:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


class Access:
    """Finds out who asks.

    Parameters
    ----------
    tokens
        What :func:`read_tokens` returns, or a function that returns the present ones. None: this machine alone is
        served, and whoever is on it may ask and report.
    proxy_header
        The header with the user's name, which is believed of ``proxies`` alone.
    proxy_secret
        What each request of a proxy has in the header X-Treadle-Proxy-Secret; None: its address is enough.
    operators
        The users of the header who may change things; the others may look.
    hosts
        What ``Host`` may be besides addresses of this machine: a page of another site cannot ask in its name.
    """

    def __init__(
        self,
        tokens: Mapping[str, Who] | Callable[[], Mapping[str, Who]] | None = None,
        *,
        proxy_header: str | None = None,
        proxies: Iterable[str] = (),
        proxy_secret: str | None = None,
        operators: Iterable[str] = (),
        hosts: Iterable[str] = (),
    ) -> None:
        self._given = tokens if callable(tokens) else None
        self._tokens = {} if tokens is None or callable(tokens) else dict(tokens)
        self._open_to_jobs = tokens is None
        self._proxy_header = proxy_header.lower() if proxy_header else None
        self._proxies = frozenset(proxies)
        self._proxy_secret = proxy_secret
        self._operators = frozenset(operators)
        self._hosts = frozenset(one.lower() for one in hosts) | {"localhost", "127.0.0.1", "[::1]"}
        # The hashes of their tokens, and when they began.
        self._sessions: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def new_token(self, name: str, role: str) -> str:
        """Return a token that counts until this process ends."""
        token = secrets.token_urlsafe(24)
        self._tokens[_hash(token)] = Who(name, role)
        return token

    def allows_host(self, host: str) -> bool:
        """Return whether ``Host`` names this server."""
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return name.lower() in self._hosts

    def who(
        self, method: str, headers: Mapping[str, str], peer: str, session: str | None
    ) -> Who | None:
        """Return who asks, or None.

        A browser's own means (cookies, the proxy's login) count for changes only if the request is from our own page.
        """
        given = headers.get("authorization", "")
        if given.lower().startswith("bearer "):
            return self._of_token(given[7:].strip())
        found: Who | None = None
        if self._proxy_header and peer in self._proxies:
            name = self._of_proxy(headers, self._proxy_header)
            if name:
                role = "operator" if name in self._operators else "viewer"
                found = Who(name[:200], role, by_cookie=True)
        if found is None and session is not None:
            found = self._of_session(session)
        if found is not None:
            return found if method in _SAFE or _is_own_page(headers) else None
        return Who("a job on this machine", "job") if self._open_to_jobs else None

    def _of_proxy(self, headers: Mapping[str, str], header: str) -> str:
        """Return the user whom the proxy names, or an empty text."""
        names = _all_of(headers, header)
        # Of two, one is what the user sent and the proxy did not take away.
        if len(names) != 1:
            return ""
        if self._proxy_secret is not None:
            secrets_sent = _all_of(headers, PROXY_SECRET)
            if len(secrets_sent) != 1 or not hmac.compare_digest(
                _hash(secrets_sent[0]), _hash(self._proxy_secret)
            ):
                return ""
        return names[0].strip()

    def _of_token(self, token: str) -> Who | None:
        return self._of_hash(_hash(token))

    def _of_hash(self, digest: str) -> Who | None:
        found = None
        for tokens in (self._tokens, self._given() if self._given else {}):
            for known, who in tokens.items():
                if hmac.compare_digest(known, digest):
                    found = who
        return found

    def log_in(self, token: str) -> tuple[str, Who] | None:
        """Return a session for a token, which is not the token, and whose it is; None: nobody has that token."""
        who = self._of_token(token)
        if who is None or who.role == "job":
            return None
        session = secrets.token_urlsafe(32)
        self._sessions[session] = (_hash(token), time.monotonic())
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session, who

    def log_out(self, session: str) -> Who | None:
        """End a session; return whose it was."""
        who = self._of_session(session)
        self._sessions.pop(session, None)
        return who

    def _of_session(self, session: str) -> Who | None:
        digest, begun = self._sessions.get(session, ("", -math.inf))
        # A token that is gone takes its sessions with it.
        who = self._of_hash(digest) if time.monotonic() - begun <= _SESSION_SECONDS else None
        if who is None or who.role == "job":
            self._sessions.pop(session, None)
            return None
        return Who(who.name, who.role, by_cookie=True, by_session=True)


def _all_of(headers: Mapping[str, str], name: str) -> list[str]:
    """Return all values of a header: there may be several of a name."""
    if isinstance(headers, Headers):
        return headers.getlist(name)
    return [headers[name]] if name in headers else []


def _is_own_page(headers: Mapping[str, str]) -> bool:
    """Return whether a browser says that the request comes from a page of this server.

    A form of another site cannot send JSON without being asked first, and cannot hide where it comes from.
    """
    if not headers.get("content-type", "").lower().startswith("application/json"):
        return False
    origin = headers.get("origin", "")
    host = headers.get("host", "")
    return origin.partition("://")[2] == host or headers.get("sec-fetch-site") == "same-origin"
