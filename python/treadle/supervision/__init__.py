"""Worker processes that are looked after: by a local cluster, or by ``treadle worker``."""

from treadle.supervision._arguments import arguments_of
from treadle.supervision._aside import aside, wait_for_asides
from treadle.supervision._process import PRINTED, Death, WorkerProcess, template_of
from treadle.supervision._template import Template
from treadle.supervision._words import RefusedError, connect, is_supervisor, tell

__all__ = [
    "PRINTED",
    "Death",
    "RefusedError",
    "Template",
    "WorkerProcess",
    "arguments_of",
    "aside",
    "connect",
    "is_supervisor",
    "tell",
    "template_of",
    "wait_for_asides",
]
