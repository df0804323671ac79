//! What the store wrote to disk, and read back.

use std::time::Duration;

use treadle_sight::{Kind, Record};

/// Bytes that went to disk, or came back, and how many nanoseconds that took.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Disk {
    bytes: u64,
    time: u64,
}

impl Disk {
    pub(super) fn new(bytes: u64, time: Duration) -> Self {
        Self {
            bytes,
            time: time.as_nanos() as u64,
        }
    }
}

/// What was written and read since it was so much, up to now: names of groups, and spans that are as long as the disk
/// took.
pub(super) fn since(
    before: [Disk; 2],
    disk: [Disk; 2],
    now: u64,
) -> impl Iterator<Item = (&'static str, Record)> {
    let names = ["values to disk", "values from disk"];
    let each = names.into_iter().zip(before).zip(disk);
    each.filter_map(move |((name, before), disk)| {
        let bytes = disk.bytes.saturating_sub(before.bytes);
        let began = now.saturating_sub(disk.time.saturating_sub(before.time));
        let record = Record {
            began,
            read: began,
            computed: now,
            ended: now,
            object: 0,
            bytes,
            group: 0,
            lane: 0,
            kind: Kind::Spill,
            failed: false,
        };
        (bytes > 0).then_some((name, record))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_last_as_long_as_the_disk_took() {
        let disk = |bytes, time| Disk { bytes, time };
        let none = [Disk::default(); 2];
        let first = [disk(10, 3), disk(0, 0)];
        let spans = |before, after, now| -> Vec<_> {
            let spans = since(before, after, now);
            spans
                .map(|(name, one)| (name, one.began, one.ended, one.bytes))
                .collect()
        };
        assert_eq!(spans(none, first, 100), [("values to disk", 97, 100, 10)]);
        assert_eq!(spans(first, first, 150), []);
        let both = spans(first, [disk(30, 8), disk(7, 2)], 200);
        assert_eq!(
            both,
            [
                ("values to disk", 195, 200, 20),
                ("values from disk", 198, 200, 7)
            ]
        );
    }
}
