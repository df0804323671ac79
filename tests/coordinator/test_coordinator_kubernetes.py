"""Kubernetes' webhook: an AdmissionReview as an API server sends it, and what its patch makes of the application."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from treadle.coordinator import _store
from treadle.coordinator._access import Access
from treadle.coordinator._app import app_of
from treadle.coordinator._rules import Rule
from treadle.coordinator._service import Coordinator

PARTITIONS = "spark.sql.shuffle.partitions"
MANAGER = "spark.shuffle.manager"


class Served:
    def __init__(self, folder: Path) -> None:
        self.coordinator = Coordinator(f"sqlite:///{folder}/c.db", servers="etcd://e/t")
        self.coordinator.keep_rule(Rule("etl", queues=("etl",)), "olga")
        access = Access({}, hosts=["testserver"])
        self.path = f"/webhook/kubernetes/{access.new_token('kubernetes', 'job')}"
        self.client = TestClient(app_of(self.coordinator, access))

    def ask(self, review: Any) -> dict[str, Any]:
        told = self.client.post(self.path, json=review)
        assert told.status_code == 200, told.text
        body = told.json()
        assert (body["apiVersion"], body["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        assert body["response"]["uid"] == review["request"]["uid"]
        # No application is refused.
        assert body["response"]["allowed"] is True
        return body["response"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path)
    yield one
    one.coordinator.close()


def review(conf: dict[str, str] | None = None, **request: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"type": "Scala", "mode": "cluster", "sparkVersion": "3.5.9"}
    if conf is not None:
        spec["sparkConf"] = conf
    made = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication",
        "metadata": {"name": "daily-20261130", "namespace": "etl"}, "spec": spec,
    }  # fmt: skip
    asked = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "operation": "CREATE", "namespace": "etl",
        "userInfo": {"username": "ann"}, "dryRun": False, "object": made, **request,
    }  # fmt: skip
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}


def patched(response: dict[str, Any]) -> dict[str, str]:
    assert response["patchType"] == "JSONPatch"
    (one,) = json.loads(base64.b64decode(response["patch"]))
    assert (one["op"], one["path"]) == ("add", "/spec/sparkConf")
    return one["value"]


def test_an_application_gets_what_was_decided(served: Served) -> None:
    asked = review({PARTITIONS: "40", "spark.mine": "x"})
    conf = patched(served.ask(asked))
    assert conf == {
        PARTITIONS: "40", "spark.mine": "x", "spark.treadle.servers": "etcd://e/t",
        MANAGER: "io.treadle.spark.TreadleShuffleManager", "spark.treadle.decision": asked["request"]["uid"],
    }  # fmt: skip
    row = served.coordinator.database.read(lambda c: _store.job_of(c, asked["request"]["uid"]))
    told = {name: row[name] for name in ("queue", "user", "name", "engine", "version")}
    assert told == {
        "queue": "etl", "user": "ann", "name": "daily-20261130", "engine": "spark", "version": "3.5.9",
    }  # fmt: skip
    # Kubernetes may send a request again.
    assert patched(served.ask(asked)) == conf


def test_the_users_own_manager_stays(served: Served) -> None:
    conf = patched(served.ask(review({MANAGER: "org.example.Other"})))
    assert conf[MANAGER] == "org.example.Other"
    assert "spark.treadle.servers" not in conf


def test_an_application_without_settings_gets_a_table(served: Served) -> None:
    assert patched(served.ask(review()))["spark.treadle.servers"] == "etcd://e/t"


@pytest.mark.parametrize(
    "asked",
    [
        review(dryRun=True),
        review(operation="UPDATE"),
        review({"spark.treadle.decision": "known"}),
        review(object={"kind": "Pod", "spec": {}}),
        review(object=None),
    ],
)
def test_others_are_left_as_they_are(served: Served, asked: dict[str, Any]) -> None:
    assert "patch" not in served.ask(asked)
    assert served.coordinator.database.read(_store.jobs_page) == []


def test_who_has_no_token_may_not_ask(served: Served) -> None:
    paths = ("/webhook/kubernetes", "/webhook/kubernetes/wrong")
    assert [served.client.post(one, json=review()).status_code for one in paths] == [401, 401]


@pytest.mark.parametrize("body", [[], {}, {"request": {}}, {"request": {"uid": 1}}])
def test_what_is_no_review_is_refused(served: Served, body: Any) -> None:
    assert served.client.post(served.path, json=body).status_code == 422


def pod(env: Any = None, **metadata: Any) -> dict[str, Any]:
    """A driver's pod, as `spark-submit --master k8s://… --deploy-mode cluster` of Spark 3.5 makes it."""
    container: dict[str, Any] = {
        "name": "spark-kubernetes-driver", "image": "spark:3.5.9",
        "args": ["driver", "--properties-file", "/opt/spark/conf/spark.properties", "local:///job.py"],
    }  # fmt: skip
    if env is not None:
        container["env"] = env
    labels = {
        "spark-role": "driver", "spark-app-name": "daily-20261130", "spark-version": "3.5.9",
        "spark-app-selector": "spark-0f", **metadata.pop("labels", {}),
    }  # fmt: skip
    made = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "daily-20261130-0f-driver", "labels": labels, **metadata},
        "spec": {"containers": [{"name": "sidecar"}, container]},
    }  # fmt: skip
    return review(object=made)


