"""A function that a client wants to be run here (``Client.run``, ``run_on_scheduler``)."""

from __future__ import annotations

import logging
import pickle
from typing import Any

from dask.utils import funcname
from distributed.utils import has_arg, iscoroutinefunction

from treadle._compat.distributed import Serialize
from treadle.errors import _pickled as errors

__all__ = ["run_function"]

# What silences distributed's workers silences this.
logger = logging.getLogger("distributed.worker")

# Characters of a function and its arguments in the log.
_LONGEST = 1000


async def run_function(
    server: Any, function: bytes, args: Any = (), kwargs: Any = None, wait: bool = True
) -> dict[str, Any]:
    """Call a pickled function, and return what it returns or raises as ``distributed.worker.run`` does.

    It is given ``server`` as ``dask_worker`` or ``dask_scheduler``, if it takes that.
    """
    call: Any = pickle.loads(function)
    args = pickle.loads(args) if args else ()
    kwargs = pickle.loads(kwargs) if kwargs else {}
    for name in ("dask_worker", "dask_scheduler"):
        if has_arg(call, name):
            kwargs[name] = server
    logger.info("Run out-of-band function %r", funcname(call))
    try:
        if not iscoroutinefunction(call):
            result = call(*args, **kwargs)
        elif wait:
            result = await call(*args, **kwargs)
        else:
            server._ongoing_background_tasks.call_soon(call, *args, **kwargs)
            result = None
    except Exception as error:
        text, traceback = errors.texts(error)
        logger.warning(
            "Run Failed\nFunction: %s\nException: %s\nTraceback:\n%s",
            str(funcname(call))[:_LONGEST],
            text[:_LONGEST],
            traceback.rstrip(),
        )
        return errors.as_message(error)
    return {"status": "OK", "result": Serialize(result)}
