#!/usr/bin/env python3
"""Removes each guard of the crate in turn, and requires that a test notices.

    python3 crates/transfer/tests/mutants.py [NAME ...]

Works in a copy; the sources stay as they are. A guard whose removal nothing notices is untested.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CRATE = Path("crates/transfer")
#: Simulations within which a missing guard must be noticed.
SEEDS = "300"
#: A mutant that does not end is noticed, too.
LIMIT = 180

# name: (file, source, replacement). The source must be there exactly once.
MUTANTS = {
    "order of offers": ("receiver.rs", "&& object <= last\n", "&& object.0 == u64::MAX\n"),
    "size limit": ("receiver.rs", "if bytes > self.max_object {", "if false {"),
    "number of regions": ("receiver.rs", "if regions.len() > MAX_FRAMES {", "if false {"),
    "credit at the receiver": (
        "receiver.rs",
        "if cost > self.credit {",
        "if false {",
    ),
    "credit at the sender": ("sender.rs", "cost <= self.credit && ", ""),
    "credit comes back": ("receiver.rs", "self.taken += incoming.cost;", ""),
    "largest header": ("sender.rs", "if cost > self.max_cost {", "if false {"),
    "a quarter of the credit stays away": (
        "sender.rs",
        "max_cost: credit - credit / 4,",
        "max_cost: credit,",
    ),
    "prefetch budget": (
        "receiver.rs",
        "if incoming.bytes > self.prefetch - self.prefetched {",
        "if false {",
    ),
    "prefetch budget comes back": (
        "receiver.rs",
        "            self.prefetched -= incoming.bytes;\n        }\n        self.fetch",
        "        }\n        self.fetch",
    ),
    "slot is missing": ("receiver.rs", "if *slot != Slot::Missing {", "if false {"),
    "slot of what broke off": ("receiver.rs", "*slot = Slot::Missing;", ""),
    "extent of the grid": (
        "layout.rs",
        "|| length != EXTENT.min(total - offset)",
        "",
    ),
    "begin after a damaged extent": (
        "receiver.rs",
        "if entry.corrupt {\n            // What",
        "if false {\n            // What",
    ),
    "arrival after a damaged extent": (
        "receiver.rs",
        "if entry.corrupt {\n            // Bytes",
        "if false {\n            // Bytes",
    ),
    "checksum": ("receiver.rs", "if !intact {", "if false {"),
    "count of a report": ("receiver.rs", "entry.extents += 1;", "entry.extents += 2;"),
    "report of a stripe that did not join": (
        "receiver.rs",
        "        self.buried.push_back(stripe);\n        effects.push(Effect::Tell(Message::Report {\n            stripe,\n            extents: 0,\n            corrupt: false,\n        }));",
        "        self.buried.push_back(stripe);",
    ),
    "given up before it joined": (
        "receiver.rs",
        "if self.buried.contains(&stripe) {",
        "if false {",
    ),
    "number of incoming stripes": (
        "receiver.rs",
        "if self.stripes.len() >= MAX_STRIPES || self.stripes.contains_key(&stripe)",
        "if self.stripes.contains_key(&stripe)",
    ),
    "the same stripe twice": (
        "receiver.rs",
        "if self.stripes.len() >= MAX_STRIPES || self.stripes.contains_key(&stripe)",
        "if self.stripes.len() >= MAX_STRIPES",
    ),
    "number of stripes dialled for the peer": (
        "receiver.rs",
        "if stripes >= MAX_STRIPES\n            || ",
        "if ",
    ),
    "extents of a report": ("sender.rs", "if extents > handed {", "if false {"),
    "stripe of a report": ("sender.rs", "if stripe.0 >= self.next_stripe {", "if false {"),
    "sent again after a report": ("sender.rs", "outgoing.again.push(index);", ""),
    "only what is missing is sent again": (
        "sender.rs",
        "stripe.sent.iter().skip(arrived).rev()",
        "stripe.sent.iter().rev()",
    ),
    "base of a stripe": ("sender.rs", "stripe.base += 1;", ""),
    "back in the rotation": ("sender.rs", "self.active.push_front(object);", ""),
    "placed only when sent": ("sender.rs", "if !mapped && !handed {", "if false {"),
    "speaks of what was offered": (
        "sender.rs",
        "if Some(object) > self.last_offered {",
        "if false {",
    ),
    "accepted before sent": (
        "sender.rs",
        "self.state == State::Accepted && (self.next",
        "(self.next",
    ),
    "stripes of a dial that failed at the other side": (
        "sender.rs",
        "self.send_again(&entry, 0);",
        "",
    ),
    "stall": (
        "sender.rs",
        "now.saturating_sub(since) > self.timeout",
        "false",
    ),
    "stall while opening": (
        "sender.rs",
        "Link::Open | Link::Opening | Link::Retired => entry.progress",
        "Link::Opening => now,\nLink::Open | Link::Retired => entry.progress",
    ),
    "stall of what is retired": (
        "sender.rs",
        "Link::Open | Link::Opening | Link::Retired => entry.progress",
        "Link::Retired => now,\nLink::Open | Link::Opening => entry.progress",
    ),
    "stall with what was cancelled": (
        "sender.rs",
        "entry.progress.max(self.idle_at)",
        "now",
    ),
    "idle is no stall": ("sender.rs", "self.idle_at = now;", ""),
    "rounds of failures": (
        "sender.rs",
        "if now >= self.retry_at {\n            let",
        "if true {\n            let",
    ),
    "pause between attempts": ("sender.rs", "self.retry_at = now + pause;", ""),
    "the last attempt": ("sender.rs", "&& self.failures >= MAX_FAILURES", "&& false"),
    "failure while opening": ("sender.rs", "if entry.link == Link::Opening {", "if false {"),
    "stripes that wait for a report": ("sender.rs", "stripes.len() < MAX_STRIPES", "true"),
    "damage without end": ("sender.rs", "if outgoing.corrupt >= MAX_CORRUPT {", "if false {"),
    "only the damaged object is blamed": (
        "sender.rs",
        "let Some(&(object, _)) = entry.sent.get(after as usize)",
        "let Some(&(object, _)) = entry.sent.iter().skip(after as usize).find(|(object, _)| self.objects.contains_key(object))",
    ),
    "limit of stripes": ("ramp.rs", "(self.wanted * 2).min(self.limit)", "self.wanted * 2"),
    "gain": ("ramp.rs", "self.rate() >= base * GAIN", "true"),
    "silence": ("pair.rs", "if now.saturating_sub(self.heard) > self.timeout {", "if false {"),
    "ping": ("pair.rs", "effects.push(Effect::Tell(Message::Ping { token }));", ""),
    "arrivals are signs of life": (
        "pair.rs",
        "Event::Arrived { stripe, intact } => {\n                self.heard = now;",
        "Event::Arrived { stripe, intact } => {",
    ),
    "accounts after the end": (
        "receiver.rs",
        "                self.prefetched -= incoming.bytes;\n            }\n            effects",
        "            }\n            effects",
    ),
    "nothing fails twice": (
        "sender.rs",
        "self.forget(object);\n        effects.push(Effect::SendFailed",
        "effects.push(Effect::SendFailed",
    ),
}


def workspace(base: Path) -> Path:
    """A workspace with this crate alone."""
    manifest = (ROOT / "Cargo.toml").read_text()
    start = manifest.index("members = [")
    end = manifest.index("]", start) + 1
    manifest = manifest[:start] + f'members = ["{CRATE}"]' + manifest[end:]
    (base / "Cargo.toml").write_text(manifest)
    shutil.copy(ROOT / "Cargo.lock", base / "Cargo.lock")
    # With new times: what an earlier run built was of other sources.
    shutil.copytree(ROOT / CRATE, base / CRATE, copy_function=shutil.copyfile)
    return base / CRATE / "src"


def test(base: Path) -> tuple[bool, str]:
    """Whether the tests pass, and which do not."""
    environment = os.environ | {
        "SEEDS": SEEDS,
        "CARGO_TARGET_DIR": str(ROOT / "target" / "mutants"),
        "CARGO_PROFILE_TEST_DEBUG": "0",
        "RUST_BACKTRACE": "0",
    }
    command = ["cargo", "test", "--offline", "--no-fail-fast", "--tests"]
    process = subprocess.Popen(
        command,
        cwd=base,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        # The session is this process's own, and holds the test that does not end.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return False, "does not end"
    failed = [line.split()[1] for line in output.splitlines() if line.endswith("... FAILED")]
    if process.returncode != 0 and not failed:
        raise SystemExit(f"the tests do not run:\n{errors}")
    return process.returncode == 0, ", ".join(failed)


def main() -> int:
    chosen = sys.argv[1:] or list(MUTANTS)
    unnoticed = []
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        sources = workspace(base)
        passes, failed = test(base)
        if not passes:
            raise SystemExit(f"without any mutation these fail: {failed}")
        for name in chosen:
            file, before, after = MUTANTS[name]
            path = sources / file
            text = path.read_text()
            if text.count(before) != 1:
                raise SystemExit(f"{name}: {file} has this {text.count(before)} times:\n{before}")
            path.write_text(text.replace(before, after))
            passes, failed = test(base)
            path.write_text(text)
            print(f"{name}: {'NOT NOTICED' if passes else failed}", flush=True)
            if passes:
                unnoticed.append(name)
    print(f"{len(chosen) - len(unnoticed)} of {len(chosen)} are noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