def options(response: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the variables of the driver's container, and its options for Java as a JVM divides them."""
    env, annotations = json.loads(base64.b64decode(response["patch"]))
    assert (env["op"], env["path"]) == ("add", "/spec/containers/1/env")
    assert annotations["path"] == "/metadata/annotations"
    (last,) = (one for one in env["value"] if one["name"] == "JAVA_TOOL_OPTIONS")
    return env["value"], shlex.split(last["value"])


def test_a_drivers_pod_gets_what_was_decided_below_what_the_user_gives(served: Served) -> None:
    asked = pod()
    response = served.ask(asked)
    _, found = options(response)
    # Real Spark takes system properties as settings, and those of its files and arguments before them.
    assert sorted(found) == [
        "-Dspark.shuffle.manager=io.treadle.spark.TreadleShuffleManager",
        f"-Dspark.treadle.decision={asked['request']['uid']}",
        "-Dspark.treadle.servers=etcd://e/t",
    ]
    row = served.coordinator.database.read(lambda c: _store.job_of(c, asked["request"]["uid"]))
    told = {name: row[name] for name in ("queue", "user", "name", "engine", "version")}
    assert told == {
        "queue": "etl", "user": "ann", "name": "daily-20261130", "engine": "spark", "version": "3.5.9",
    }  # fmt: skip


def test_a_drivers_own_variables_stay(served: Served) -> None:
    mine = [{"name": "JAVA_TOOL_OPTIONS", "value": "-Xss8m"}, {"name": "A", "value": "b"}]
    response = served.ask(pod(mine, annotations={"mine": "x"}))
    env, found = options(response)
    assert found[0] == "-Xss8m"
    assert env[0] == mine[1]
    annotations = json.loads(base64.b64decode(response["patch"]))[1]["value"]
    assert sorted(annotations) == ["mine", "treadle.io/decision"]


@pytest.mark.parametrize(
    "asked",
    [
        # The operator's: its SparkApplication was asked about.
        pod(labels={"sparkoperator.k8s.io/app-name": "daily"}),
        pod(labels={"spark-role": "executor"}),
        pod(annotations={"treadle.io/decision": "known"}),
        pod([{"name": "JAVA_TOOL_OPTIONS", "value": 1}]),
        pod(
            [
                {
                    "name": "JAVA_TOOL_OPTIONS",
                    "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}},
                }
            ]
        ),
        review(
            object={
                "kind": "Pod",
                "metadata": {"labels": {"spark-role": "driver"}},
                "spec": {"containers": []},
            }
        ),
        review(
            object={
                "kind": "Pod",
                "metadata": {"labels": {"spark-role": "driver"}},
                "spec": {"containers": "x"},
            }
        ),
    ],
)
def test_other_pods_are_left_as_they_are(served: Served, asked: dict[str, Any]) -> None:
    assert "patch" not in served.ask(asked)
    assert served.coordinator.database.read(_store.jobs_page) == []


def test_the_manifest_asks_this_server_and_fails_nothing(served: Served) -> None:
    file = Path(__file__).parents[2] / "packaging" / "kubernetes" / "coordinator-webhook.yaml"
    hooks = yaml.safe_load(file.read_text())["webhooks"]
    for hook in hooks:
        assert served.path.startswith(hook["clientConfig"]["service"]["path"].removesuffix("TOKEN"))
        assert (hook["failurePolicy"], hook["admissionReviewVersions"]) == ("Ignore", ["v1"])
        assert hook["timeoutSeconds"] <= 2
        assert hook["namespaceSelector"] == {"matchLabels": {"treadle.io/coordinator": "ask"}}
    rules = [rule for hook in hooks for rule in hook["rules"]]
    assert [(one["operations"], one["resources"]) for one in rules] == [
        (["CREATE"], ["sparkapplications"]),
        (["CREATE"], ["pods"]),
    ]
    assert hooks[1]["objectSelector"] == {"matchLabels": {"spark-role": "driver"}}
