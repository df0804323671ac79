"""The commands `bench transfer`, `probe` and `certs` as processes, as people run them."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ports import free_port
from waiting import until

if sys.platform != "linux":
    pytest.skip("treadle.transfer needs Linux", allow_module_level=True)

from treadle import transfer
from treadle.cli import _probe
from treadle.cli._basics import serve, tell, told

TIMEOUT = 60
SECRET = "a secret of these tests alone"
COMMAND = (sys.executable, "-m", "treadle")
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET)
    return {**os.environ, "TREADLE_SECRET_FILE": str(secret), "COLUMNS": "80"}


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def run(*arguments: str, command: tuple[str, ...] = COMMAND) -> Any:
        return subprocess.run(
            [*command, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    return run


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """Starts processes, and ends those that are left."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # pytest may have been started in the background, where interrupts are ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=TIMEOUT)


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening at "), line
    return line.removeprefix("listening at ").strip()


def unused() -> str:
    return f"127.0.0.1:{free_port()}"


def assert_refused(ran: subprocess.CompletedProcess[str], status: int, *said: str) -> None:
    assert ran.returncode == status, ran
    errors = [line for line in ran.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, ran.stderr
    for text in said:
        assert text in errors[0]
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data-mb", "nan"), "'--data-mb': 'nan' is no number"),
        (("--data-mb", "inf"), "'--data-mb': inf is not in the range"),
        (("--mode", "raw", "--seconds", "nan"), "'--seconds': 'nan' is no number"),
        (("--json", "/no/such/file"), "there is no directory /no/such"),
        (("--trace", "/no/such/file"), "there is no directory /no/such"),
    ],
)
def test_options_that_make_no_sense(run: Run, options: tuple[str, ...], message: str) -> None:
    ran = run("bench", "transfer", *options)
    assert ran.returncode == 2
    usage, _, _, *error = ran.stderr.splitlines()
    assert usage.startswith("Usage: ")
    assert message in " ".join(error)


