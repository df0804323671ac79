"""Asking a coordinator, within two seconds. Nothing here fails a job, and nothing but the standard library is needed."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

__all__ = ["SECONDS", "Answer", "ask", "is_loopback", "report"]

_Value = TypeVar("_Value")

# For all of it: names, connections, answers.
SECONDS = 2.0
_LARGEST = 2**20


@dataclass(frozen=True)
class Answer:
    """What a coordinator says, or why it says nothing."""

    uses_service: bool = False
    reason: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    """Of the decision; empty: there is none."""


def ask(
    url: str,
    job: Mapping[str, str],
    *,
    manager: str = "",
    names: Iterable[str] = (),
    tunable: Iterable[str] = (),
    token_file: str | None = None,
    seconds: float = SECONDS,
) -> Answer:
    """Ask the coordinator at ``url`` about a job. Without an answer in time, an answer without an id says why."""
    question = {
        "id": uuid.uuid4().hex,
        "job": dict(job),
        "manager": manager,
        "names": sorted(names),
        "tunable": sorted(tunable),
    }
    told = _within(lambda: _asked(url, question, token_file, seconds), seconds)
    if isinstance(told, Answer):
        return told
    return Answer(reason=f"the coordinator at {_shown(url)} did not decide{told}")


def report(
    url: str,
    identity: str,
    end: Mapping[str, Any],
    *,
    token_file: str | None = None,
    seconds: float = SECONDS,
) -> str:
    """Report the end of a job; return why that failed, or an empty text."""
    path = f"/api/jobs/{quote(identity, safe='')}/end"
    told = _within(lambda: _posted(url, path, end, token_file, seconds), seconds)
    if not isinstance(told, str):
        return ""
    return f"the coordinator at {_shown(url)} did not take the end of {identity}{told}"


def _within(work: Callable[[], _Value], seconds: float) -> _Value | str:
    """Return what a function returns, or the end of a sentence that says why it did not."""
    found: list[_Value | str] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(f": {error or type(error).__name__}")

    # Looking up a name, or many small reads, can take longer than a socket's timeout: a thread is left behind then.
    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        # The interpreter ends.
        return f": {error}"
    thread.join(seconds)
    return found[0] if found else f" within {seconds:g} s"


def _asked(url: str, question: Mapping[str, Any], token_file: str | None, seconds: float) -> Answer:
    told = _posted(url, "/api/decisions", question, token_file, seconds)
    settings = told["settings"]
    is_text = all(isinstance(k, str) and isinstance(v, str) for k, v in settings.items())
    if told["id"] != question["id"] or not is_text or not isinstance(told["uses_service"], bool):
        raise ValueError("its answer is malformed")
    return Answer(told["uses_service"], _line(str(told["reason"])[:1000]), settings, told["id"])


def _posted(
    url: str, path: str, body: Mapping[str, Any], token_file: str | None, seconds: float
) -> Any:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("its URL must begin with http:// or https://")
    headers = {"Content-Type": "application/json"}
    if token_file:
        if parts.scheme != "https" and not is_loopback(parts.hostname):
            raise ValueError("a token is sent by https:// alone, or within this machine")
        headers["Authorization"] = "Bearer " + _token(Path(os.path.expanduser(token_file)))
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(parts.hostname, parts.port, timeout=seconds)
    try:
        connection.request("POST", parts.path.rstrip("/") + path, json.dumps(body), headers)
        response = connection.getresponse()
        answer = response.read(_LARGEST)
    finally:
        connection.close()
    if response.status != 200:
        raise ValueError(f"HTTP {response.status} {_detail(answer)}".strip())
    return json.loads(answer)


def _token(file: Path) -> str:
    """Return the token of a file. An error says nothing of what is in the file: it may be another secret."""
    words = file.read_text("utf-8", "replace").split()
    if len(words) != 1 or not words[0].isascii() or not words[0].isprintable():
        raise ValueError("token-file must have one token, and nothing else")
    return words[0]


def is_loopback(host: str) -> bool:
    """Return whether an address or a name is this machine's own."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _line(text: str) -> str:
    """Return a text without what would begin a line, or move a terminal's cursor."""
    return "".join(one if one.isprintable() else " " for one in text)


def _detail(body: bytes) -> str:
    try:
        return _line(str(json.loads(body)["detail"])[:200])
    except (ValueError, KeyError, TypeError):
        return ""


def _shown(url: str) -> str:
    """Return a URL without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
