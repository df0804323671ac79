"""The chart of packaging/service/helm: what it makes is what Kubernetes knows and the commands take."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import treadle
from deployment_support import SERVICE, check_options, from_make
from waiting import SOON

CHART = SERVICE / "helm" / "treadle-shuffle"
TLS = {"tls": {"existingSecret": "certificates"}}
CASES: dict[str, dict[str, Any]] = {
    "tls": TLS,
    "insecure": {"insecure": {"existingSecret": "shared"}},
    "metrics": TLS | {"metrics": {"existingSecret": "token"}},
    "everything": {
        "fullnameOverride": "rows",
        "image": {
            "repository": "registry.example/treadle",
            "tag": "1",
            "pullSecrets": [{"name": "pull"}],
        },
        "insecure": {"existingSecret": "shared"},
        "metrics": {"existingSecret": "token"},
        "master": {
            "arguments": ["--log-file-size", "1MB"],
            "podLabels": {"team": "data"},
            "podAnnotations": {"note": "x"},
            "nodeSelector": {"disk": "none"},
        },
        "servers": {
            "replicas": 5,
            "memoryLimit": "2GiB",
            "arguments": ["--weight", "2"],
            "env": [{"name": "TREADLE_LOG", "value": "debug"}],
            "disks": [{"size": "1Ti", "storageClass": "local"}, {"size": "500Gi"}],
            "claims": {"whenScaled": "Retain"},
            "priorityClassName": "high",
            "podLabels": {"team": "data"},
            "podAnnotations": {"note": "x"},
            "nodeSelector": {"disk": "nvme"},
            "tolerations": [{"key": "only", "operator": "Exists"}],
            "affinity": {
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 1,
                            "podAffinityTerm": {"topologyKey": "zone"},
                        }
                    ]
                }
            },
        },
    },
    "no disks": TLS | {"servers": {"disks": []}},
    "registry": TLS
    | {"registry": {"url": "zk+tls://one,two/treadle", "existingSecret": "zookeeper"}},
}
REFUSED = [
    ({}, "who may connect?"),
    (TLS | {"insecure": {"existingSecret": "shared"}}, "are both set"),
    (TLS | {"registry": {"existingSecret": "x"}}, "without registry.url"),
    (TLS | {"registry": {"url": "https://one"}}, "/registry/url"),
    (TLS | {"servers": {"port": 7792}}, "are the same"),
    (TLS | {"servers": {"replicas": 1}}, "/servers/replicas"),
    (TLS | {"servers": {"disk": "1Gi"}}, "'disk' not allowed"),
    (TLS | {"servers": {"disks": [{"size": "a lot"}]}}, "/servers/disks/0/size"),
    (TLS | {"servers": {"memoryLimit": "1.5"}}, "/servers/memoryLimit"),
    (TLS | {"servers": {"drainTimeout": 0}}, "/servers/drainTimeout"),
    (TLS | {"servers": {"claims": {"whenScaled": "Keep"}}}, "/servers/claims/whenScaled"),
    (TLS | {"servers": {"httpPort": "pages"}}, "/servers/httpPort"),
    ({"tls": {"existingSecret": "My_Secret"}}, "/tls/existingSecret"),
    (TLS | {"master": {"arguments": "--lease 5"}}, "/master/arguments"),
]
# The oldest that the chart takes, and a recent one.
VERSIONS = ("1.27", "1.33")


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    # Otherwise it is that of Helm's release, which a build from its module does not have.
    command = [from_make("TREADLE_TEST_HELM"), *arguments, f"--kube-version={VERSIONS[-1]}.0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=SOON)


def with_values(directory: Path, values: dict[str, Any]) -> list[str | Path]:
    path = directory / "values.yaml"
    path.write_text(json.dumps(values))
    return [CHART, "--values", path]


def rendered(directory: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that the chart makes."""
    done = helm("template", "demo", *with_values(directory, values), "--namespace", "shuffles")
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one is not None]


def pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one["spec"]["template"] for one in objects if "template" in one["spec"]]


