"""The arguments of spark-submit are read as Spark reads them, and nothing fails a job."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.coordinator._asking import ask
from treadle.coordinator._kubernetes import question
from treadle.coordinator._spark_submit import parse, properties, with_settings

MANAGER = "spark.shuffle.manager"
PARTITIONS = "spark.sql.shuffle.partitions"


def test_all_forms_of_options() -> None:
    found = parse(
        ["--master", "yarn", "--name=daily", "--conf", "a.b=c=d", "-c", "x=1", "--conf=y=2", "--verbose",
         "--conf", "x=3", "--queue=etl", "app.py", "--name", "other", "-c", "z=1"]
    )  # fmt: skip
    assert found.is_job
    assert found.options == {"--master": "yarn", "--name": "daily", "--queue": "etl"}
    assert found.conf == {"a.b": "c=d", "x": "3", "y": "2"}
    assert found.resource == "app.py"
    assert found.arguments == ["--name", "other", "-c", "z=1"]
    given = found.given(None, None)
    assert given["spark.yarn.queue"] == "etl"
    assert found.name(given) == "daily"


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["--version"], ["--kill", "driver-1"], ["--status=x"], ["--conf"], ["--conf", "novalue", "a.py"],
     ["--unknown", "a.py"], ["--master", "yarn"]],
)  # fmt: skip
def test_what_is_no_job_is_left_to_spark(arguments) -> None:
    assert not parse(arguments).is_job


def test_names() -> None:
    assert parse(["s3://x/y/app.py"]).name({}) == "app.py"
    assert parse(["--class", "a.B", "x.jar"]).name({}) == "a.B"
    assert parse(["--class", "a.B", "x.jar"]).name({"spark.app.name": "n"}) == "n"


def test_files_of_settings(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.a  default\nspark.b: default\n")
    (tmp_path / "mine").write_text("# no\n! no\nspark.a=mine\\\n   d\nspark.c\\:d = e \n")
    mine = ["--properties-file", str(tmp_path / "mine"), "--conf", "spark.c=conf", "a.py"]
    assert parse(["a.py"]).given(tmp_path, None) == {"spark.a": "default", "spark.b": "default"}
    assert parse(mine).given(tmp_path, None) == {
        "spark.a": "mined",
        "spark.c:d": "e",
        "spark.c": "conf",
    }
    with_defaults = parse(["--load-spark-defaults", *mine]).given(tmp_path, None)
    assert with_defaults["spark.b"] == "default"
    assert with_defaults["spark.a"] == "mined"


@given(
    st.dictionaries(
        st.text(alphabet="abc.=: #!\\\tü", min_size=1), st.text(alphabet="abc=:#\\ü", max_size=8)
    )
)
def test_properties_are_read_as_java_writes_them(values) -> None:
    def escaped(text: str) -> str:
        return "".join(
            f"\\{c}" if c in "=: #!\\" else {"\t": "\\t", "ü": "\\u00fc"}.get(c, c) for c in text
        )

    text = "\n".join(f"{escaped(name)}={escaped(value)}" for name, value in values.items())
    assert properties(text) == values


@given(
    st.lists(st.sampled_from(["--conf", "a=b", "--name=x", "app.py", "-v", "--jars", ""])),
    st.dictionaries(st.sampled_from("pq"), st.text(max_size=3)),
)
def test_what_is_added_stands_first_and_changes_nothing_else(arguments, settings) -> None:
    found = with_settings(arguments, settings)
    assert found[len(found) - len(arguments) :] == list(arguments)
    if parse(arguments).is_job:
        added = parse(found)
        assert added.conf == {**settings, **parse(arguments).conf}
        assert (added.resource, added.arguments) == (
            parse(arguments).resource,
            parse(arguments).arguments,
        )


class Coordinator:
    """Answers as it is told to: what a coordinator could do wrong."""

    def __init__(self, answer) -> None:
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append((question, dict(self.headers)))
                answer(self, question)

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def coordinator_that():
    made = []

    def make(answer):
        made.append(Coordinator(answer))
        return made[-1]

    yield make
    for one in made:
        one.server.shutdown()
        one.server.server_close()


def answering(**values):
    def answer(handler, question) -> None:
        body = json.dumps(
            {"id": question["id"], "uses_service": True, "reason": "r", "settings": {}, **values}
        )
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(body.encode())

    return answer


def refusing(handler, _question) -> None:
    handler.send_response(403)
    handler.end_headers()
    handler.wfile.write(b'{"detail": "no"}')


def talking_without_end(handler, _question) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(60):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)
    except OSError:
        pass


def test_an_answer(coordinator_that, tmp_path) -> None:
    coordinator = coordinator_that(answering(settings={"a": "b"}))
    (tmp_path / "token").write_text("secret-of-the-job\n")
    told = ask(
        coordinator.url,
        {"name": "x"},
        manager="m",
        names={"b", "a"},
        token_file=str(tmp_path / "token"),
    )
    assert (told.uses_service, dict(told.settings), told.reason) == (True, {"a": "b"}, "r")
    question, headers = coordinator.asked[0]
    assert question == {
        "id": told.id,
        "job": {"name": "x"},
        "manager": "m",
        "names": ["a", "b"],
        "tunable": [],
    }
    assert headers["Authorization"] == "Bearer secret-of-the-job"


@pytest.mark.parametrize(
    "content", ["operator olga tok-of-olga\njob j tok-of-j\n", "", "tok-of-ölga", "tok-of-\x1b"]
)
def test_what_is_no_token_is_not_shown(coordinator_that, tmp_path, content) -> None:
    (tmp_path / "token").write_text(content)
    coordinator = coordinator_that(answering())
    told = ask(coordinator.url, {}, token_file=str(tmp_path / "token"))
    assert told.reason.endswith("token-file must have one token, and nothing else")
    assert coordinator.asked == []


def test_a_token_leaves_this_machine_by_https_alone(tmp_path) -> None:
    (tmp_path / "token").write_text("secret-of-the-job\n")
    told = ask("http://192.0.2.1:7799", {}, token_file=str(tmp_path / "token"))
    assert "a token is sent by https:// alone" in told.reason


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusing, "HTTP 403 no"),
        (answering(settings={"a": 1}), "malformed"),
        (answering(id="another"), "malformed"),
        (lambda handler, _question: handler.wfile.write(b"nonsense\r\n\r\n"), "did not decide"),
        (talking_without_end, "within 2 s"),
    ],
)
def test_a_coordinator_that_fails_fails_no_job(coordinator_that, answer, words) -> None:
    told = ask(coordinator_that(answer).url, {"name": "x"})
    assert not told.id
    assert not told.uses_service
    assert words in told.reason


def test_one_that_is_away_or_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://user:password@127.0.0.1:{listener.getsockname()[1]}"
        told = ask(url, {})
        assert "did not decide" in told.reason
        assert "password" not in told.reason
    assert "refused" in ask(url, {}).reason
    assert "http://" in ask("nonsense", {}).reason


@pytest.fixture
def spark(tmp_path: Path, monkeypatch):
    """A spark-submit that prints its arguments, as JSON."""
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    (tmp_path / "spark" / "RELEASE").write_text(
        "Spark 3.5.9 (git revision 1) built for Hadoop 3.3.4\n"
    )

    def run(*arguments: str, url: str | None = None, more=()) -> tuple[list[str], str]:
        environment = {
            **os.environ,
            "SPARK_HOME": str(tmp_path / "spark"),
            "HADOOP_USER_NAME": "ann",
            **dict(more),
        }
        if url:
            environment |= {
                "DASK_TREADLE__COORDINATOR__URL": url,
                "DASK_TREADLE__COORDINATOR__CLUSTER": "a",
            }
        command = [sys.executable, "-m", "treadle", "spark-submit", *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), done.stderr

    return run


def test_the_command_adds_what_was_decided_before_the_users_own(spark, coordinator_that) -> None:
    told = {
        MANAGER: "io.treadle.spark.TreadleShuffleManager", PARTITIONS: "tuned",
        "spark.treadle.y": "a b",
    }  # fmt: skip
    coordinator = coordinator_that(answering(settings=told))
    options, rest = (
        ["--conf", f"{PARTITIONS}=mine", "--queue", "etl"],
        ["app.py", "--", "--conf", "--help"],
    )
    found, line = spark(*options, *rest, url=coordinator.url)
    question = coordinator.asked[0][0]
    assert question["job"] == {
        "cluster": "a",
        "queue": "etl",
        "user": "ann",
        "name": "app.py",
        "engine": "spark",
        "version": "3.5.9",
    }
    assert question["names"] == ["spark.yarn.queue"]
    assert question["tunable"] == [PARTITIONS]
    ours = [
        "--conf",
        f"{MANAGER}={told[MANAGER]}",
        "--conf",
        "spark.treadle.y=a b",
        "--conf",
        f"spark.treadle.decision={question['id']}",
        "--conf",
        "spark.treadle.name=app.py",
        "--conf",
        "spark.treadle.cluster=a",
        "--conf",
        "spark.treadle.queue=etl",
        "--conf",
        f"spark.treadle.coordinator={coordinator.url}",
    ]
    # What tuning replaces comes after the user's own: Spark takes the last.
    assert found == [*ours, *options, "--conf", f"{PARTITIONS}=tuned", *rest]
    assert line == f"treadle: on the shuffle service: r (decision {question['id']})\n"


def test_the_command_takes_no_setting_that_names_code(spark, coordinator_that) -> None:
    """Whoever answers at the coordinator's address must not run code as the one who submits."""
    code = {
        "spark.driver.extraJavaOptions": "-javaagent:/tmp/x.jar",
        "spark.jars": "http://e/x.jar",
    }
    other = {"spark.treadle.coordinator": "http://e", "spark.treadle.coordinator.tokenFile": "/e"}
    told = {**code, **other, "spark.treadle.servers": "e", PARTITIONS: "7", "spark.mine": "1"}
    coordinator = coordinator_that(answering(settings=told, reason="r\n\x1b[2Jforged"))
    own = ["--conf", "spark.treadle.servers=here", "app.py"]
    found, lines = spark(*own, url=coordinator.url)
    decision = coordinator.asked[0][0]["id"]
    added = ["--conf", f"{PARTITIONS}=7", "--conf", f"spark.treadle.decision={decision}"]
    added += ["--conf", "spark.treadle.name=app.py", "--conf", "spark.treadle.cluster=a"]
    # Where reports go, with a token perhaps, is what this command says.
    added += ["--conf", f"spark.treadle.coordinator={coordinator.url}"]
    assert found == [*added, *own]
    first, second = lines.splitlines()
    assert "\x1b" not in first
    assert "'spark.driver.extraJavaOptions', 'spark.jars', 'spark.mine'" in second
    with_more = {"DASK_TREADLE__COORDINATOR__SETTINGS": "spark.mine"}
    found, _ = spark(*own, url=coordinator.url, more=with_more)
    assert parse(found).conf["spark.mine"] == "1"
    assert not parse(found).conf.keys() & code.keys()


