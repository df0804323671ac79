"""Kubernetes asks about a job of Spark before it makes it: AdmissionReview in, a JSON patch out.

A job is a SparkApplication of the operator, or the driver's pod of a ``spark-submit`` in cluster mode.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from treadle.coordinator._allowed import LIMITS, is_allowed
from treadle.coordinator._jobs import LONGEST

__all__ = ["ANNOTATION", "answer", "question"]

_VERSION = "admission.k8s.io/v1"
_MANAGER = "spark.shuffle.manager"
_DECISION = "spark.treadle.decision"
# Spark's own labels of a driver's pod, and what the operator's have besides: those were asked about already.
_ROLE, _APPLICATION, _OF_VERSION = "spark-role", "spark-app-name", "spark-version"
_OPERATOR = "sparkoperator.k8s.io/"
_CONTAINER = "spark-kubernetes-driver"
# System properties are settings, too, and those of files and command lines win over them: what the user gives stays,
# though it is in a ConfigMap that nobody sees here.
_ENVIRONMENT = "JAVA_TOOL_OPTIONS"
ANNOTATION = "treadle.io/decision"


def question(review: Any) -> dict[str, Any] | None:
    """Return what is asked of :meth:`Coordinator.decide`; None: it is about nothing that has a decision to come.

    The queue is the namespace. The recurring job is found by ``metadata.name``, and that of a driver's pod by the name
    of its application. The id is that of the request, so
    that one that Kubernetes repeats gets the same decision.

    Raises
    ------
    ValueError
        It is no AdmissionReview.
    """
    request = _request(review)
    made = request.get("object")
    is_new = request.get("operation") == "CREATE" and not request.get("dryRun")
    if not is_new or not isinstance(made, Mapping):
        return None
    if made.get("kind") == "Pod":
        return _of_pod(request, made)
    if made.get("kind") != "SparkApplication":
        return None
    spec, conf = _spec(made)
    if _DECISION in conf:
        # Whoever made it has asked.
        return None
    metadata = made.get("metadata") or {}
    user = (request.get("userInfo") or {}).get("username") or ""
    job = {
        "queue": request.get("namespace") or "",
        "user": spec.get("proxyUser") or user,
        "name": metadata.get("name") or metadata.get("generateName") or "",
        "engine": "spark",
        "version": spec.get("sparkVersion") or "",
    }
    return {
        "id": request["uid"],
        "job": {name: str(text)[:LONGEST] for name, text in job.items()},
        "manager": str(conf.get(_MANAGER, "")),
        "names": [name for name in conf if name not in LIMITS],
        "tunable": [name for name in conf if name in LIMITS],
    }


def _of_pod(request: Mapping[str, Any], pod: Mapping[str, Any]) -> dict[str, Any] | None:
    metadata = _table(pod, "metadata")
    labels = _table(metadata, "labels")
    is_driver = labels.get(_ROLE) == "driver" and _driver(pod) is not None
    is_asked = ANNOTATION in _table(metadata, "annotations")
    if not is_driver or is_asked or any(str(one).startswith(_OPERATOR) for one in labels):
        return None
    job = {
        "queue": request.get("namespace") or "",
        "user": _table(request, "userInfo").get("username") or "",
        "name": labels.get(_APPLICATION) or metadata.get("name") or "",
        "engine": "spark",
        "version": labels.get(_OF_VERSION) or "",
    }
    return {
        "id": request["uid"],
        "job": {name: str(text)[:LONGEST] for name, text in job.items()},
    }


def _driver(pod: Mapping[str, Any]) -> int | None:
    """Return which container is the driver; None: there is none, or its options come from elsewhere."""
    containers = _table(pod, "spec").get("containers")
    if not isinstance(containers, list) or not all(isinstance(c, Mapping) for c in containers):
        return None
    found = [at for at, one in enumerate(containers) if one.get("name") == _CONTAINER]
    at = found[0] if found else 0
    if at >= len(containers):
        return None
    given = _given(containers[at])
    if given is not None and ("valueFrom" in given or not isinstance(given.get("value", ""), str)):
        return None
    return at


def _given(container: Mapping[str, Any]) -> Mapping[str, Any] | None:
    entries = container.get("env") or []
    for one in entries if isinstance(entries, list) else []:
        if isinstance(one, Mapping) and one.get("name") == _ENVIRONMENT:
            return one
    return None


def _patch_of_pod(pod: Mapping[str, Any], found: Mapping[str, str], decision: str) -> list[Any]:
    at = _driver(pod)
    assert at is not None
    container = pod["spec"]["containers"][at]
    told = {**found, _DECISION: decision}
    options = " ".join(
        f'"-D{name}={text}"' for name, text in told.items() if not set(text) & set('"\n\r\0')
    )
    given = _given(container)
    before = "" if given is None else given.get("value", "")
    entry = {"name": _ENVIRONMENT, "value": f"{before} {options}".strip()}
    # Kept as they are, the others stay in their order.
    others = [one for one in container.get("env") or [] if one is not given]
    annotations = {**_table(_table(pod, "metadata"), "annotations"), ANNOTATION: decision}
    return [
        {"op": "add", "path": f"/spec/containers/{at}/env", "value": [*others, entry]},
        {"op": "add", "path": "/metadata/annotations", "value": annotations},
    ]


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def answer(review: Any, decision: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the AdmissionReview that answers: whatever was decided, the application is made."""
    request = _request(review)
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    if decision is not None:
        made = request["object"]
        found = {name: text for name, text in decision["settings"].items() if is_allowed(name)}
        if made["kind"] == "Pod":
            patch = _patch_of_pod(made, found, decision["id"])
        else:
            _, conf = _spec(made)
            patched = {**conf, **found, _DECISION: decision["id"]}
            patch = [{"op": "add", "path": "/spec/sparkConf", "value": patched}]
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
        response["auditAnnotations"] = {
            "decision": f"{decision['id']}: {decision['reason']}"[:1000]
        }
    return {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}


def _request(review: Any) -> Mapping[str, Any]:
    request = review.get("request") if isinstance(review, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise ValueError("it is no AdmissionReview: it has no request with a uid")
    return request


def _spec(made: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    spec = made.get("spec")
    spec = spec if isinstance(spec, Mapping) else {}
    conf = spec.get("sparkConf")
    return spec, dict(conf) if isinstance(conf, Mapping) else {}