def test_a_timeline_has_both_processes(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    ran = run("bench", "transfer", "--data-mb=2", "--iters=2", "--trace", str(path))
    assert ran.returncode == 0, ran.stderr
    trace = json.loads(path.read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = {
        event["args"]["name"]: event["pid"]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    }
    assert names.keys() == {"worker", "ps"}

    def arrays(name: str, process: str) -> list[dict]:
        return sorted(
            (
                event
                for event in events
                if (event["name"], event["pid"]) == (name, names[process])
                and event["args"]["bytes"] >= 2_000_000
            ),
            key=lambda event: event["ts"],
        )

    sent, received = arrays("send", "worker"), arrays("receive", "ps")
    assigned = [event for event in events if event["name"] == "assign"]
    assert len(sent) == len(received) == len(assigned) == 5  # with those that warm up
    doubt = trace["otherData"]["clocks may differ by µs"] + 1
    for one, other, whole in zip(sent, received, assigned, strict=True):
        # What arrives was being sent then, by one clock.
        assert one["ts"] - doubt <= other["ts"] + other["dur"] <= whole["ts"] + whole["dur"] + doubt
        assert one["args"]["step"] == other["args"]["step"] == "RecvTensor"
        assert whole["args"]["step"] == "Assign"
    wire = [event for event in events if event["name"] == "wire"]
    assert {event["args"]["step"][0] for event in wire} == {"3"}


def test_tensor_is_measured_between_two_processes_of_its_own(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    ran = run("bench", "transfer", "--data-mb", "1", "--iters", "12", "--json", str(file))
    assert ran.returncode == 0, ran.stderr
    assert "12 times" in ran.stdout
    assert "median" in ran.stdout
    result = json.loads(file.read_text())
    assert result["mode"] == "tensor"
    assert result["bytes"] == 1_000_000
    assert result["iters"] == 12 == len(result["mb_per_second"])
    rates = sorted(result["mb_per_second"])
    assert 0 < result["min_mb_per_second"] == rates[0]
    assert rates[0] <= result["median_mb_per_second"] <= rates[-1] == result["max_mb_per_second"]
    stages = result["stages"]
    assert list(stages) == ["prepare", "serialise", "accept", "wire", "place", "acknowledge"]
    assert stages["wire"]["seconds"] > 0
    # What the ps does is a part of the worker's stages.
    shares = sum(stage["share"] for name, stage in stages.items() if name != "place")
    assert shares == pytest.approx(1)
    # Those before the first that counts travel, too.
    assert result["bytes_sent"] > 12 * result["bytes"]
    assert result["bytes_shared"] == 0
    assert result["stripes"] >= 1


def test_json_on_standard_output_is_alone_there(run: Run) -> None:
    ran = run("bench", "transfer", "--data-mb", "0.1", "--iters", "2", "--stripes", "3", "--json=-")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["stripes"] == 3
    assert "median" in ran.stderr


@pytest.mark.parametrize(
    ("option", "shared"), [("--shared-memory", True), ("--no-shared-memory", False)]
)
def test_shared_memory_is_for_who_wants_it(run: Run, option: str, shared: bool) -> None:
    ran = run("bench", "transfer", "--data-mb", "2", "--iters", "1", option, "--json=-")
    assert ran.returncode == 0, ran.stderr
    assert (json.loads(ran.stdout)["bytes_shared"] > 0) == shared


@pytest.mark.parametrize("sizes", [(0, 0), (1024, 100), (100_000, 200_000)])
def test_raw_counts_requests_of_each_channel(run: Run, sizes: tuple[int, int]) -> None:
    message, response = map(str, sizes)
    ran = run(
        *("bench", "transfer", "--mode", "raw", "--seconds", "0.5", "--warmup", "0.1"),
        *("--channels", "3", "--concurrency", "5", "--server-threads", "2"),
        *("--message-size", message, "--response-size", response, "--json=-"),
    )
    assert ran.returncode == 0, ran.stderr
    assert "requests/s" in ran.stderr
    result = json.loads(ran.stdout)
    assert len(result["requests_of_channels"]) == 3
    assert sum(result["requests_of_channels"]) == result["requests"] > 0
    there = result["requests_per_second"] * sizes[0] / 1e6
    back = result["requests_per_second"] * sizes[1] / 1e6
    assert result["request_mb_per_second"] == pytest.approx(there)
    assert result["response_mb_per_second"] == pytest.approx(back)
    latency = result["latency_seconds"]
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert result["min_share"] <= 1 <= result["max_share"]


@pytest.mark.parametrize("mode", ["tensor", "raw"])
def test_both_jobs_by_themselves(run: Run, start: Start, mode: str) -> None:
    ps = start("bench", "transfer", "--mode", mode, "--job", "ps", "--ps-host", "127.0.0.1:0")
    address = address_of(ps)
    small = ["--data-mb=1", "--iters=2"] if mode == "tensor" else ["--seconds=0.1", "--warmup=0"]
    worker = ("bench", "transfer", "--mode", mode, "--job", "worker", "--ps-host", address)
    for _ in range(2):
        ran = run(*worker, *small, "--json=-")
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["address"] == address
    ps.send_signal(signal.SIGINT)
    _, errors = ps.communicate(timeout=TIMEOUT)
    assert (ps.returncode, errors) == (0, "")


def test_a_worker_of_another_mode_is_told(run: Run, start: Start) -> None:
    raw = address_of(start("bench", "transfer", "--mode=raw", "--job=ps", "--ps-host=127.0.0.1:0"))
    ran = run("bench", "transfer", "--job", "worker", "--ps-host", raw, "--data-mb", "1")
    assert_refused(ran, 1, "run the same command, mode and version on both sides")
    tensor = start("bench", "transfer", "--job", "ps", "--ps-host", "127.0.0.1:0")
    worker = ("bench", "transfer", "--mode=raw", "--job=worker", "--ps-host", address_of(tensor))
    assert_refused(run(*worker), 1, "closed the connection")
    # It is still there for others.
    assert tensor.poll() is None


def test_certificates_made_by_the_command_are_used(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    made = run("certs", "--dir", str(folder))
    assert made.returncode == 0, made.stderr
    tls = ("--tls", str(folder / "node"), "--json=-")
    ran = run("bench", "transfer", "--data-mb", "1", "--iters", "2", *tls)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["tls"] is True
    assert json.loads(ran.stdout)["address"].startswith("treadle+tls://")
    ran = run("probe", "--local", "2", "--seconds", "0.05", *tls)
    assert ran.returncode == 0, ran.stderr
    assert not any(pair["error"] for pair in json.loads(ran.stdout)["pairs"])


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--job=worker", "--ps-host", unused()), 1, "start the ps first"),
        (("--mode=raw", "--job=worker", "--ps-host", unused()), 1, "start the ps first"),
        (("--ps-host", "nowhere"), 1, 'write "treadle://nowhere:7000"'),
        (("--ps-host", "0.0.0.0:0"), 1, "insecure"),
        (("--tls", "/nowhere/node"), 1, "treadle certs"),
        (("--mode=raw", "--iters=3"), 2, "--iters belongs to --mode tensor"),
        (("--channels=3",), 2, "--channels belongs to --mode raw"),
        (("--mode=raw", "--job=ps", "--channels=3"), 2, "--channels belongs to --job worker"),
        (("--mode=raw", "--job=worker", "--response-size=1"), 2, "belongs to --job ps"),
        (("--job=ps", "--json=-"), 2, "--json belongs to --job worker"),
        (("--mode=other",), 2, "--mode"),
        (("--data-mb=0",), 2, "--data-mb"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(
    run: Run, arguments: tuple[str, ...], status: int, said: str
) -> None:
    assert_refused(run("bench", "transfer", *arguments), status, said)


def test_an_interrupt_ends_both_processes(start: Start) -> None:
    bench = start("bench", "transfer", "--mode=raw", "--seconds=600")
    children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children")
    child, *_ = until(lambda: children.read_text().split(), "a child is there", TIMEOUT)
    bench.send_signal(signal.SIGINT)
    _, errors = bench.communicate(timeout=TIMEOUT)
    assert bench.returncode not in (0, None)
    assert "Traceback" not in errors
    until(lambda: not is_running(child), "its child ends", TIMEOUT)


def is_running(process: str) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_without_rich_it_is_plain_text(run: Run) -> None:
    code = "import sys; sys.modules['rich'] = None; from treadle.__main__ import main; main()"
    ran = run("probe", "--local=2", "--seconds=0.05", command=(sys.executable, "-c", code))
    assert ran.returncode == 0, ran.stderr
    assert "round trip" in ran.stdout
    assert "─" not in ran.stdout


def test_a_terminal_gets_a_progress_bar(environment: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "bench", "transfer", "--data-mb", "1", "--iters", "3"]
    with subprocess.Popen(command, env=environment | {"TERM": "xterm"}, stdout=theirs) as process:
        os.close(theirs)
        shown = b""
        # The end of a terminal is an error.
        while part := read_terminal(ours):
            shown += part
        assert process.wait(TIMEOUT) == 0
    os.close(ours)
    assert b"assigning" in shown
    assert b"median" in shown


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


def test_probe_measures_every_way(run: Run) -> None:
    ran = run("probe", "--local=3", "--seconds=0.05", "--sockets=2", "--json=-")
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    hosts = result["hosts"]
    assert len(set(hosts)) == 3
    ways = [(pair["from"], pair["to"]) for pair in result["pairs"]]
    assert sorted(ways) == sorted((a, b) for a in hosts for b in hosts if a != b)
    for pair in result["pairs"]:
        assert pair["error"] is None
        assert pair["one_mb_per_second"] > 0
        assert pair["several_mb_per_second"] > 0
        assert pair["round_trip_seconds"] > 0
    assert result["unreachable"] == {}
    assert "MB/s, 2 sockets" in ran.stderr


def test_probe_names_a_missing_agent_and_measures_the_others(run: Run, start: Start) -> None:
    agents = [address_of(start("probe", "--agent", "127.0.0.1:0")) for _ in range(2)]
    missing = unused()
    ran = run("probe", agents[0], missing, agents[1], "--seconds=0.05", "--json=-")
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert f"no agent at {missing}" in ran.stderr
    assert f"run there: treadle probe --agent {missing}" in ran.stderr
    result = json.loads(ran.stdout)
    assert list(result["unreachable"]) == [missing]
    assert [pair["error"] for pair in result["pairs"]] == [None, None]


def test_probe_names_a_way_that_breaks(run: Run, start: Start) -> None:
    def attend(connection: transfer.Connection) -> None:
        """Be an agent that nothing can be sent to, and that can send nothing."""
        with connection:
            while (asked := told(connection, TIMEOUT))["do"] != "receive":
                tell(connection, **({"error": "no way"} if asked["do"] == "measure" else {}))

    agent = address_of(start("probe", "--agent", "127.0.0.1:0"))
    with transfer.listen("127.0.0.1:0", secret=SECRET) as listener:
        thread = threading.Thread(target=serve, args=(listener, attend))
        thread.start()
        ran = run("probe", agent, listener.address, "--seconds=0.05", "--json=-")
    thread.join(TIMEOUT)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    there, back = json.loads(ran.stdout)["pairs"]
    assert "closed" in there["error"]
    assert back["error"] == "no way"
    assert f"not measured: {agent} → {listener.address}: " in ran.stderr
    assert f"not measured: {listener.address} → {agent}: no way" in ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("127.0.0.1:1",),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("--agent", "127.0.0.1:0", "127.0.0.1:1"),
        ("--agent", "127.0.0.1:0", "--json=-"),
        ("--local=1",),
        ("--local=2", "--sockets=1"),
    ],
)
def test_probe_refuses_what_makes_no_sense(run: Run, arguments: tuple[str, ...]) -> None:
    assert_refused(run("probe", *arguments), 2)


def test_an_agent_that_cannot_listen_says_so(run: Run) -> None:
    assert_refused(run("probe", "--agent", "nowhere"), 1, "nowhere:7000")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert_refused(run("probe", "--agent", address), 1, address)


def pair(source: str, target: str, one: float, several: float) -> dict[str, Any]:
    return {
        "from": source,
        "to": target,
        "error": None,
        "one_mb_per_second": one,
        "several_mb_per_second": several,
        "round_trip_seconds": 1e-4,
        "cause": "processor",
        "evidence": "nothing else held it back",
    }


def test_slow_pairs_and_slow_sockets_are_named() -> None:
    pairs = [
        pair("a", "b", 1000, 1100),
        pair("b", "a", 1000, 1100),
        pair("a", "c", 175, 1150),
        pair("c", "a", 500, 540),
        {"from": "b", "to": "c", "error": "no route"},
    ]
    _probe.judge(pairs)
    assert [one["slow"] for one in pairs[:4]] == [False, False, False, True]
    assert [one["single_sockets_are_slow"] for one in pairs[:4]] == [False, False, True, False]
    lines = _probe.remarks({"sockets": 8, "pairs": pairs, "unreachable": {}})
    assert len(lines) == 7
    assert lines[0].startswith("single sockets are slow: a → c, 8 carry 6.6 ×")
    assert lines[1].startswith("slow: c → a, 540 MB/s")
    assert lines[2] == "a → b, one socket: processor: nothing else held it back"
    assert lines[6] == "not measured: b → c: no route"
