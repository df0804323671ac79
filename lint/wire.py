"""Check that each decoder of bytes from others has a fuzz target, by the table in docs/internals/wire.md.

The table names each schema, each decoder, and the targets. Functions that read bytes have names that begin with
``decode``; those of the crates below must stand in the table. Generated types are read there alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TABLE = Path("docs/internals/wire.md")
FUZZ = Path("fuzz")
# What reads bytes of sockets, and of files that may be damaged. Others get what these have read.
CRATES = (
    *(
        "common/types",
        "transfer/net",
        "broadcast/wire",
        "broadcast/node",
        "shuffle",
        "schedule/wire",
    ),
    *("schedule/node-client", "schedule/node-scheduler", "schedule/node-worker", "schedule/store"),
    "schedule/sight",
)
FUNCTION = re.compile(
    r"^ *pub(?:\(crate\))? fn (decode\w*)[^;{]*\([^)]*(?:&\[u8|Bytes|Reader)[^;{]*\{", re.MULTILINE
)
GENERATED = re.compile(r"\b(?!Self|Link|Value)([A-Z]\w*)::decode\(")
NAME = re.compile(r"`([^`]+)`")
# Parts of what the table names: `decode_chunk` reads what `decode_relayed` reads, for the usual case.
PARTS = {"decode_chunk"}


def rows() -> list[list[str]]:
    """Return the cells of the table, without its head."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def sources() -> Iterator[Path]:
    """Yield the files of the crates that read bytes."""
    for crate in CRATES:
        for path in sorted(Path("crates", crate).rglob("*.rs")):
            if "tests" not in path.parts and not {"fuzzing", "fuzzing.rs"} & set(path.parts):
                yield path


def differences() -> Iterator[str]:
    """Yield what is missing, a line each."""
    schemas, decoders, targets = (
        {name for row in rows() for name in NAME.findall(row[column])} for column in (1, 2, 3)
    )
    for row in rows():
        if not NAME.findall(row[3]):
            yield f"{TABLE}: {row[0]} has no fuzz target"
    named = {decoder.rsplit("::", 1)[-1] for decoder in decoders}
    for path in sources():
        text = path.read_text()
        for name in FUNCTION.findall(text):
            if name not in named | PARTS:
                yield f"{path}: {name} is not in {TABLE}"
        if "wire" not in str(path) and path.stem not in named:
            for kind in GENERATED.findall(text.split("#[cfg(test)]")[0]):
                if kind not in named:
                    yield f"{path}: {kind}::decode reads bytes, and is not in {TABLE}"
    there = {path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs")}
    bins = set(re.findall(r'name = "(\w+)"\npath', (FUZZ / "Cargo.toml").read_text()))
    told = set(NAME.findall((FUZZ / "README.md").read_text()))
    yield from (f"{TABLE}: there is no fuzz target {name}" for name in sorted(targets - there))
    for name in sorted(there):
        if name not in targets:
            yield f"{TABLE} lacks the fuzz target {name}"
        if name not in bins:
            yield f"{FUZZ}/Cargo.toml lacks {name}"
        if name not in told:
            yield f"{FUZZ}/README.md lacks {name}"
        if not any((FUZZ / "corpus" / name).iterdir()):
            yield f"{FUZZ}/corpus lacks seeds of {name}"
    for path in sorted(Path("proto").glob("*.proto")):
        if path.name not in schemas:
            yield f"{TABLE} lacks {path}"


def main() -> None:
    """Print each difference, and fail if there is one."""
    if wrong := list(differences()):
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
