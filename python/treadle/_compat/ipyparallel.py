"""Private parts of ipyparallel."""

from __future__ import annotations

from typing import Any

from treadle._compat import Contact, Library

__all__ = ["CANNED", "LIBRARY"]

#: Classes whose instances are made what they stand for where they are unpickled.
CANNED = {
    "PrePickled": Contact(
        "ipyparallel.serialize.serialize:PrePickled", "send what was pickled before as it is"
    ),
    "Reference": Contact(
        "ipyparallel.serialize.canning:Reference", "put variables of engines in their place"
    ),
    "dependent": Contact("ipyparallel.controller.dependency:dependent", "serve `@depend`"),
}

LIBRARY = Library(
    "ipyparallel",
    oldest="9.0.0",
    newest="9.2.0",
    requirement="ipyparallel>=9",
    contacts={
        **CANNED,
        "ExecuteReply": Contact(
            "ipyparallel.client.client:ExecuteReply", "return what `execute` returns"
        ),
        "MessageFuture": Contact(
            "ipyparallel.client.futures:MessageFuture", "give its results their futures"
        ),
        "ParallelFunction": Contact(
            "ipyparallel.client.remotefunction:ParallelFunction", "split the arguments of a map"
        ),
        "ParallelMagics": Contact("ipyparallel.client.magics:ParallelMagics", "have `%px`"),
        "deserialize_object": Contact(
            "ipyparallel.serialize:deserialize_object", "open what ipyparallel has canned"
        ),
        "finished_tracker": Contact(
            "ipyparallel.client.asyncresult:finished_tracker", "say that nothing is being sent"
        ),
        "getname": Contact(
            "ipyparallel.client.remotefunction:getname", "name functions as it does"
        ),
        "multi_future": Contact(
            "ipyparallel.client.futures:multi_future", "wait for several messages"
        ),
        "partitioning": Contact(
            "ipyparallel.client.map", "split sequences as its views do", ("dists",)
        ),
    },
)


def __getattr__(name: str) -> Any:
    found = LIBRARY.find(name)
    globals()[name] = found
    return found
