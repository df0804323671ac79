"""Kubernetes asks about a SparkApplication before it makes one: AdmissionReview in, a JSON patch out."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from treadle.coordinator._allowed import LIMITS, is_allowed
from treadle.coordinator._jobs import LONGEST

__all__ = ["answer", "question"]

_VERSION = "admission.k8s.io/v1"
_MANAGER = "spark.shuffle.manager"
_DECISION = "spark.treadle.decision"


def question(review: Any) -> dict[str, Any] | None:
    """Return what is asked of :meth:`Coordinator.decide`; None: it is about nothing that has a decision to come.

    The queue is the namespace, and the recurring job is found by ``metadata.name``. The id is that of the request, so
    that one that Kubernetes repeats gets the same decision.

    Raises
    ------
    ValueError
        It is no AdmissionReview.
    """
    request = _request(review)
    made = request.get("object")
    is_new = request.get("operation") == "CREATE" and not request.get("dryRun")
    if not is_new or not isinstance(made, Mapping) or made.get("kind") != "SparkApplication":
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


def answer(review: Any, decision: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the AdmissionReview that answers: whatever was decided, the application is made."""
    request = _request(review)
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    if decision is not None:
        _, conf = _spec(request["object"])
        found = {name: text for name, text in decision["settings"].items() if is_allowed(name)}
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
