//! A registry with many servers.

use std::time::Instant;

use treadle_shuffle_registry::{Entry, Load, encode_entry};

use crate::cases::entry;
use crate::watcher::Watcher;
use crate::{Kind, connect};

const MANY: u64 = 10_000;
/// A watch takes less than this for each entry, in bytes: the entry, its texts, its place in the lists.
const MOST_EACH: u64 = 4 << 10;

pub(crate) fn ten_thousand_servers_are_listed<K: Kind>() {
    let kind = K::start();
    let entries = |free| -> Vec<(String, Vec<u8>)> {
        let one = |number| {
            let load = Some(Load {
                free,
                ..Load::default()
            });
            let entry = Entry {
                load,
                ..entry(&format!("server-{number}"), 1)
            };
            (format!("server-{number}/{:016x}", 1), encode_entry(&entry))
        };
        (0..MANY).map(one).collect()
    };
    let bytes = entries(1)
        .iter()
        .map(|(_, bytes)| bytes.len())
        .sum::<usize>();
    kind.write(&entries(1));
    let registry = connect(&kind.location(None));
    let before = memory();
    let began = Instant::now();
    let mut master = Watcher::new(&*registry);
    master.wait("all are listed", |master| {
        master.list.len() as u64 == MANY && master.now().age.is_none()
    });
    let listed = began.elapsed();
    let taken = memory().saturating_sub(before);
    let began = Instant::now();
    kind.write(&entries(2));
    master.wait("all are updated", |master| {
        let mut loads = master
            .list
            .values()
            .map(|entry| entry.load.map(|load| load.free));
        loads.all(|free| free == Some(2))
    });
    println!(
        "{MANY} servers of {} bytes: listed within {listed:?}, with {} KiB more in memory; written and \
         updated within {:?}",
        bytes as u64 / MANY,
        taken >> 10,
        began.elapsed(),
    );
    assert!(!master.has_left());
    assert!(taken < MANY * MOST_EACH, "{taken} bytes");
}

/// What this process has in memory, in bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages = text
        .split(' ')
        .nth(1)
        .expect("the second is what is resident");
    pages.parse::<u64>().expect("it is a number") * 4_096
}
