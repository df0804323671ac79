"""Run the tests of packaging/yarn in a real cluster of YARN, which is started for them.

Hadoop comes from Maven Central, with the digests of tests/yarn/SHA256SUMS, and stays in ``.cache/yarn``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from downloads import ROOT, jars, need

SOURCES = Path(__file__).with_suffix("")
CACHE = ROOT / ".cache" / "yarn"


def main() -> None:
    need("java", "default-jre-headless")
    need("ip", "iproute2")
    need("curl", "curl")
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = jars(SOURCES, CACHE / "jars", "-DincludeScope=runtime")
    environment = os.environ | {"TREADLE_TEST_YARN": str(folder)}
    tests = (sys.executable, "-m", "pytest", "-v", "tests/cluster/test_service_yarn.py")
    raise SystemExit(subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
