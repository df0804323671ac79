"""What Spark needs of Kubernetes, on this machine: an API server that keeps pods, and runs each as a process.

A container is started as the script of Spark's own image starts an executor. There are no images, no networks, and no
checks of what is sent. A secret is mounted as a file of its volume's name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from application_support import LONG, PYTHON

MAIN = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


class Pods:
    """Pods by their names, and the process of each."""

    def __init__(self, directory: Path, secrets: dict[str, dict[str, str]]) -> None:
        self.directory = directory
        self.secrets = secrets
        self.lock = threading.Lock()
        self.pods: dict[str, dict[str, Any]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def create(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        pod["status"] = {"phase": "Running", "podIP": "127.0.0.1"}
        with self.lock:
            self.pods[name] = pod
            self.processes[name] = self._start(pod)

    def _start(self, pod: dict[str, Any]) -> subprocess.Popen[bytes]:
        (container,) = pod["spec"]["containers"]
        assert container["args"] == ["executor"]
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for mount in container["volumeMounts"]:
            if secret := volumes[mount["name"]].get("secret"):
                place = Path(mount["mountPath"])
                place.mkdir(parents=True, exist_ok=True)
                for file, content in self.secrets[secret["secretName"]].items():
                    (place / file).touch(mode=0o600)
                    (place / file).write_text(content)
        fields = {"status.podIP": "127.0.0.1", "metadata.name": pod["metadata"]["name"]}
        given = {
            one["name"]: one.get("value") or fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            for one in container["env"]
            if one.get("value") or "valueFrom" in one
        }
        site = next(Path(PYTHON).parents[1].glob("lib/python3*/site-packages/pyspark"))
        options = [value for name, value in given.items() if name.startswith("SPARK_JAVA_OPT_")]
        memory = given["SPARK_EXECUTOR_MEMORY"]
        classes = f"{given['SPARK_CLASSPATH']}:{site}/jars/*"
        with (self.directory / f"{fields['metadata.name']}.log").open("w") as log:
            return subprocess.Popen(
                [
                    *("java", *options, f"-Xms{memory}", f"-Xmx{memory}", "-cp", classes, MAIN),
                    *("--driver-url", given["SPARK_DRIVER_URL"]),
                    *("--executor-id", given["SPARK_EXECUTOR_ID"]),
                    *("--cores", given["SPARK_EXECUTOR_CORES"]),
                    *("--app-id", given["SPARK_APPLICATION_ID"]),
                    *("--hostname", given["SPARK_EXECUTOR_POD_IP"]),
                    *("--resourceProfileId", given["SPARK_RESOURCE_PROFILE_ID"]),
                    *("--podName", given["SPARK_EXECUTOR_POD_NAME"]),
                ],
                # What the test has set is not there.
                env={"PATH": os.environ["PATH"], "SPARK_HOME": str(site), **given},
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def list(self) -> list[dict[str, Any]]:
        with self.lock:
            for name, pod in self.pods.items():
                code = self.processes[name].poll()
                if code is not None:
                    ended = {"name": "executor", "state": {"terminated": {"exitCode": code}}}
                    pod["status"] = {
                        "phase": "Failed" if code else "Succeeded",
                        "containerStatuses": [ended],
                    }
            return list(self.pods.values())

    def kill(self) -> int:
        """End the processes of all pods by force. Returns how many there were."""
        with self.lock:
            running = [one for one in self.processes.values() if one.poll() is None]
            for process in running:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(LONG)
        return len(running)

    def delete(self, name: str | None) -> None:
        with self.lock:
            for one in [name] if name else list(self.pods):
                if self.pods.pop(one, None) and (process := self.processes.pop(one)):
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait(LONG)


def handler(pods: Pods) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *values: Any) -> None:
            pass

        def answer(self, body: dict[str, Any], code: int = 200) -> None:
            text = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def body(self) -> dict[str, Any]:
            length = int(self.headers.get("Content-Length", 0))
            found: dict[str, Any] = json.loads(self.rfile.read(length) or b"{}")
            return found

        @property
        def parts(self) -> tuple[str, str | None]:
            """The kind and the name in ``/api/v1/namespaces/default/KIND/NAME``."""
            kind, _, name = self.path.partition("?")[0].split("/", 5)[5].partition("/")
            return kind, name or None

        def do_POST(self) -> None:
            kind, _ = self.parts
            body = self.body()
            body["metadata"] |= {"uid": body["metadata"]["name"], "resourceVersion": "1"}
            if kind == "pods":
                pods.create(body)
            self.answer(body, 201)

        def do_GET(self) -> None:
            kind, name = self.parts
            found = pods.list() if kind == "pods" else []
            if name is None:
                kinds = {"pods": "PodList", "configmaps": "ConfigMapList"}
                head = {"kind": kinds.get(kind, "List"), "apiVersion": "v1"}
                self.answer({**head, "metadata": {"resourceVersion": "1"}, "items": found})
                return
            own = [pod for pod in found if pod["metadata"]["name"] == name]
            status = {"kind": "Status", "apiVersion": "v1", "code": 404}
            self.answer(own[0] if own else status, 200 if own else 404)

        def do_PATCH(self) -> None:
            _, name = self.parts
            labels = self.body().get("metadata", {}).get("labels", {})
            own = [pod for pod in pods.list() if pod["metadata"]["name"] == name]
            for pod in own:
                pod["metadata"]["labels"] |= labels
            self.answer(own[0] if own else {}, 200 if own else 404)

        def do_DELETE(self) -> None:
            self.body()
            kind, name = self.parts
            if kind == "pods":
                pods.delete(name)
            self.answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    return Handler


@contextmanager
def kubernetes(directory: Path, secrets: dict[str, dict[str, str]]) -> Iterator[tuple[str, Pods]]:
    """The address of an API server, and its pods."""
    pods = Pods(directory, secrets)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(pods)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"k8s://http://127.0.0.1:{server.server_address[1]}", pods
        finally:
            server.shutdown()
            thread.join()
            pods.delete(None)
