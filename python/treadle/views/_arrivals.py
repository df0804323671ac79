"""What arrives of a message: outputs, then the result, which has all of the outputs once more."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextvars import Context
from datetime import datetime, timezone
from typing import Any, TypeAlias

from ipyparallel import error

from treadle._compat.ipyparallel import ExecuteReply, MessageFuture
from treadle.pickling import _canning
from treadle.worker import _cast_reply

__all__ = [
    "Times",
    "finish",
    "is_nothing",
    "lose",
    "put_out",
    "refuse",
    "result_of",
    "size_of",
    "succeeded",
]

#: When the engine began and ended, as ``time.time()`` has it.
Times: TypeAlias = "tuple[float, float]"


def put_out(future: MessageFuture, frames: Sequence[Any]) -> None:
    """Take outputs of a call that runs."""
    first, events = pickle.loads(frames[0])
    _take(future, first, events)


def _take(future: MessageFuture, first: int, events: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Take the events that have not come before: each counts once, in order."""
    seen = getattr(future, "seen", 0)
    if first > seen:
        # Some are missing: they come with the result.
        return
    for kind, content in events[seen - first :]:
        _apply(future.output.metadata, kind, content)
        future.seen = seen = seen + 1
        message = {
            "header": {"msg_type": kind},
            "parent_header": {"msg_id": future.msg_id},
            "content": content,
        }
        for callback in list(future.iopub_callbacks):
            # What arrives belongs to whatever cell runs now, not to the one that made the client,
            # whose context its event loop has.
            Context().run(callback, message)


def _apply(metadata: Any, kind: str, content: dict[str, Any]) -> None:
    if kind == "stream":
        name = content["name"]
        kept, text = metadata[name], content["text"]
        if "\r" in text:
            # Lines that have ended stay as they are.
            last = kept.rfind("\n") + 1
            kept, text = kept[:last], _taken_back(kept[last:] + text)
        metadata[name] = kept + text
    elif kind == "display_data":
        metadata["outputs"].append(content)
    elif kind == "execute_result":
        metadata["execute_result"] = content
    elif kind == "execute_input":
        metadata["execute_input"] = content["code"]
    elif kind == "error":
        metadata["error"] = error.unwrap_exception(content)


def _taken_back(text: str) -> str:
    """Drop, of each line, what a carriage return took back: all before it, once something follows."""

    def left(line: str) -> str:
        body = line.removesuffix("\r")
        return body.rpartition("\r")[2] + line[len(body) :]

    return "\n".join(map(left, text.split("\n")))


def finish(
    future: MessageFuture, frames: Sequence[Any], times: Times | None, received: datetime
) -> Any:
    """Take the result, which is returned: an exception if the call failed."""
    metadata = future.output.metadata
    metadata["received"] = received
    if times is not None:
        for name, time in zip(("started", "completed"), times, strict=True):
            metadata[name] = datetime.fromtimestamp(time, timezone.utc)
    reply = _cast_reply.loads(frames[0])
    metadata["status"] = reply["status"]
    _take(future, 0, reply.get("events", ()))
    if reply["status"] == "ok" and future.header["msg_type"] == "execute_request":
        content = {"status": "ok", "execution_count": reply["count"]}
        return ExecuteReply(future.msg_id, content, metadata)
    return result_of(future.msg_id, _where(metadata), frames)


def result_of(name: str, where: dict[str, Any], frames: Sequence[Any]) -> Any:
    """Return the result of a call that is in frames: an exception if it failed."""
    reply = _cast_reply.loads(frames[0])
    if reply["status"] == "aborted":
        return error.TaskAborted(name)
    if reply["status"] == "error":
        return error.unwrap_exception(reply["error"])
    try:
        return _canning.loads(frames[1:]) if len(frames) > 1 else None
    except Exception as problem:
        text = f"the result cannot be unpickled here: {problem}"
        return error.RemoteError(type(problem).__name__, text, "", {**where, "method": "apply"})


def succeeded(frames: Sequence[Any]) -> bool:
    """Whether the result in frames is not an exception."""
    return bool(_cast_reply.loads(frames[0])["status"] == "ok")


def is_nothing(frames: Sequence[Any]) -> bool:
    """Whether the result in frames is that of a call that returned nothing, and put nothing out."""
    return len(frames) == 1 and not len(frames[0])


def size_of(frames: Sequence[Any]) -> int:
    """Return the bytes of frames."""
    return sum(memoryview(frame).nbytes for frame in frames)


def lose(future: MessageFuture, reason: str, received: datetime) -> error.RemoteError:
    """Return the error of a call whose engine died."""
    engine = future.output.metadata["engine_id"]
    text = f"Engine {engine} died while running task {future.msg_id!r}: {reason}"
    return _not_run(future, "EngineError", text, received)


def refuse(future: MessageFuture, reason: str, received: datetime) -> error.RemoteError:
    """Return the error of a call that an engine had no memory for."""
    engine = future.output.metadata["engine_id"]
    text = f"Engine {engine} did not take what was sent to it: {reason}"
    return _not_run(future, "MemoryError", text, received)


def _not_run(future: MessageFuture, kind: str, text: str, received: datetime) -> error.RemoteError:
    metadata = future.output.metadata
    metadata["received"] = received
    metadata["status"] = "error"
    metadata["error"] = failed = error.RemoteError(kind, text, text, _where(metadata))
    return failed


def _where(metadata: Any) -> dict[str, Any]:
    names = ("engine_id", "engine_uuid")
    return {**{name: metadata[name] for name in names}, "method": "apply"}
