"""Run the tests of what starts the service on hosts and on Kubernetes, with the tools that they need.

Helm is built from Go's module proxy, which checks its digest, and stays in ``.cache/deploy``.
"""

from __future__ import annotations

import os
import subprocess
import sys

from downloads import ROOT, need

HELM = "v3.18.6"
TESTS = [
    f"tests/cluster/test_{name}.py"
    for name in ("service_chart", "service_ssh", "service_units", "hosting_ssh")
]


def main() -> None:
    need("ssh-keygen", "openssh-client")
    need("shellcheck", "shellcheck")
    os.environ["PATH"] += f"{os.pathsep}/usr/sbin"
    if "TREADLE_SSHD" not in os.environ:
        need("sshd", "openssh-server")
    place = ROOT / ".cache" / "deploy" / HELM
    if not (place / "helm").exists():
        need("go", "golang-go")
        building = os.environ | {"GOBIN": str(place), "GOFLAGS": "-trimpath"}
        subprocess.run(
            ["go", "install", f"helm.sh/helm/v3/cmd/helm@{HELM}"], env=building, check=True
        )
    environment = os.environ | {"TREADLE_TEST_HELM": str(place / "helm")}
    tests = (sys.executable, "-m", "pytest", "-v", *TESTS)
    raise SystemExit(subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