def test_the_schema_has_what_the_values_have() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(values, schema)

    def compare(value: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        named = schema.get("properties")
        if named is not None:
            assert value.keys() == named.keys() - {"global"}, path
            assert schema["additionalProperties"] is False, path
            for name, one in value.items():
                if isinstance(one, dict):
                    compare(one, named[name], f"{path}.{name}")

    compare(values, schema, "values")
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(values | {"servers": {"replica": 3}}, schema)


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == treadle.__version__


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_nothing(case: str, tmp_path: Path) -> None:
    done = helm("lint", "--strict", *with_values(tmp_path, CASES[case]))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("values", "error"), REFUSED)
def test_bad_values_are_refused(values: dict[str, Any], error: str, tmp_path: Path) -> None:
    done = helm("template", "demo", *with_values(tmp_path, values))
    assert done.returncode != 0
    # Releases of Helm write paths with points or with slashes.
    assert error.replace("/", ".").strip(".") in done.stderr.replace("/", "."), done.stderr


@pytest.mark.parametrize("case", CASES)
def test_objects_are_those_of_kubernetes(case: str, tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="`make test-deploy` installs it")
    objects = rendered(tmp_path, CASES[case])
    kinds = ["Service", "PodDisruptionBudget", "StatefulSet"]
    own = [] if case == "registry" else ["Service", "Deployment"]
    assert sorted(one["kind"] for one in objects) == sorted(kinds + own)
    for version in VERSIONS:
        for one in objects:
            validate.validate(one, version, strict=True)
        wrong = json.loads(json.dumps(objects[-1]))
        wrong["spec"]["template"]["spec"]["containers"][0]["imagename"] = "x"
        with pytest.raises(validate.ValidationError, match="imagename"):
            validate.validate(wrong, version, strict=True)


@pytest.mark.parametrize("case", CASES)
def test_objects_fit_together(case: str, tmp_path: Path) -> None:
    objects = rendered(tmp_path, CASES[case])
    templates = pods(objects)
    for pod in templates:
        for container in pod["spec"]["containers"]:
            check_options(container["args"])
            named = {volume["name"] for volume in pod["spec"]["volumes"]}
            named |= {
                claim["metadata"]["name"]
                for one in objects
                for claim in one["spec"].get("volumeClaimTemplates", ())
            }
            for part in (container, *pod["spec"].get("initContainers", ())):
                assert {mount["name"] for mount in part["volumeMounts"]} <= named
                safe = part["securityContext"]
                assert safe["readOnlyRootFilesystem"] is True
                assert safe["capabilities"] == {"drop": ["ALL"]}
            # An error of a number would be a name that nobody has.
            assert all(isinstance(word, str) for word in container["args"])
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    for one in objects:
        selector = one["spec"]["selector"]
        selector = selector.get("matchLabels", selector)
        chosen = [pod for pod in templates if selector.items() <= pod["metadata"]["labels"].items()]
        assert len(chosen) == 1, one["metadata"]["name"]
        assert len(one["metadata"]["name"]) < 58


def test_a_pod_has_time_to_drain(tmp_path: Path) -> None:
    for seconds in (1, 300, 7200):
        (_, spec) = (
            pod["spec"]
            for pod in pods(rendered(tmp_path, TLS | {"servers": {"drainTimeout": seconds}}))
        )
        words = spec["containers"][0]["args"]
        assert words[words.index("--drain-timeout") + 1] == str(seconds)
        assert spec["terminationGracePeriodSeconds"] > seconds


def test_prometheus_is_told_of_pages_that_it_can_read(tmp_path: Path) -> None:
    def annotations(case: str) -> dict[str, str]:
        (server,) = (
            pod
            for pod in pods(rendered(tmp_path, CASES[case]))
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "server"
        )
        found = server["metadata"]["annotations"]
        return {name: value for name, value in found.items() if name.startswith("prometheus.io/")}

    assert annotations("tls") == {}
    assert annotations("metrics") == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "7792",
        "prometheus.io/path": "/metrics",
    }
