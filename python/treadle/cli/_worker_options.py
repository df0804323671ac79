"""The options of a worker on command lines: :class:`WorkerOptions` says what they come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from treadle.common._memory_limit import HELP
from treadle.common._numbers import MOST_THREADS, amounts

if TYPE_CHECKING:
    from treadle.common._worker_options import WorkerOptions

__all__ = ["FLAGS", "checked", "worker_options"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _resources(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> dict[str, float] | None:
    if text is None:
        return None
    resources: dict[str, float] = {}
    for pair in text.replace(",", " ").split():
        name, _, amount = pair.partition("=")
        try:
            resources |= amounts({name: amount})
        except ValueError:
            name = ""
        if not name:
            raise click.BadParameter(f"{pair!r}: write NAME=AMOUNT, such as GPU=2")
    return resources


#: What ``click.option`` is told of each; ``env`` is the environment that a command has anyway.
FLAGS: Mapping[str, Mapping[str, Any]] = {
    "nthreads": {
        "type": click.IntRange(0, MOST_THREADS),
        "help": "Tasks at once of each; by default, and with 0, the cores are shared out.",
    },
    "memory_limit": {
        "default": "auto",
        "show_default": True,
        "help": f"Of the worker's process: {HELP}; auto is this worker's share, by cores, of what the "
        "control group allows.",
    },
    "local_directory": {
        "type": click.Path(file_okay=False),
        "help": "Each worker makes a directory here for values that do not fit in memory, and removes it "
        "when it ends.",
    },
    "resources": {
        "callback": _resources,
        "metavar": "NAME=AMOUNT ...",
        "help": 'What tasks may ask for: "GPU=2 MEM=10e9"; by default distributed.worker.resources of '
        "Dask's configuration.",
    },
    "preload": {
        "multiple": True,
        "help": "A module or script with dask_setup(worker); by default distributed.worker.preload of "
        "Dask's configuration. May be repeated.",
    },
    "lifetime": {
        "metavar": "TIME",
        "help": "Leave after this time, such as 55 minutes, when the values have moved; by default "
        "distributed.worker.lifetime of Dask's configuration, or never.",
    },
    "lifetime_stagger": {
        "metavar": "TIME",
        "help": "Leave earlier or later by at most this time, at random.",
    },
    "lifetime_restart": {"default": None, "help": "Whether another process comes then."},
}


def worker_options(
    *, without: frozenset[str] = frozenset(), **helps: str
) -> Callable[[_Command], _Command]:
    """Add the options of a worker to a command, but some; ``helps`` is what this command says of them."""

    def add(command: _Command) -> _Command:
        for name in reversed([name for name in FLAGS if name not in without]):
            told = {**FLAGS[name]}
            told["help"] = helps.get(name, told["help"])
            flag = as_flag(name)
            if name == "lifetime_restart":
                flag += f"/--no-{flag[2:]}"
            command = click.option(flag, **told)(command)
        return command

    return add


def as_flag(name: str) -> str:
    """Return how a command line spells an option."""
    return f"--{name.replace('_', '-')}"


def checked(given: Mapping[str, Any], **told: Any) -> WorkerOptions:
    """Return what the options come to; ``told`` is of :meth:`WorkerOptions.of`.

    Raises
    ------
    click.BadParameter
        One of them cannot be.
    """
    # Late: it imports Dask.
    from treadle.common._worker_options import WorkerOptions

    try:
        return WorkerOptions.of(given, spelled=as_flag, **told)
    except (TypeError, ValueError) as error:
        raise click.BadParameter(str(error)) from None
