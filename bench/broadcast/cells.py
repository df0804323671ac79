"""Runs the cells of ipyparallel's notebook, as they are, on one client: ``python cells.py KIND WHERE COUNT``.

``KIND`` is ``treadle``, with the scheduler's address as ``WHERE``, or ``ipyparallel`` or ``coalescing``, with a
connection file. What stands in for the notebook's cluster is ``ipp.Client``, which gives the client that was asked
for whatever the profile. Says ``ready`` when all engines are known and have answered, ``broken`` if they do not. For a line ``notebook`` on standard input the
cells run, for ``curve`` calls and pushes to the first 1, 2, 4, … engines; the answer to each is a line of JSON:
seconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import statistics
import sys
import time
from typing import Any

# The notebook's, but for the number of engines, which is put in.
CELLS = (
    """\
import ipyparallel as ipp

rc = ipp.Client(profile="mpi")
rc.wait_for_engines({count})
direct_view = rc.direct_view()
bcast_view = rc.broadcast_view()""",
    """print(f"I have {{len(rc)}} engines")""",
    """%timeit direct_view.apply_sync(lambda: None)""",
    """%timeit bcast_view.apply_sync(lambda: None)""",
    """\
import numpy as np

dview_times = []
bcast_times = []

n_list = [16, 64, 256, 512]
for n in n_list:
    chunk = np.random.random((n, n))
    b = chunk.nbytes
    unit = 'B'
    if b > 1024:
        b //= 1024
        unit = 'kB'
    if b > 1024:
        b //= 1024
        unit = 'MB'
    print(f"{{n:4}} x {{n:4}}: {{b:4}} {{unit}}")
    print("Direct view")
    tr = %timeit -o -n 1 direct_view.push({{"chunk": chunk}}, block=True)
    dview_times.append(tr.average)
    print("Broadcast view")
    tr = %timeit -o -n 1 bcast_view.push({{"chunk": chunk}}, block=True)
    bcast_times.append(tr.average)""",
)
# Of the curve: sides of the arrays, and seconds in which a call is repeated.
SIDE = 256
IN_A_ROW = 0.2
# Seconds for the first answer of all engines.
ANSWER = 120


def connect(kind: str, where: str) -> Any:
    if kind == "treadle":
        import treadle

        if os.environ.get("TREADLE_BENCH_FAR"):
            # Where it shares no memory with the engines, it must not look as if it did.
            socket.sethostname("far")
        return treadle.Client(where, insecure=True)
    import ipyparallel

    client = ipyparallel.Client(where, timeout=600)
    if kind == "coalescing":
        plain = client.broadcast_view
        client.broadcast_view = lambda *args, **kwargs: plain(*args, is_coalescing=True, **kwargs)
    return client


def notebook(client: Any, count: int) -> dict[str, Any]:
    """Run the cells, and return what `%timeit` measured: the direct and the broadcast view each."""
    import ipyparallel
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    timeit = shell.find_line_magic("timeit")
    taken: list[Any] = []

    def noting(line: str, cell: str | None = None) -> Any:
        # Asked for its result in any case, which is shown only where the notebook asks for it.
        found = timeit(line if "-o" in line else f"-o {line}", cell)
        taken.append(found)
        return found if "-o" in line else None

    noting.needs_local_scope = False  # type: ignore[attr-defined]
    shell.register_magic_function(noting, "line", "timeit")
    real, ipyparallel.Client = ipyparallel.Client, lambda **_profile: client
    said = io.StringIO()
    try:
        for cell in CELLS:
            with contextlib.redirect_stdout(said):
                shell.run_cell(cell.format(count=count)).raise_error()
    finally:
        ipyparallel.Client = real
    assert f"I have {count} engines" in said.getvalue()
    pairs = [
        [[one.average, one.stdev], [other.average, other.stdev]]
        for one, other in zip(taken[::2], taken[1::2], strict=True)
    ]
    return {"call": pairs[0], "push": dict(zip(shell.user_ns["n_list"], pairs[1:], strict=True))}


def curve(client: Any, count: int) -> dict[str, Any]:
    """Seconds of a call and a push to the first 1, 2, 4, … engines, by view."""
    import numpy as np

    chunk = np.random.default_rng(0).random((SIDE, SIDE))
    found: dict[str, dict[str, dict[int, float]]] = {"call": {}, "push": {}}
    numbers = [2**bit for bit in range(count.bit_length()) if 2**bit < count] + [count]
    for number in numbers:
        targets = client.ids[:number]
        views = {"direct": client.direct_view(targets), "broadcast": client.broadcast_view(targets)}
        if not hasattr(client, "hub_history"):
            views["depth 0"] = client.broadcast_view(targets, depth=0)
        for name, view in views.items():
            calls = {
                "call": lambda view=view: view.apply_sync(lambda: None),
                "push": lambda view=view: view.push({"chunk": chunk}, block=True),
            }
            for what, call in calls.items():
                call()
                taken = []
                while sum(taken) < IN_A_ROW:
                    start = time.perf_counter()
                    call()
                    taken.append(time.perf_counter() - start)
                found[what].setdefault(name, {})[number] = statistics.median(taken)
    return found


def main(kind: str, where: str, count: int) -> None:
    client = connect(kind, where)
    client.wait_for_engines(count, timeout=600)
    try:
        # Views look for the client's class by its name when they are first made.
        for view in (client.direct_view(), client.broadcast_view()):
            view.apply_async(int).get(timeout=ANSWER)
    except Exception:
        # ipyparallel 9.2 cannot read a coalesced reply.
        print("broken", flush=True)
        os._exit(0)
    print("ready", flush=True)
    asked = {"notebook": notebook, "curve": curve}
    for line in sys.stdin:
        print(json.dumps(asked[line.strip()](client, count)), flush=True)
    client.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
