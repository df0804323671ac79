"""The command ``treadle bench transfer``."""

from __future__ import annotations

import statistics
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import treadle
from treadle.cli import _bench_raw, _bench_timeline
from treadle.cli._basics import (
    Output,
    clear_errors,
    connection_options,
    end_with_input,
    json_option,
    serve,
    tell,
    told,
)
from treadle.cli._compare import compare
from treadle.cli._values import Number, Seconds, file_to_write
from treadle.common._command_process import Child

if TYPE_CHECKING:
    from treadle._core import TransferConnection as Connection

__all__ = ["bench"]

_DEFAULT_ADDRESS = "127.0.0.1:7077"
_WARMUP = 3  # assignments before anything counts: stripes are opened, memory is touched
_TIMEOUT = 120.0
_STAGES = ("prepare", "serialise", "accept", "wire", "place")
# Options that only one mode, or one job, has.
_TENSOR = ("data_mb", "iters", "shared_memory", "trace")
_RAW = (
    "server_threads",
    "response_size",
    "channels",
    "concurrency",
    "message_size",
    "seconds",
    "warmup",
)
_OF_PS = ("server_threads", "response_size")
_OF_WORKER = (
    "data_mb",
    "iters",
    "trace",
    "channels",
    "concurrency",
    "message_size",
    "seconds",
    "warmup",
)


@click.group()
def bench() -> None:
    """Measure Treadle on this machine, or between two."""


bench.add_command(compare)


@bench.command()
@click.option("--mode", type=click.Choice(["tensor", "raw"]), default="tensor", show_default=True)
@click.option(
    "--job",
    type=click.Choice(["ps", "worker"]),
    help="Be one side only [default: both, as two processes of this machine].",
)
@click.option(
    "--ps-host",
    metavar="HOST:PORT",
    help=f"Where the ps listens [default: {_DEFAULT_ADDRESS}; a free port for both].",
)
@click.option(
    "--data-mb",
    type=Number(1e-5, 1e9),
    default=100,
    show_default=True,
    help="tensor: size of the variable in MB.",
)
@click.option(
    "--iters",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="tensor: assignments.",
)
@click.option(
    "--server-threads",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="raw: threads of the server.",
)
@click.option(
    "--channels", type=click.IntRange(min=1), default=1, show_default=True, help="raw: connections."
)
@click.option(
    "--concurrency",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="raw: requests in flight on each connection.",
)
@click.option(
    "--message-size",
    type=click.IntRange(min=0),
    default=1024,
    show_default=True,
    help="raw: bytes of a request.",
)
@click.option(
    "--response-size",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="raw: bytes of an answer.",
)
@click.option(
    "--seconds",
    type=Seconds(0.01),
    default=5,
    show_default=True,
    help="raw: how long to measure.",
)
@click.option(
    "--warmup",
    type=Seconds(0.0),
    default=1,
    show_default=True,
    help="raw: seconds before that.",
)
@click.option(
    "--stripes",
    type=click.IntRange(min=1),
    help="Data connections to send on [default: as many as raise the rate].",
)
@connection_options
@click.option(
    "--shared-memory/--no-shared-memory",
    default=None,
    help="tensor: create the worker's array in shared memory, or pass nothing that way "
    "[default: an ordinary array].",
)
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True),
    callback=file_to_write,
    help="tensor: write a timeline of both processes for https://ui.perfetto.dev.",
)
@json_option
@click.option("--until-eof", is_flag=True, hidden=True)
@click.pass_context
def transfer(context: click.Context, /, **options: Any) -> None:
    """Measure transfers.

    tensor: the worker assigns its variable, an array of --data-mb, to the ps's variable again and
    again, and waits for the acknowledgement each time.

    raw: a load of requests and answers, without the interpreter, that keeps --concurrency requests
    in flight on each of --channels connections.
    """
    _check_usage(context)
    output = Output(options["json_path"])
    with clear_errors("start the ps first: treadle bench transfer --job ps"):
        if options["until_eof"]:
            end_with_input()
        if options["job"] == "ps":
            _run_ps(options)
            return
        address = options["ps_host"] or _DEFAULT_ADDRESS
        side = nullcontext() if options["job"] else Child(*_arguments_of_ps(options))
        with side as ps:
            run = _assign if options["mode"] == "tensor" else _bench_raw.ask
            result = run(ps.address if ps else address, options, _settings(options), output)
        output.result({"version": treadle.__version__, "mode": options["mode"], **result})


