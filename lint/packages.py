"""Check which packages of ``treadle`` import which: no circle, and few modules beside the packages.

What is imported for types alone does not count: it is not there when the program runs. Nor do ``treadle`` itself, whose
names are for users, and ``treadle._core``, the native part, which all may import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("python/treadle")
MOST_PACKAGES = 24
MOST_MODULES = 8


def modules() -> dict[str, Path]:
    """Return all modules by their dotted names."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Yield what a module imports of the package when it runs, wherever in it."""
    tree = ast.parse(path.read_text())
    typed = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.dump(test.test)
        for node in ast.walk(test)
    }
    for node in ast.walk(tree):
        if id(node) in typed:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def package_of(name: str) -> str | None:
    """Return the package below ``treadle`` that a dotted name is in; None: it is in none."""
    parts = name.split(".")
    is_inside = parts[0] == "treadle" and len(parts) > 1 and (ROOT / parts[1]).is_dir()
    return parts[1] if is_inside else None


def arrows() -> dict[str, dict[str, str]]:
    """Return the packages that each package imports, each with one module that does."""
    found: dict[str, dict[str, str]] = {}
    for name, path in modules().items():
        for other in imported(path):
            above, below = package_of(name), package_of(other)
            if above and below and above != below:
                found.setdefault(above, {}).setdefault(below, f"{path} imports {other}")
    return found


def circles(found: dict[str, dict[str, str]]) -> Iterator[str]:
    """Take away the packages that import no other one, again and again: yield the arrows that are left."""
    left = {name: set(below) for name, below in found.items()}
    while below := [
        name for name in {*left, *(n for b in left.values() for n in b)} if not left.get(name)
    ]:
        left = {name: others - set(below) for name, others in left.items() if name not in below}
    for name, others in sorted(left.items()):
        yield from (f"a circle of packages: {found[name][other]}" for other in sorted(others))


def main() -> None:
    """Print what is wrong, and fail if anything is."""
    wrong = list(circles(arrows()))
    packages = [path for path in ROOT.iterdir() if (path / "__init__.py").exists()]
    if len(packages) > MOST_PACKAGES:
        wrong.append(f"{ROOT} has {len(packages)} packages: at most {MOST_PACKAGES}")
    beside = [path.name for path in ROOT.glob("*.py")]
    if len(beside) > MOST_MODULES:
        wrong.append(
            f"{ROOT} has {len(beside)} modules beside its packages: at most {MOST_MODULES}"
        )
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
