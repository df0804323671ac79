"""Build the image of packaging/container, and run the tests of shuffle servers in its containers.

Registries of images cannot be reached from everywhere: the base is made of Debian's packages, with the release and the
Python of the image that the Containerfile names. The image, its layers and the base stay in ``.cache/container``.

The argument is Cargo's profile of the wheel. Where something is missing, that is named, and nothing runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from downloads import ROOT

CACHE = ROOT / ".cache" / "container"
FILE = ROOT / "packaging" / "container" / "Containerfile"
# With Debian's Python.
DEBIAN, PYTHON = "bookworm", "3.11"
PACKAGES = "python3,python3-venv,ca-certificates"
BASE = f"localhost/treadle-base:{DEBIAN}"
TOOLS = {"podman": "podman", "runc": "runc", "debootstrap": "debootstrap"}
# With how `pip` reaches its index here: no part of the image.
LENT = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")


def missing() -> str | None:
    """Return why the tests cannot run here."""
    for program, package in TOOLS.items():
        if shutil.which(program) is None:
            return f"{program} is missing (Debian and Ubuntu: apt install {package})"
    if os.geteuid() != 0:
        return "debootstrap and these containers need root"
    return None


def podman(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run podman with images of these tests alone."""
    store = ("--root", CACHE / "storage", "--runroot", CACHE / "run", "--runtime", "runc")
    command = list(map(str, ("podman", *store, *arguments)))
    return subprocess.run(command, check=False, **options)  # type: ignore[call-overload]


def make_base() -> None:
    """Make the base, unless it is there."""
    if podman("image", "exists", BASE).returncode == 0:
        return
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        options = ("--variant=minbase", f"--include={PACKAGES}")
        subprocess.run(["debootstrap", *options, DEBIAN, folder], check=True)
        files = subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE)
        done = podman("import", "-", BASE, stdin=files.stdout)
        if files.wait() or done.returncode:
            raise SystemExit("the base was not made")


def build(profile: str, tag: str, version: str) -> None:
    """Build the image as its page says, on the base of these tests."""
    wheel = (sys.executable, "packaging/wheels.py", "--here", profile, PYTHON)
    subprocess.run(wheel, cwd=ROOT, check=True)
    values = {"BASE": BASE, "WHEELS": ".cache/wheels", "VERSION": version}
    arguments = [f"--build-arg={name}={value}" for name, value in values.items()]
    lent = [f"--volume={path}:{path}:ro" for path in LENT if Path(path).exists()]
    # The other format of images has no checks of health.
    options = ("--format", "docker", "--network", "host", "--file", FILE, "--tag", tag)
    if podman("build", *options, *arguments, *lent, ROOT).returncode:
        raise SystemExit("the image was not built")


def main() -> None:
    (profile,) = sys.argv[1:]
    reason = missing()
    if reason is not None:
        print(f"skipped: {reason}")
        return
    import treadle

    CACHE.mkdir(parents=True, exist_ok=True)
    tag = f"treadle-shuffle:{treadle.__version__}"
    make_base()
    build(profile, tag, treadle.__version__)
    environment = os.environ | {"TREADLE_TEST_IMAGE": tag}
    tests = (sys.executable, "-m", "pytest", "-v", "tests/cluster/test_service_image.py")
    raise SystemExit(subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