def _check_usage(context: click.Context) -> None:
    """Refuse options that would be ignored."""
    mode, job = context.params["mode"], context.params["job"]
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        of_mode = "tensor" if name in _TENSOR else "raw" if name in _RAW else mode
        of_job = "ps" if name in _OF_PS else "worker" if name in _OF_WORKER else job
        if of_mode != mode:
            raise click.UsageError(f"{parameter.opts[0]} belongs to --mode {of_mode}.")
        if job and of_job != job:
            raise click.UsageError(f"{parameter.opts[0]} belongs to --job {of_job}.")
    if job == "ps" and context.params["json_path"]:
        raise click.UsageError("--json belongs to --job worker, which prints the result.")


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return what `listen` and `connect` are told alike."""
    return {
        "tls": options["tls"],
        "insecure": options["insecure"],
        "stripes": options["stripes"],
        "max_stripes": max(16, options["stripes"] or 1),
        "shared_memory": options["shared_memory"] is not False,
    }


def _arguments_of_ps(options: dict[str, Any]) -> list[str]:
    arguments = ["bench", "transfer", "--job", "ps", "--until-eof", "--mode", options["mode"]]
    scheme = "treadle+tls://" if options["tls"] else ""
    arguments += ["--ps-host", options["ps_host"] or f"{scheme}127.0.0.1:0"]
    if options["tls"]:
        arguments += ["--tls", options["tls"]]
    if options["insecure"]:
        arguments.append("--insecure")
    if options["stripes"]:
        arguments += ["--stripes", str(options["stripes"])]
    if options["mode"] == "raw":
        for name in _OF_PS:
            arguments += [f"--{name.replace('_', '-')}", str(options[name])]
    elif options["shared_memory"] is False:
        arguments.append("--no-shared-memory")
    return arguments


def _run_ps(options: dict[str, Any]) -> None:
    address = options["ps_host"] or _DEFAULT_ADDRESS
    if options["mode"] == "raw":
        _bench_raw.serve(address, options, _settings(options))
    else:
        from treadle.transfer import listen

        serve(listen(address, **_settings(options)), _be_assigned)


# The tensor scenario. The worker says how long its variable is and how often it will come; the ps
# acknowledges each assignment, and at the end says what its own stages took.


def _be_assigned(connection: Connection) -> None:
    """Be the parameter server of one worker."""
    import numpy as np

    asked = told(connection, _TIMEOUT)
    variable = np.zeros(asked["elements"])
    variable.fill(-1)
    tell(connection, ready=True)
    place = []
    traced = asked.get("traced", False)
    with treadle.trace() if traced else nullcontext() as recorded:
        _tell_time(connection, traced)
        for _ in range(asked["assignments"]):
            connection.recv_into(variable, timeout=_TIMEOUT)
            place.append((connection.last_timings or {}).get("place", 0.0))
            connection.send(b"assigned")
        _tell_time(connection, traced)
    events = [] if recorded is None else [recorded._start, recorded.events]
    tell(connection, last=float(variable[-1]), place=place, events=events)


def _tell_time(connection: Connection, traced: bool) -> None:
    """Answer what the clock says, until that is enough."""
    while traced and told(connection, _TIMEOUT)["clock"]:
        tell(connection, now=time.perf_counter_ns())


def _ask_time(connection: Connection) -> int:
    tell(connection, clock=True)
    now: int = told(connection, _TIMEOUT)["now"]
    return now


def _assign(
    address: str, options: dict[str, Any], settings: dict[str, Any], output: Output
) -> dict[str, Any]:
    """Be the worker, and print what came of it."""
    import numpy as np

    from treadle.transfer import connect

    elements = max(1, round(options["data_mb"] * 1e6 / 8))
    variable = treadle.empty(elements) if options["shared_memory"] else np.empty(elements)
    variable.fill(1.0)
    assignments = _WARMUP + options["iters"]
    path = options["trace"]
    times: list[tuple[int, int]] = []
    known: list[Any] = []
    stages: list[dict[str, float]] = []
    stripes = 0

    def compare_clocks(connection: Connection) -> None:
        known.extend(_bench_timeline.samples(lambda: _ask_time(connection)))
        tell(connection, clock=False)

    with (
        connect(address, **settings) as connection,
        output.progress("assigning") as progress,
        treadle.trace() if path else nullcontext() as recorded,
    ):
        tell(connection, elements=elements, assignments=assignments, traced=path is not None)
        told(connection, _TIMEOUT)
        if path:
            compare_clocks(connection)
        for number in range(assignments):
            variable[-1] = number
            began = time.perf_counter_ns()
            connection.send(variable, timeout=_TIMEOUT)
            # Before the acknowledgement, which is a transfer, too.
            stages.append(connection.last_timings or {})
            connection.recv(timeout=_TIMEOUT)
            times.append((began, time.perf_counter_ns()))
            stripes = max(stripes, connection.stats()["stripes"])
            progress(number + 1, assignments)
        if path:
            compare_clocks(connection)
        told_at_end = told(connection, _TIMEOUT)
        stats = connection.stats()
        if told_at_end["last"] != variable[-1]:
            raise click.ClickException("what the ps has is not what was sent")
    rounds = [(ended - began) / 1e9 for began, ended in times]
    if recorded is not None:
        own_events = (recorded._start, recorded.events)
        _bench_timeline.write(path, own_events, told_at_end["events"], times, known)
    for own, place in zip(stages, told_at_end["place"], strict=True):
        own["place"] = place
    result = _summary(variable.nbytes, rounds[_WARMUP:], stages[_WARMUP:])
    result |= {
        "address": address,
        "data_mb": options["data_mb"],
        "iters": options["iters"],
        "tls": options["tls"] is not None,
        "stripes": stripes,
        "bytes_sent": stats["bytes_sent"],
        "bytes_shared": stats["bytes_shared"],
    }
    _show(result, output)
    return result


def _summary(nbytes: int, rounds: list[float], stages: list[dict[str, float]]) -> dict[str, Any]:
    rates = [nbytes / seconds / 1e6 for seconds in rounds]
    total = sum(rounds)
    seconds = {name: sum(one.get(name, 0.0) for one in stages) for name in _STAGES}
    # The rest of the round: the acknowledgement, and the interpreter on both sides. What the ps
    # needs to place the array is a part of it, or of `accept`.
    seconds["acknowledge"] = total - sum(seconds.values()) + seconds["place"]
    return {
        "bytes": nbytes,
        "mb_per_second": rates,
        "median_mb_per_second": statistics.median(rates),
        "min_mb_per_second": min(rates),
        "max_mb_per_second": max(rates),
        "stages": {
            name: {"seconds": spent / len(rounds), "share": spent / total}
            for name, spent in seconds.items()
        },
    }


def _show(result: dict[str, Any], output: Output) -> None:
    stripes = result["stripes"]
    ways = []
    if stripes:
        plane = "TLS" if result["tls"] else "TCP"
        ways.append(f"{plane} with {stripes} stripe{'s'[: stripes != 1]}")
    if result["bytes_shared"]:
        ways.append(f"shared memory ({result['bytes_shared'] / 1e6:,.0f} MB)")
    output.say(
        f"worker assigned {result['bytes'] / 1e6:g} MB {result['iters']} times to the ps at "
        f"{result['address']}, over {' and '.join(ways) or 'the control connection'}"
    )
    output.say("MB/s of each:")
    rates = [f"{rate:7,.0f}" for rate in result["mb_per_second"]]
    for start in range(0, len(rates), 10):
        output.say(" ".join(rates[start : start + 10]))
    output.say(
        f"median {result['median_mb_per_second']:,.0f} MB/s "
        f"(min {result['min_mb_per_second']:,.0f}, max {result['max_mb_per_second']:,.0f})"
    )
    rows = [
        (name, f"{stage['seconds'] * 1e3:.3f}", f"{stage['share']:.1%}")
        for name, stage in result["stages"].items()
    ]
    output.table(("stage", "ms each", "share"), rows)
    output.say("place is the ps's own time, within accept and acknowledge")
