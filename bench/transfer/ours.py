"""Treadle's side of every figure, each side a process of its own: ``ours.py COMMAND --help``.

One server serves all clients, each in a thread; a connection's first message says what it is for.
Clients are asked in JSON lines on standard input. Times are of the machine's monotonic clock, which
all of its processes share.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy

import treadle
from answers import LEAD, answer, in_window, say, summary, until_told
from treadle import transfer

BATCH = 256  # messages that are handed over at once
TIMEOUT = 120.0
# With more bytes under way than this, each side would wait in `send_many` for the other to read.
UNREAD = 4 << 20
now = time.monotonic


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """What `listen` and `connect` are told alike. ``--tls`` is a node of `treadle certs`: FOLDER/NODE."""
    return {
        "tls": args.tls,
        "insecure": args.insecure,
        "shared_memory": args.shared_memory,
        "stripes": args.stripes,
    }


def array_of(mb: float, make: Callable[..., Any] = numpy.empty) -> Any:
    """An array of float64, every page of it touched."""
    array = make(int(mb * 1e6) // 8, numpy.float64)
    array[:] = numpy.arange(len(array))
    return array


# The server's side.


def into_warm(connection: Any, mb: float) -> None:
    array = array_of(mb)
    while True:
        blocks = connection.recv()
        array[-1] = 0
        at = []
        for _ in range(blocks):
            connection.recv_into(array, timeout=TIMEOUT)
            at.append(now())
        connection.send({"at": at, "last": float(array[-1])})


def into_new(connection: Any, mb: float) -> None:  # noqa: ARG001 (all have the same signature)
    while True:
        blocks = connection.recv()
        at = []
        for _ in range(blocks):
            array = connection.recv(timeout=TIMEOUT)
            at.append(now())
        connection.send({"at": at, "last": float(array[-1])})


def into_variable(connection: Any, mb: float) -> None:
    """The published program's parameter server: its variable is assigned again and again."""
    variable = array_of(mb)
    while True:
        blocks, traced = connection.recv()
        variable[-1] = 0
        at = []
        with ExitStack() as stack:
            trace = stack.enter_context(treadle.trace(None)) if traced else None
            for _ in range(blocks):
                connection.recv_into(variable, timeout=TIMEOUT)
                at.append(now())
                connection.send("assigned")
        stages = stages_of(trace.events) if trace else {}
        connection.send({"at": at, "last": float(variable[-1]), "stages": stages})


