"""The webhook of Kubernetes as its API server calls it: by https, with the manifest's authority, name, path and token."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from treadle import _core

MANIFEST = Path(__file__).parents[2] / "packaging" / "kubernetes" / "coordinator-webhook.yaml"
JOB_TOKEN, OPERATOR_TOKEN = "j" * 32, "o" * 32
MANAGER = "spark.shuffle.manager"


class ApiServer:
    """What an API server does with the manifest, as far as a webhook sees it."""

    def __init__(self, authority: Path, port: int) -> None:
        bundle = base64.b64encode(authority.read_bytes()).decode()
        text = MANIFEST.read_text().replace("CA_BUNDLE", bundle).replace("TOKEN", JOB_TOKEN)
        self.hooks = yaml.safe_load(text)["webhooks"]
        self.port = port

    def call(self, hook: dict[str, Any], review: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Send a review; return the status, and the body of the answer."""
        told = hook["clientConfig"]
        service = told["service"]
        name = f"{service['name']}.{service['namespace']}.svc"
        trusted = base64.b64decode(told["caBundle"]).decode()
        context = ssl.create_default_context(cadata=trusted)
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname=name) as secured,
        ):
            connection = http.client.HTTPConnection(name, service["port"])
            connection.sock = secured
            path = f"{service['path']}?timeout={hook['timeoutSeconds']}s"
            headers = {"Content-Type": "application/json", "Accept": "application/json, */*"}
            connection.request("POST", path, json.dumps(review), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())


def patched(made: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    """Return an object as its patch (RFC 6902, of which ``add`` is used) makes it."""
    made = json.loads(json.dumps(made))
    for one in json.loads(base64.b64decode(response["patch"])):
        assert one["op"] == "add"
        *path, last = one["path"].split("/")[1:]
        place: Any = made
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[last] = one["value"]
    return made


def review(kind: str, made: dict[str, Any]) -> dict[str, Any]:
    group = {"group": "sparkoperator.k8s.io", "version": "v1beta2", "resource": "sparkapplications"}
    return {
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "kind": {"kind": kind}, "resource": group,
            "name": made["metadata"]["name"], "namespace": "etl", "operation": "CREATE", "dryRun": False,
            "userInfo": {"username": "system:serviceaccount:etl:ann", "groups": ["system:authenticated"]},
            "object": made, "oldObject": None, "options": {"kind": "CreateOptions"},
        },
    }  # fmt: skip


@pytest.fixture
def api_server(tmp_path: Path) -> Iterator[ApiServer]:
    """It calls a coordinator of its own process."""
    name = "treadle-coordinator.treadle.svc"
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    _core.create_certs(str(certificates), [name], 10, False)
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(f"job kubernetes {JOB_TOKEN}\noperator olga {OPERATOR_TOKEN}\n")
    command = [
        sys.executable, "-m", "treadle", "coordinator", "--listen", "127.0.0.1:0", "--servers", "static:127.0.0.1:1",
        "--tokens", str(tokens), "--name", name, "--certificate", str(certificates / f"{name}.pem"),
        "--key", str(certificates / f"{name}-key.pem"),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = process.stdout.readline().rpartition(" ")[2].strip()
        assert url.startswith("https://127.0.0.1:")
        yield ApiServer(certificates / "ca.pem", int(url.rpartition(":")[2]))
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


def allow(server: ApiServer) -> None:
    """Write a rule, as its operator does."""
    told = server.hooks[0]["clientConfig"]
    context = ssl.create_default_context(cadata=base64.b64decode(told["caBundle"]).decode())
    # By its address: the name is the service's.
    context.check_hostname = False
    body = json.dumps({"rule": {"name": "etl", "queues": ["etl"]}}).encode()
    headers = {
        "Authorization": f"Bearer {OPERATOR_TOKEN}", "Content-Type": "application/json", "Host": "localhost",
    }  # fmt: skip
    request = urllib.request.Request(f"https://127.0.0.1:{server.port}/api/rules", body, headers)
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        assert answer.status == 200


def test_an_application_and_a_driver_are_made_with_what_was_decided(api_server: ApiServer) -> None:
    allow(api_server)
    applications, drivers = api_server.hooks
    made = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication",
        "metadata": {"name": "daily-20261130", "namespace": "etl"},
        "spec": {"type": "Scala", "mode": "cluster", "sparkVersion": "3.5.9", "sparkConf": {"spark.mine": "x"}},
    }  # fmt: skip
    asked = review("SparkApplication", made)
    status, told = api_server.call(applications, asked)
    assert status == 200
    assert (told["apiVersion"], told["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = told["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == (
        asked["request"]["uid"], True, "JSONPatch",
    )  # fmt: skip
    conf = patched(made, response)["spec"]["sparkConf"]
    assert conf == {
        "spark.mine": "x", MANAGER: "io.treadle.spark.TreadleShuffleManager",
        "spark.treadle.servers": "static:127.0.0.1:1", "spark.treadle.decision": asked["request"]["uid"],
    }  # fmt: skip
    # The driver's pod of a spark-submit.
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "d", "labels": {"spark-role": "driver", "spark-app-name": "hourly", "spark-version": "3.5.9"}},
        "spec": {"containers": [{"name": "spark-kubernetes-driver", "image": "spark:3.5.9"}]},
    }  # fmt: skip
    asked = review("Pod", pod)
    asked["request"]["uid"] = "another"
    status, told = api_server.call(drivers, asked)
    assert status == 200
    (container,) = patched(pod, told["response"])["spec"]["containers"]
    (options,) = container["env"]
    assert options["name"] == "JAVA_TOOL_OPTIONS"
    assert f"-D{MANAGER}=io.treadle.spark.TreadleShuffleManager" in options["value"]


def test_no_other_name_and_no_other_token_is_served(api_server: ApiServer) -> None:
    hook = api_server.hooks[0]
    made = {"kind": "SparkApplication", "metadata": {"name": "a"}, "spec": {}}
    hook["clientConfig"]["service"]["path"] = "/webhook/kubernetes/" + "x" * 32
    assert api_server.call(hook, review("SparkApplication", made))[0] == 401
    hook["clientConfig"]["service"]["name"] = "another"
    with pytest.raises(ssl.SSLCertVerificationError):
        api_server.call(hook, review("SparkApplication", made))
