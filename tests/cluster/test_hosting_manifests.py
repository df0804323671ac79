"""The guides that need somebody's cluster: what they ask for is checked by the libraries, and not run."""

from __future__ import annotations

import inspect
import json
import os
import runpy
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

GUIDES = Path(__file__).parents[2] / "docs" / "hosting"


def options(name, **modules):
    """The `OPTIONS` of a guide."""
    with pytest.MonkeyPatch.context() as patch:
        for module, stand_in in modules.items():
            patch.setitem(sys.modules, module, stand_in)
        return runpy.run_path(str(GUIDES / name))["OPTIONS"]


def test_kubernetes_is_asked_for_what_the_operator_knows():
    reason = "`make test-guides` installs it"
    package = pytest.importorskip("dask_kubernetes", reason=reason)
    jsonschema = pytest.importorskip("jsonschema", reason=reason)
    from dask_kubernetes.operator import make_cluster_spec

    cluster, job = yaml.safe_load_all((GUIDES / "kubernetes.yaml").read_text())
    crd = Path(package.__file__).parent.joinpath(
        "operator/deployment/helm/dask-kubernetes-operator/crds/daskcluster.yaml"
    )
    schema = yaml.safe_load(crd.read_text())
    (version,) = schema["spec"]["versions"]
    assert cluster["apiVersion"] == f"{schema['spec']['group']}/{version['name']}"
    assert cluster["kind"] == schema["spec"]["names"]["kind"]
    strict = closed(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    jsonschema.validate(cluster["spec"], strict)
    # It can fail.
    wrong = yaml.safe_load((GUIDES / "kubernetes.yaml").read_text().split("\n---")[0])
    wrong["spec"]["worker"]["spec"]["containers"][0]["imagename"] = "x"
    with pytest.raises(jsonschema.ValidationError, match="imagename"):
        jsonschema.validate(wrong["spec"], strict)
    # Commands, ports and the service are those that the library itself makes.
    made = make_cluster_spec(cluster["metadata"]["name"], n_workers=2)["spec"]
    ours = cluster["spec"]
    assert container(ours["worker"])["args"] == container(made["worker"])["args"]
    assert container(ours["scheduler"])["ports"] == container(made["scheduler"])["ports"]
    assert ours["scheduler"]["service"] == made["scheduler"]["service"]
    (script,) = job["spec"]["template"]["spec"]["containers"]
    compile(script["args"][0], "script", "exec")
    assert f"tcp://{cluster['metadata']['name']}-scheduler:8786" in script["args"][0]


def container(part):
    (one,) = part["spec"]["containers"]
    return one


def closed(schema):
    """A schema that refuses what it does not name, as the server does not store it."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(value) for name, value in schema.items()}
    named = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if named and "metadata" not in schema["properties"] and not open_ended(schema):
        found.setdefault("additionalProperties", False)
    return found


def open_ended(schema):
    return schema.get("x-kubernetes-preserve-unknown-fields", False)


def test_a_job_of_slurm_starts_a_worker_of_dask():
    dask_jobqueue = pytest.importorskip("dask_jobqueue", reason="`make test-guides` installs it")
    asked = options("slurm.py")
    # This machine has another network, and no dashboard is needed.
    here = {"interface": "lo", "scheduler_options": {"dashboard": False}}
    with dask_jobqueue.SLURMCluster(**asked | here) as cluster:
        script = cluster.job_script()
        cluster.adapt(minimum_jobs=0, maximum_jobs=10)
    lines = script.splitlines()
    assert "#SBATCH -p regular" in lines
    assert "#SBATCH --cpus-per-task=8" in lines
    assert "#SBATCH -t 01:00:00" in lines
    prologue, command = lines[-2:]
    assert [prologue] == asked["job_script_prologue"]
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "distributed.cli.dask_worker"]
    assert {"--nthreads", "8", "--nanny", "--local-directory"} <= {*words}


# It runs where Coiled is: it does not go with what the tests need.
COILED = """
import inspect, json, coiled
print(json.dumps(list(inspect.signature(coiled.Cluster.__init__).parameters)))
"""


def test_coiled_is_asked_for_what_it_knows():
    python = os.environ.get("TREADLE_COILED_PYTHON")
    if python is None:
        pytest.skip("`make test-guides` installs Coiled, and names it by TREADLE_COILED_PYTHON")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", COILED]
    said = subprocess.check_output(command, env=environment, text=True, timeout=60)
    known = json.loads(said.splitlines()[-1])
    # The guide imports it; that it is here is not needed for what it asks for.
    asked = options("coiled_cluster.py", coiled=types.ModuleType("coiled"))
    assert "package_sync" in asked
    assert asked.keys() <= set(known)
    assert "arm" in known


def test_the_script_for_ssh_is_what_the_test_with_sshd_does():
    text = (GUIDES / "ssh.py").read_text()
    compile(text, "ssh.py", "exec")
    from distributed import SSHCluster

    known = inspect.signature(SSHCluster).parameters
    assert {"hosts", "worker_options", "remote_python", "connect_options"} <= known.keys()