def stages_of(events: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of each stage of the transfers in a trace."""
    seconds: dict[str, float] = {}
    for event in events:
        if event.get("cat") == "transfer" and event["ph"] == "X":
            seconds[event["name"]] = seconds.get(event["name"], 0.0) + event["dur"] / 1e6
    return seconds


def echo(connection: Any, mb: float) -> None:  # noqa: ARG001
    while True:
        connection.send_many(connection.recv_many())


def count(connection: Any, mb: float) -> None:  # noqa: ARG001
    while True:
        missing = int(connection.recv())
        while missing:
            missing -= len(connection.recv_many(max=missing, timeout=TIMEOUT))
        connection.send("all")


def acknowledge(connection: Any, mb: float) -> None:  # noqa: ARG001
    while True:
        connection.recv()
        connection.send(b"")


def read_whole(connection: Any, mb: float) -> None:  # noqa: ARG001
    """When an array was there, and how long reading all of it took, the first time and the next."""
    while True:
        array = connection.recv()
        times = [now()]
        for _ in range(2):
            total = float(array.sum())
            times.append(now())
        del array
        connection.send(
            {
                "at": times[0],
                "first": times[1] - times[0],
                "next": times[2] - times[1],
                "sum": total,
            }
        )


SERVICES = {
    "warm": into_warm,
    "new": into_new,
    "tensor": into_variable,
    "echo": echo,
    "count": count,
    "acknowledge": acknowledge,
    "read": read_whole,
}


def attend(connection: Any) -> None:
    with connection:
        try:
            service, mb = connection.recv()
            SERVICES[service](connection, mb)
        except (transfer.TransferError, ConnectionError, EOFError):
            return  # the client is gone


def serve(args: argparse.Namespace) -> None:
    scheme = "treadle+tls" if args.tls else "treadle"
    with transfer.listen(f"{scheme}://{args.host}:0", **options_of(args)) as listener:
        say({"address": listener.address})

        def accept() -> None:
            for connection in listener:
                threading.Thread(target=attend, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        until_told()


# The clients.


def open_service(args: argparse.Namespace, service: str) -> Any:
    connection = transfer.connect(args.address, timeout=30, **options_of(args))
    connection.send((service, args.mb))
    return connection


def blocks(args: argparse.Namespace) -> None:
    """Array after array; the answer has the rate over all of them and the time each arrived."""
    array = array_of(args.mb)
    with open_service(args, args.into) as connection:

        def send(blocks: int, traced: bool = False) -> dict[str, Any]:
            connection.send((blocks, traced) if args.into == "tensor" else blocks)
            start = now()
            for _ in range(blocks):
                connection.send(array, timeout=TIMEOUT)
                if args.into == "tensor":
                    assert connection.recv(timeout=TIMEOUT) == "assigned"
            told = connection.recv(timeout=TIMEOUT)
            if told["last"] != array[-1]:
                raise SystemExit("what arrived is not what was sent")
            at = [t - start for t in told["at"]]
            return {
                "bytes": blocks * array.nbytes,
                "seconds": at[-1],
                "at": at,
                "stripes": connection.stats()["stripes"],
                "stages": told.get("stages", {}),
            }

        answer(send)


def hand_over(waiting: queue.SimpleQueue[list[Any]], send: Callable[[list[Any]], Any]) -> None:
    """Send what is handed over until there is an empty list: what is read does not wait for what is sent."""
    while messages := waiting.get():
        send(messages)


def latency(args: argparse.Namespace) -> None:
    """Messages that come back, so many under way at a time."""
    with open_service(args, "echo") as connection:

        def one_at_a_time(seconds: float, size: int) -> dict[str, Any]:
            message = bytes(size)
            taken = []
            start = now()
            while (began := now()) < start + seconds:
                connection.send(message)
                connection.recv()
                taken.append(now() - began)
            return summary(taken, now() - start)

        def ask(concurrency: int, seconds: float, size: int = 1024) -> dict[str, Any]:
            if concurrency == 1:
                return one_at_a_time(seconds, size)
            padding = bytes(size - 4)
            began = [now()] * concurrency
            start = began[0]
            taken: list[float] = []
            send = connection.send_many
            if concurrency * size > UNREAD:
                waiting: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
                threading.Thread(target=hand_over, args=(waiting, send), daemon=True).start()
                send = waiting.put
            send([i.to_bytes(4, "little") + padding for i in range(concurrency)])
            under_way = concurrency
            while under_way:
                answers = connection.recv_many(timeout=TIMEOUT)
                at = now()
                for message in answers:
                    which = int.from_bytes(message[:4], "little")
                    taken.append(at - began[which])
                    began[which] = at
                if at < start + seconds:
                    send(answers)
                else:
                    under_way -= len(answers)
            send([])
            return summary(taken, now() - start)

        answer(ask)


def messages(args: argparse.Namespace) -> None:
    """Messages of 1 KB in one direction, handed over in batches."""
    with open_service(args, "count") as connection:

        def send(count: int) -> dict[str, float]:
            batch = [bytes(1024) for _ in range(BATCH)]
            count -= count % BATCH
            start = now()
            connection.send(count)
            for _ in range(count // BATCH):
                connection.send_many(batch)
            connection.recv(timeout=TIMEOUT)
            return {"bytes": count * 1024, "count": count, "seconds": now() - start}

        answer(send)


def requests(args: argparse.Namespace) -> None:
    """Requests one after the other in a window; ``rate`` a second at most, if there is one."""
    array = array_of(args.mb)
    with open_service(args, "acknowledge") as connection:

        def request() -> None:
            connection.send(array, timeout=TIMEOUT)
            connection.recv(timeout=TIMEOUT)

        def ask(start: float, seconds: float, rate: float = 0) -> dict[str, Any]:
            pace = (lambda asked: start - LEAD + asked / rate) if rate and start else None
            return in_window(request, start, seconds, pace)

        answer(ask)


def spread(args: argparse.Namespace) -> None:
    """One array to many receivers at once: this is the sender, each `take` connects to it."""
    array = array_of(args.mb)
    connections: list[Any] = []
    with transfer.listen(f"{args.host}:0", **options_of(args)) as listener:
        say({"address": listener.address})

        def send(receivers: int, blocks: int) -> dict[str, Any]:
            while len(connections) < receivers:
                connections.append(listener.accept(timeout=30))
            for connection in connections:
                connection.send(blocks)
            start = now()
            for _ in range(blocks):
                for under_way in [connection.start_send(array) for connection in connections]:
                    under_way.result(timeout=TIMEOUT)
            ends = [connection.recv(timeout=TIMEOUT) - start for connection in connections]
            total = receivers * blocks * array.nbytes
            return {"bytes": total, "seconds": max(ends), "ends": ends}

        answer(send)


def take(args: argparse.Namespace) -> None:
    with transfer.connect(args.address, timeout=30, **options_of(args)) as connection:
        say({"ready": True})
        while True:
            try:
                blocks = connection.recv()
                for _ in range(blocks):
                    connection.recv(timeout=TIMEOUT)
                connection.send(now())
            except (transfer.TransferError, ConnectionError, EOFError):
                return


def handed(args: argparse.Namespace) -> None:
    """One array, new or not, to another process of this machine: when it is there, and its first read."""
    with open_service(args, "read") as connection:

        def send(born: str) -> dict[str, float]:
            array = array_of(args.mb, treadle.empty if born == "shared" else numpy.empty)
            total = float(array.sum())
            start = now()
            connection.send(array, timeout=TIMEOUT)
            told = connection.recv(timeout=TIMEOUT)
            if told["sum"] != total:
                raise SystemExit("what arrived is not what was sent")
            return {
                "bytes": array.nbytes,
                "seconds": told["at"] - start,
                "first": told["first"],
                "next": told["next"],
            }

        answer(send)


def control(args: argparse.Namespace) -> None:
    """Round trips of the control connection and of 1 KB messages, with large transfers or without."""
    array = array_of(args.mb)
    with open_service(args, "warm") as bulk, open_service(args, "echo") as other:

        def ask(seconds: float, loaded: bool) -> dict[str, Any]:
            sent = 0
            stop = threading.Event()

            def load() -> None:
                nonlocal sent
                while not stop.is_set():
                    bulk.send(1)
                    bulk.send(array, timeout=TIMEOUT)
                    bulk.recv(timeout=TIMEOUT)
                    sent += array.nbytes

            thread = threading.Thread(target=load)
            if loaded:
                thread.start()
            start = now()
            taken, rtts = [], []
            while (began := now()) < start + seconds:
                other.send(bytes(1024))
                other.recv(timeout=TIMEOUT)
                taken.append(now() - began)
                if (rtt := bulk.stats()["control_rtt"]) is not None:
                    rtts.append(rtt)
                time.sleep(0.002)
            stop.set()
            if loaded:
                thread.join()
            return {
                **summary(taken, now() - start),
                "control_p50": statistics.median(rtts),
                "control_max": max(rtts),
                "mb_per_second": sent / (now() - start) / 1e6,
            }

        answer(ask)


def main() -> None:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--mb", type=float, default=100)
    common.add_argument("--tls", metavar="FOLDER/NODE")
    common.add_argument("--insecure", action="store_true")
    common.add_argument("--stripes", type=int)
    # What goes over the network is measured, unless sharing memory is the subject.
    common.add_argument("--shared-memory", action="store_true")
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(run: Callable[[argparse.Namespace], None], first: str) -> argparse.ArgumentParser:
        made = commands.add_parser(run.__name__, parents=[common], description=run.__doc__)
        made.add_argument(first)
        made.set_defaults(run=run)
        return made

    command(serve, "host")
    command(blocks, "address").add_argument("into", choices=("warm", "new", "tensor"))
    command(latency, "address")
    command(messages, "address")
    command(requests, "address")
    command(spread, "host")
    command(take, "address")
    command(handed, "address")
    command(control, "address")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
