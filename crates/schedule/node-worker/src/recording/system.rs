//! What the system counts of this process and of its machine. Each is zero where it is not known.

use std::fs;

use treadle_sight::System;

/// Asks the system: some ten microseconds. `native`: what the process takes beside its values.
pub(super) fn system(native: u64) -> System {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let io = read("/proc/self/io");
    let (received, sent) = traffic(&read("/proc/net/dev"));
    System {
        native,
        read: after(&io, "\nread_bytes: "),
        written: after(&io, "\nwrite_bytes: "),
        received,
        sent,
        stalled: ["cpu", "memory", "io"]
            .map(|what| stalled(&read(&format!("/proc/pressure/{what}")))),
    }
}

/// The number that follows a text.
fn after(text: &str, name: &str) -> u64 {
    let found = text.split_once(name).map(|(_, rest)| rest);
    let digits = found.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Bytes that all interfaces have received and sent, but for the one within the machine: `/proc/net/dev`.
fn traffic(text: &str) -> (u64, u64) {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let lines = lines.filter(|(name, _)| name.trim() != "lo");
    lines.fold((0, 0), |(received, sent): (u64, u64), (_, counts)| {
        let number = |place| {
            let word = counts.split_whitespace().nth(place);
            word.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
        };
        (
            received.saturating_add(number(0)),
            sent.saturating_add(number(8)),
        )
    })
}

/// Microseconds for which something waited: `some` of a file of `/proc/pressure`.
fn stalled(text: &str) -> u64 {
    let some = text.lines().find(|line| line.starts_with("some "));
    some.map_or(0, |line| after(line, " total="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_linux() {
        let io = "rchar: 7\nwchar: 8\nsyscr: 1\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 5\n";
        assert_eq!(
            (after(io, "\nread_bytes: "), after(io, "\nwrite_bytes: ")),
            (4096, 8192)
        );
        let dev = "Inter-|   Receive      |  Transmit\n face |bytes    packets errs\n    lo: 500 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n  eth0: 100 2 0 0 0 0 0 0 30 4 0 0 0 0 0 0\n  eth1:1 2 0 0 0 0 0 0 2 4 0 0 0 0 0 0\n";
        assert_eq!(traffic(dev), (101, 32));
        let pressure = "some avg10=0.00 avg60=1.25 avg300=0.5 total=123456\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=99\n";
        assert_eq!(stalled(pressure), 123_456);
        assert_eq!(
            (
                after("", "x"),
                traffic("nonsense: 1"),
                stalled("full total=1")
            ),
            (0, (1, 0), 0)
        );
    }

    #[test]
    fn this_process_is_known() {
        let system = system(5);
        assert_eq!(system.native, 5);
        let _ = fs::read("/proc/self/exe");
        assert!(super::system(0).read >= system.read);
    }
}