def test_the_command_submits_as_it_is_without_an_answer(spark, coordinator_that) -> None:
    own = ["--name", "x", "app.py", "--version"]
    found, line = spark(*own, url=coordinator_that(refusing).url)
    assert found == own
    assert line.count("\n") == 1
    assert line.startswith("treadle: submitted as it is: the coordinator at http://127.0.0.1:")
    found, line = spark(*own)
    assert (found, line.count("\n")) == (own, 1)


def test_the_command_does_not_ask_for_help(spark, coordinator_that) -> None:
    coordinator = coordinator_that(answering())
    for arguments in (["--help"], ["--version"], ["--kill", "x"]):
        assert spark(*arguments, url=coordinator.url) == (arguments, "")
    assert coordinator.asked == []


def test_kubernetes_does_not_ask_again(spark, coordinator_that) -> None:
    """A driver's pod has the decision as Spark writes annotations, and the webhook asks about it no more."""
    coordinator = coordinator_that(answering())
    found, _ = spark("--master", "k8s://https://k", "local:///app.py", url=coordinator.url)
    prefix = "spark.kubernetes.driver.annotation."
    annotations = {
        name.removeprefix(prefix): text
        for name, text in parse(found).conf.items()
        if name.startswith(prefix)
    }
    assert annotations == {"treadle.io/decision": coordinator.asked[0][0]["id"]}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "app-driver", "labels": {"spark-role": "driver"}},
        "spec": {"containers": [{"name": "spark-kubernetes-driver"}]},
    }
    request = {"uid": "u", "operation": "CREATE", "namespace": "etl", "object": pod}
    assert question({"request": request}) is not None
    pod["metadata"]["annotations"] = annotations
    assert question({"request": request}) is None
    found, _ = spark("--master", "yarn", "app.py", url=coordinator.url)
    assert not any(name.startswith(prefix) for name in parse(found).conf)
